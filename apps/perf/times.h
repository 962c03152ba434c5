// How long a repeat is, on a command line.
#pragma once

#include <cstdint>
#include <string_view>

#include "transport/base/result.h"

namespace mercury::perf {

// Nanoseconds of "200ms": from 1 ns to an hour. Error: kInvalidArgument.
Result<uint64_t> parse_some_time(std::string_view text);

}  // namespace mercury::perf
