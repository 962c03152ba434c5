// mercuryctl doctor: what a configuration needs and this machine lacks.
#pragma once

#include <string>

namespace mercury {

// Prints one line a check: "ok"; "advice", which the daemon runs without; or "MISSING", which it
// does not. Then what was found; below, the command or the key that mends it. Returns the exit
// status: 0 if nothing is missing.
int run_doctor(const std::string& config_path, bool as_json);

}  // namespace mercury
