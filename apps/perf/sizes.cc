#include "apps/perf/sizes.h"

#include <algorithm>
#include <string>

#include "transport/base/quantity.h"

namespace mercury::perf {
namespace {

constexpr uint64_t kFactor = 4;
constexpr uint64_t kLargestSize = uint64_t{1} << 40;  // of a tensor; and no factor overflows

Result<uint64_t> parse_size(std::string_view text) {
  Result<uint64_t> bytes = parse_bytes(text);
  if (!bytes || (*bytes > 0 && *bytes <= kLargestSize)) return bytes;
  return Error(Errc::kInvalidArgument,
               "'" + std::string(text) + "' is not a size from 1 byte to 1 TiB");
}

Status add_range(std::string_view text, std::vector<uint64_t>& sizes) {
  const size_t dots = text.find("..");
  const Result<uint64_t> first = parse_size(text.substr(0, dots));
  if (!first) return first.error();
  sizes.push_back(*first);
  if (dots == std::string_view::npos) return {};
  const Result<uint64_t> last = parse_size(text.substr(dots + 2));
  if (!last) return last.error();
  if (*last < *first) {
    return Error(Errc::kInvalidArgument, "'" + std::string(text) + "' ends before it begins");
  }
  for (uint64_t size = *first * kFactor; size < *last; size *= kFactor) sizes.push_back(size);
  sizes.push_back(*last);
  return {};
}

}  // namespace

Result<std::vector<uint64_t>> parse_sizes(std::string_view text) {
  std::vector<uint64_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (Status added = add_range(text.substr(begin, end - begin), sizes); !added) {
      return added.error();
    }
    begin = end + 1;
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace mercury::perf
