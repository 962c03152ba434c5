#include "apps/perf/times.h"

#include <string>

#include "transport/base/quantity.h"

namespace mercury::perf {

Result<uint64_t> parse_some_time(std::string_view text) {
  constexpr uint64_t kLongest = 3'600'000'000'000;
  Result<uint64_t> ns = parse_ns(text);
  if (!ns || (*ns > 0 && *ns <= kLongest)) return ns;
  return Error(Errc::kInvalidArgument, "'" + std::string(text) + "' is not from 1ns to 3600s");
}

}  // namespace mercury::perf
