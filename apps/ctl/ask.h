// Asks a host's mercury-stackd a question on its admin socket.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "transport/base/result.h"

namespace mercury {

// The daemon's answer, all within `timeout_s`. Blocks. Errors, with what to do: kDaemonLost (nobody
// listens, or the connection broke), kPermission (says who may ask), kTimedOut (somebody listens
// and does not answer).
Result<std::string> ask_daemon(const std::string& path, const std::string& question,
                               unsigned timeout_s);

// Which process listens there, if any does and it may be asked.
std::optional<pid_t> running_daemon(const std::string& path);

}  // namespace mercury
