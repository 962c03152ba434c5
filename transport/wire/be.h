// Big-endian numbers for wire structs: byte arrays, so alignment 1 and no padding; one bswap each.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace mercury::wire {

template <class Number>
class Be {
 public:
  Be() = default;
  explicit constexpr Be(Number value)
      : bytes_(std::bit_cast<std::array<uint8_t, sizeof(Number)>>(swap(value))) {}
  constexpr Number value() const { return swap(std::bit_cast<Number>(bytes_)); }

 private:
  static constexpr Number swap(Number v) {
    static_assert(std::endian::native == std::endian::little,
                  "Mercury runs on little-endian hosts");
    if constexpr (sizeof(Number) == 2) return static_cast<Number>(__builtin_bswap16(v));
    if constexpr (sizeof(Number) == 4) return __builtin_bswap32(v);
    if constexpr (sizeof(Number) == 8) return __builtin_bswap64(v);
  }
  std::array<uint8_t, sizeof(Number)> bytes_;
};

using Be16 = Be<uint16_t>;
using Be32 = Be<uint32_t>;
using Be64 = Be<uint64_t>;

static_assert(sizeof(Be64) == 8 && alignof(Be64) == 1);
static_assert(Be32(0x01020304).value() == 0x01020304);

}  // namespace mercury::wire
