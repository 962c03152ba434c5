// The sizes of a sweep, as people write them: "4KB", "4,64,1MiB", "4..8GiB" (each four times the
// one before, and the last).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "transport/base/result.h"

namespace mercury::perf {

// Ascending bytes, each once, none 0. Error: kInvalidArgument.
Result<std::vector<uint64_t>> parse_sizes(std::string_view text);

}  // namespace mercury::perf
