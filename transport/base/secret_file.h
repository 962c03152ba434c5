// The file of a secret: its first line.
#pragma once

#include <cstddef>
#include <string>

#include "transport/base/result.h"

namespace mercury {

inline constexpr size_t kMaxSecretBytes = 1024;

// 1 to kMaxSecretBytes without zeros. kConfig: "expected ..., got PATH".
Result<std::string> read_secret_file(const std::string& path);

}  // namespace mercury
