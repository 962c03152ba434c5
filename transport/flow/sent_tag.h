// What a packet carried, in the words of who sent it: kept until it is acknowledged or lost, and
// then given back. A datagram's words are the service's, all others' the session's.
#pragma once

#include <cstdint>

#include "transport/wire/header.h"

namespace mercury {

// Beside that, which of several paths it took: 0 unless it is said (on_path).
// In two words of 64 bits: it is copied twice for each packet, and a copy of narrower stores by
// wider loads would wait for them.
class SentTag {
 public:
  constexpr SentTag() : SentTag(wire::FrameType::kPing, 0, 0, 0, 0) {}
  constexpr SentTag(wire::FrameType type, uint16_t half_word, uint32_t word0, uint32_t word1,
                    uint32_t word2)
      : first_(static_cast<uint8_t>(type) | uint64_t{half_word} << 16 | uint64_t{word0} << 32),
        second_(word1 | uint64_t{word2} << 32) {}

  constexpr wire::FrameType type() const noexcept {
    return static_cast<wire::FrameType>(first_ & 0xff);
  }
  constexpr uint8_t path() const noexcept { return static_cast<uint8_t>(first_ >> 8); }
  constexpr SentTag on_path(uint8_t path) const noexcept {
    SentTag tag = *this;
    tag.first_ |= uint64_t{path} << 8;  // of a tag that does not say it yet
    return tag;
  }
  constexpr uint16_t half_word() const noexcept { return static_cast<uint16_t>(first_ >> 16); }
  constexpr uint32_t word0() const noexcept { return static_cast<uint32_t>(first_ >> 32); }
  constexpr uint32_t word1() const noexcept { return static_cast<uint32_t>(second_); }
  constexpr uint32_t word2() const noexcept { return static_cast<uint32_t>(second_ >> 32); }

 private:
  uint64_t first_;
  uint64_t second_;
};

}  // namespace mercury
