#include "shim/channel/attach_fields.h"

#include <exception>

#include "transport/base/json_depth.h"

namespace mercury::attach {
namespace {

constexpr int kMaxDepth = 4;

}  // namespace

Result<Json> parse_map(std::span<const std::byte> bytes) {
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto* last = first + bytes.size();
  try {
    JsonDepth<Json> depth(kMaxDepth);
    if (Json::sax_parse(first, last, &depth, Json::input_format_t::cbor)) {
      Json value = Json::from_cbor(first, last, true, false);
      if (value.is_object()) return value;
    }
  } catch (const std::exception&) {  // a length beyond what a container can hold
  }
  return Error(Errc::kProtocol, "attach message: not a CBOR map");
}

int32_t Fields::signed_number(const char* key, int64_t min, int64_t max) {
  const Json* value = find(key);
  if (!value || !value->is_number_integer() ||
      (value->is_number_unsigned() && !in_range(*value, 0, static_cast<uint64_t>(max)))) {
    return static_cast<int32_t>(fail(key));
  }
  const auto number = value->get<int64_t>();
  if (number < min || number > max) return static_cast<int32_t>(fail(key));
  return static_cast<int32_t>(number);
}

bool Fields::flag(const char* key) {
  const Json* value = find(key);
  if (!value || !value->is_boolean()) return fail(key) != 0;
  return value->get<bool>();
}

std::string Fields::text(const char* key, size_t max_bytes) {
  const Json* value = find(key);
  if (!value || !value->is_string() || value->get_ref<const Text&>().size() > max_bytes) {
    fail(key);
    return {};
  }
  return std::string(value->get_ref<const Text&>());
}

const Json& Fields::array(const char* key, size_t max_items) {
  static const Json kEmpty = Json::array();
  const Json* value = find(key);
  if (!value || !value->is_array() || value->size() > max_items) {
    fail(key);
    return kEmpty;
  }
  return *value;
}

}  // namespace mercury::attach
