// Frames that come in parts, as the path carries no whole ones any more (wire/part.h), put together
// again. Of a frame that lacks a part nothing is kept for long: it is lost, and its content comes
// again in another frame.
//
// Invariants: at most kMost frames at a time, the oldest gives way; a part counts once; who sends
// nonsense gets a frame whose checksums are wrong.
// Owner/thread: one engine. Cold; allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/wire/part.h"

namespace mercury {

class FrameParts {
 public:
  static constexpr size_t kMost = 8;
  static constexpr size_t kMostParts = 64;

  struct Whole {
    std::vector<std::byte> bytes;
    bool marked = false;  // one of its parts was
  };
  // A part of the frame with this packet number has come. Nothing: others are missing.
  std::optional<Whole> add(uint64_t number, const wire::Part& part, bool marked) {
    Frame& frame = find(number, part.total);
    frame.marked = frame.marked || marked;
    const auto seen = std::find(frame.offsets.begin(), frame.offsets.end(), part.offset);
    if (frame.bytes.size() != part.total || seen != frame.offsets.end() ||
        frame.offsets.size() == kMostParts) {
      return std::nullopt;
    }
    frame.offsets.push_back(part.offset);
    std::memcpy(frame.bytes.data() + part.offset, part.bytes.data(), part.bytes.size());
    frame.missing -= std::min(frame.missing, part.bytes.size());
    if (frame.missing > 0) return std::nullopt;
    frame.used = false;
    return Whole{std::move(frame.bytes), frame.marked};
  }

 private:
  struct Frame {
    bool used = false;
    bool marked = false;
    uint64_t number = 0;
    size_t missing = 0;
    std::vector<std::byte> bytes;
    std::vector<uint16_t> offsets;
  };

  Frame& find(uint64_t number, uint16_t total) {
    for (Frame& frame : frames_) {
      if (frame.used && frame.number == number) return frame;
    }
    Frame& fresh = frames_[next_];
    next_ = (next_ + 1) % kMost;
    fresh.used = true;
    fresh.marked = false;
    fresh.number = number;
    fresh.missing = total;
    fresh.bytes.assign(total, std::byte{0});
    fresh.offsets.clear();
    return fresh;
  }

  std::array<Frame, kMost> frames_;
  size_t next_ = 0;
};

}  // namespace mercury
