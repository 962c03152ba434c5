// Where the daemon's log goes: to the journal with each line's priority where systemd started it,
// else to standard error with the time.
#pragma once

#include <string>

namespace mercury {

// `level` is log.level of the configuration.
void set_up_log(const std::string& level);
// What the daemon ends for, before or after set_up_log.
void log_fatal(const std::string& message);

}  // namespace mercury
