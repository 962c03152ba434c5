// The socket file of a memif server, which a killed process leaves behind.
#pragma once

#include <string>

#include "transport/base/result.h"

namespace mercury::ethdev {

// Removes the socket at `path` if nobody listens on it; does nothing if there is none. Errors:
// kBusy if a process listens, kConfig if it is something else than a socket or the path is too
// long.
Status clear_stale_socket(const std::string& path);

}  // namespace mercury::ethdev
