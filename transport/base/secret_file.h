// The secret of a job: the first line of a file, or what the environment says.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "transport/base/result.h"

namespace mercury {

inline constexpr size_t kMaxSecretBytes = 1024;

// 1 to kMaxSecretBytes without zeros. kConfig: "expected ..., got PATH".
Result<std::string> read_secret_file(const std::string& path);
// What MERCURY_SECRET says, or else the file that MERCURY_SECRET_FILE names; "" stands for a
// variable that is not set, and for no secret. kConfig: both are set, or as above.
Result<std::string> read_secret(std::string_view secret, std::string_view file);
// The same of this process's environment.
Result<std::string> secret_of_environment();

}  // namespace mercury
