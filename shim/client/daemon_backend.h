// A mercury-stackd behind a Unix socket.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "shim/client/backend.h"

namespace mercury::client {

// Connects and greets. kDaemonLost: nobody listens on `socket`; kVersionMismatch; kPermission;
// kTimedOut: it accepts but does not answer. From then on it is given up when somebody has waited
// for `timeout` to 1.2 of it, and it has answered nothing: 10 ms or more.
Result<std::unique_ptr<Backend>> make_daemon_backend(const std::string& socket,
                                                     std::chrono::milliseconds timeout);

}  // namespace mercury::client
