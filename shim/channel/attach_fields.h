// Reads the fields of one CBOR map, each with its range; remembers the first that is wrong. Private
// to shim/channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "transport/base/result.h"
#include "transport/base/wipe.h"

namespace mercury::attach {

// A message may have a job's secret: what it is read into, and written from, is wiped.
struct Text : std::basic_string<char, std::char_traits<char>, WipingAllocator<char>> {
  using basic_string::basic_string;
  Text(const std::string& text) : basic_string(text.data(), text.size()) {}
};
using Json = nlohmann::basic_json<std::map, std::vector, Text, bool, int64_t, uint64_t, double,
                                  WipingAllocator, nlohmann::adl_serializer,
                                  std::vector<uint8_t, WipingAllocator<uint8_t>>>;

// Parses `bytes` as one CBOR map of small depth. nlohmann recurses on nesting, so the depth is
// limited before it builds anything.
Result<Json> parse_map(std::span<const std::byte> bytes);

class Fields {
 public:
  explicit Fields(const Json& map) : map_(map) {}

  bool ok() const { return wrong_.empty(); }
  Error error() const {
    return Error(Errc::kProtocol, "attach message: field '" + wrong_ + "' is missing or wrong");
  }

  template <class T>
  T number(const char* key, uint64_t min, uint64_t max) {
    const Json* value = find(key);
    if (!value || !in_range(*value, min, max)) return static_cast<T>(fail(key));
    return static_cast<T>(value->get<uint64_t>());
  }
  int32_t signed_number(const char* key, int64_t min, int64_t max);
  bool flag(const char* key);
  bool has(const char* key) const { return find(key) != nullptr; }  // for what a minor added
  std::string text(const char* key, size_t max_bytes);
  const Json& array(const char* key, size_t max_items);
  uint64_t fail(const char* key) {
    if (wrong_.empty()) wrong_ = key;
    return 0;
  }

  static bool in_range(const Json& value, uint64_t min, uint64_t max) {
    return value.is_number_unsigned() && value.get<uint64_t>() >= min &&
           value.get<uint64_t>() <= max;
  }

 private:
  const Json* find(const char* key) const {
    const auto it = map_.find(key);
    return it == map_.end() ? nullptr : &*it;
  }
  const Json& map_;
  std::string wrong_;
};

}  // namespace mercury::attach
