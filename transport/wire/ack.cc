#include "transport/wire/ack.h"

#include <algorithm>
#include <cstring>

#include "transport/wire/be.h"

namespace mercury::wire {
namespace {

struct Head {
  Be64 largest;
  Be32 delay_us;
  uint8_t refused;
  uint8_t count;
  Be16 marked;
};
struct Range {
  Be32 length_minus_1;
  Be32 missing_minus_1;
};
struct RefusedRange {
  Be32 taken_above;
  Be32 length_minus_1;
};
static_assert(sizeof(Head) == 16 && sizeof(Range) == 8 && sizeof(RefusedRange) == 8);
static_assert(kMaxAckRanges < 256 && kMaxRefusedRanges < 256);
constexpr uint64_t kMost = ~uint32_t{0};

// False: they cannot be said.
bool encode_refused(const Ack& ack, std::byte* out) noexcept {
  uint64_t above = ack.ranges[0].last;  // the next number that a range may end with
  for (uint16_t i = 0; i < ack.refused; ++i) {
    const AckRange& range = ack.refused_ranges[i];
    if (range.last > above || range.first > range.last) return false;
    if (above - range.last > kMost || range.last - range.first > kMost) return false;
    const RefusedRange wire{Be32(static_cast<uint32_t>(above - range.last)),
                            Be32(static_cast<uint32_t>(range.last - range.first))};
    std::memcpy(out + i * sizeof wire, &wire, sizeof wire);
    if (range.first == 0 && i + 1 < ack.refused) return false;
    above = range.first - 1;
  }
  return true;
}

bool decode_refused(std::span<const std::byte> body, Ack& ack) noexcept {
  uint64_t above = ack.ranges[0].last;
  for (uint16_t i = 0; i < ack.refused; ++i) {
    RefusedRange wire;
    std::memcpy(&wire, body.data() + i * sizeof wire, sizeof wire);
    if (wire.taken_above.value() > above) return false;
    const uint64_t last = above - wire.taken_above.value();
    if (wire.length_minus_1.value() > last) return false;
    ack.refused_ranges[i] = {last - wire.length_minus_1.value(), last};
    if (i + 1 == ack.refused) break;
    if (ack.refused_ranges[i].first == 0) return false;
    above = ack.refused_ranges[i].first - 1;
  }
  return true;
}

}  // namespace

size_t encode(const Ack& ack, std::span<std::byte> out) noexcept {
  if (ack.count == 0 || ack.refused > kMaxRefusedRanges) return 0;
  if (out.size() < ack_bytes(1, ack.refused)) return 0;
  const size_t room = out.size() - ack_bytes(0, ack.refused) + ack_bytes(0);
  const uint16_t most = std::min<uint16_t>(ack.count, kMaxAckRanges);
  uint16_t count = 0;
  uint64_t below = 0;  // first number of the range before
  for (; count < most && ack_bytes(count + 1u) <= room; ++count) {
    AckRange range = ack.ranges[count];
    if (range.first > range.last) break;
    if (range.last - range.first > kMost) range.first = range.last - kMost;
    if (count > 0) {
      const uint64_t missing_minus_1 = below - range.last - 2;
      if (missing_minus_1 > kMost) break;
      const Be32 missing(static_cast<uint32_t>(missing_minus_1));
      std::memcpy(out.data() + ack_bytes(count) - sizeof missing, &missing, sizeof missing);
    }
    const Range wire{Be32(static_cast<uint32_t>(range.last - range.first)), Be32(0)};
    std::memcpy(out.data() + ack_bytes(count), &wire, sizeof wire);
    below = range.first;
  }
  if (count == 0) return 0;
  if (ack.refused != 0 && !encode_refused(ack, out.data() + ack_bytes(count))) return 0;
  const Head head{Be64(ack.ranges[0].last), Be32(ack.delay_us), static_cast<uint8_t>(ack.refused),
                  static_cast<uint8_t>(count), Be16(ack.marked)};
  std::memcpy(out.data(), &head, sizeof head);
  return ack_bytes(count, ack.refused);
}

bool decode(std::span<const std::byte> body, Ack& ack) noexcept {
  Head head;
  if (body.size() < sizeof head) return false;
  std::memcpy(&head, body.data(), sizeof head);
  ack.count = head.count;
  ack.refused = head.refused;
  ack.delay_us = head.delay_us.value();
  ack.marked = head.marked.value();
  if (ack.count == 0 || ack.count > kMaxAckRanges || ack.refused > kMaxRefusedRanges ||
      body.size() != ack_bytes(ack.count, ack.refused)) {
    return false;
  }
  uint64_t last = head.largest.value();
  for (uint16_t i = 0; i < ack.count; ++i) {
    Range wire;
    std::memcpy(&wire, body.data() + ack_bytes(i), sizeof wire);
    const uint64_t length_minus_1 = wire.length_minus_1.value();
    if (length_minus_1 > last) return false;
    ack.ranges[i] = {last - length_minus_1, last};
    if (i + 1 == ack.count) break;
    const uint64_t down = wire.missing_minus_1.value() + uint64_t{2};
    if (down > ack.ranges[i].first) return false;
    last = ack.ranges[i].first - down;
  }
  return ack.refused == 0 || decode_refused(body.subspan(ack_bytes(ack.count)), ack);
}

}  // namespace mercury::wire
