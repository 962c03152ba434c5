// What a datagram's header says in an exchange of gradients: PUSH and RESULT.
//
// PUSH: `sender` is the worker's rank and `incarnation` its incarnation; kFlagInPart says that it
// wants its own part of the sum: if all do, a RESULT outside it comes without elements.
// RESULT: `sender` counts the contributors; kFlagPartial says that who they are stands before
// the elements (contributors.h); without it all workers contributed.
// Elements in a payload are little-endian, whole, and of one tensor.
//
// The header's words are round, tensor and chunk, its half word the sender, its last word the
// incarnation; docs/protocol.md has the picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "scheduler/terms/chunk.h"
#include "transport/base/counters.h"
#include "transport/wire/header.h"

namespace mercury {

inline constexpr wire::FrameType kPushFrame =
    wire::FrameType::kDatagram0;  // of a worker's gradient
inline constexpr wire::FrameType kResultFrame = wire::FrameType::kDatagram1;  // of the sum
inline constexpr uint16_t kFlagPartial = wire::kFlagService;                  // of a RESULT
inline constexpr uint16_t kFlagInPart = wire::kFlagService;                   // of a PUSH

struct ChunkHeader {
  Round round;
  TensorId tensor;
  ChunkIndex chunk;
  uint16_t priority = 0;
  uint16_t sender = 0;
  uint32_t incarnation = 0;

  static ChunkHeader of(const wire::Header& header) noexcept {
    return {Round(header.words[0]), TensorId(header.words[1]), ChunkIndex(header.words[2]),
            header.priority,        header.half_word,          header.last_word};
  }
  void write(wire::Header& header) const noexcept {
    header.words[0] = round.value;
    header.words[1] = tensor.value;
    header.words[2] = chunk.value;
    header.priority = priority;
    header.half_word = sender;
    header.last_word = incarnation;
  }
};

// Counts a frame whose payload nobody wants: as `why`, or kDropPayloadCrc. True: its payload is as
// it was sent, so it has arrived, and its sender need not try again. Whoever adds or copies a
// payload finds out as it does; here it is asked so that 64 bits, and not the header's 32 alone,
// stand between a forger and what is believed of a frame.
[[gnu::cold]] bool drop_unread(Counters& counters, Counter why, const wire::Header& header,
                               std::span<const std::byte> payload) noexcept;

}  // namespace mercury
