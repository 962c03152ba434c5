// Frames that come in parts, as the path carries no whole ones any more (wire/part.h), put together
// again. Of a frame that lacks a part nothing is kept for long: it is lost, and its content comes
// again in another frame.
//
// Invariants: at most kMost frames at a time, and that with the lowest number gives way, so that
// parts of older ones, repeated by whoever saw them, take no newer one's place; a part counts once;
// who sends nonsense gets a frame whose checksums are wrong.
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
    Frame* const found = find(number, part.total);
    if (found == nullptr) return std::nullopt;
    Frame& frame = *found;
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

  // Null: it is older than all that are kept.
  Frame* find(uint64_t number, uint16_t total) {
    Frame* place = nullptr;  // a free one, else the lowest number's
    for (Frame& frame : frames_) {
      if (frame.used && frame.number == number) return &frame;
      const bool before = place == nullptr || (place->used && frame.number < place->number);
      if (before || !frame.used) place = &frame;
    }
    if (place->used && place->number > number) return nullptr;
    place->used = true;
    place->marked = false;
    place->number = number;
    place->missing = total;
    place->bytes.assign(total, std::byte{0});
    place->offsets.clear();
    return place;
  }

  std::array<Frame, kMost> frames_;
};

}  // namespace mercury
