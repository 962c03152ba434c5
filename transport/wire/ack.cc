#include "transport/wire/ack.h"

#include <algorithm>
#include <cstring>

#include "transport/wire/be.h"

namespace mercury::wire {
namespace {

struct Head {
  Be64 largest;
  Be32 delay_us;
  Be16 count;
  Be16 marked;
};
struct Range {
  Be32 length_minus_1;
  Be32 missing_minus_1;
};
static_assert(sizeof(Head) == 16 && sizeof(Range) == 8);
constexpr uint64_t kMost = ~uint32_t{0};

}  // namespace

size_t encode(const Ack& ack, std::span<std::byte> out) noexcept {
  if (out.size() < ack_bytes(1) || ack.count == 0) return 0;
  const uint16_t most = std::min<uint16_t>(ack.count, kMaxAckRanges);
  uint16_t count = 0;
  uint64_t below = 0;  // first number of the range before
  for (; count < most && ack_bytes(count + 1u) <= out.size(); ++count) {
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
  const Head head{Be64(ack.ranges[0].last), Be32(ack.delay_us), Be16(count), Be16(ack.marked)};
  std::memcpy(out.data(), &head, sizeof head);
  return ack_bytes(count);
}

bool decode(std::span<const std::byte> body, Ack& ack) noexcept {
  Head head;
  if (body.size() < sizeof head) return false;
  std::memcpy(&head, body.data(), sizeof head);
  ack.count = head.count.value();
  ack.delay_us = head.delay_us.value();
  ack.marked = head.marked.value();
  if (ack.count == 0 || ack.count > kMaxAckRanges || body.size() != ack_bytes(ack.count)) {
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
  return true;
}

}  // namespace mercury::wire
