// mercuryctl doctor: what a configuration needs and this machine lacks.
#pragma once

#include <string>

namespace mercury {

// Prints one line a check: "ok" or "MISSING", what was found; below, the command or the key that
// mends it, or makes it better.
// Returns the exit status: 0 if nothing is missing.
int run_doctor(const std::string& config_path, bool as_json);

}  // namespace mercury
