// What will keep a program's sockets from Mercury, as far as its file says.
#pragma once

#include <string>
#include <vector>

#include "transport/base/result.h"

namespace mercury {

// The file that execvp() would run. kNotFound.
Result<std::string> find_program(const std::string& name);

// Each a sentence about the file, or about the interpreter of the script that it is. Empty: nothing
// is in the way. kInvalidArgument: no program; kSystem: it cannot be read.
Result<std::vector<std::string>> what_will_not_work(const std::string& path);

}  // namespace mercury
