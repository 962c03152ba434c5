// The file of a secret: its first line.
#pragma once

#include <string>

#include "transport/base/result.h"

namespace mercury {

// 1 to 1,024 bytes without zeros. kConfig: "expected ..., got PATH".
Result<std::string> read_secret_file(const std::string& path);

}  // namespace mercury
