// mercury_set_log: the program's own log, of what happens without a call that could say so.
//
// Owner/thread: the process has one; any thread may write a line, one at a time.
#pragma once

#include <string>

#include "shim/client/mercurystack/mercury.h"

namespace mercury::client {

// Null: no log.
void set_log(mercury_log log, void* user, int32_t level) noexcept;
void log_line(mercury_log_level level, const std::string& line) noexcept;

}  // namespace mercury::client
