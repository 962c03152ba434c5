// A mercury-stackd behind a Unix socket.
#pragma once

#include <memory>
#include <string>

#include "shim/client/backend.h"

namespace mercury::client {

// Connects and greets. kDaemonLost: nobody listens on `socket`; kVersionMismatch; kPermission;
// kTimedOut: it accepts but does not answer.
Result<std::unique_ptr<Backend>> make_daemon_backend(const std::string& socket);

}  // namespace mercury::client
