// Payloads of the frames of streams (flow/stream/streams.h): byte streams beside the control
// stream. All begin with 16 bytes of one shape.
//
// +---------------------------------------------------------------+ 0
// |               stream (0 is the control stream)                |
// +-------------------------------+-------------------------------+ 4
// |   STREAM: flags, RESET: code  |             zero              |
// +-------------------------------+-------------------------------+ 8
// |  STREAM: offset of the first byte; CREDIT: limit;             |
// |  RESET: how many bytes the sender has ever sent               |
// +---------------------------------------------------------------+ 16
// |  STREAM: bytes (none only with the flag `end`)                |
//
// The side that sent HELLO opens the odd streams, 1, 3, 5, the other side the even ones, 2, 4, 6,
// each in order. CREDIT's limit is the offset that the stream may not reach beyond; of stream 0,
// whose own window is fixed, it is how many streams the peer may have opened in all.
//
// Paper: RFC 9000 sections 2 to 4 (streams, final size, limits that only grow, offsets in place of
// window updates); RFC 9113 section 5.1.1 (odd and even numbers, one reset for both directions).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "transport/base/result.h"

namespace mercury::wire {

inline constexpr size_t kStreamHeaderBytes = 16;
// No stream ends behind this, so that sums of offsets do not wrap (as in RFC 9000).
inline constexpr uint64_t kMaxStreamBytes = (uint64_t{1} << 62) - 1;
// What either side may send before it has heard of any credit: so much of a stream, so many
// streams. Both are part of the protocol, so that a stream's first bytes need no answer.
inline constexpr uint32_t kInitialStreamBytes = 16 * 1024;
inline constexpr uint32_t kInitialStreams = 16;

struct StreamPiece {
  uint32_t stream = 0;
  bool end = false;  // nothing comes behind these bytes
  uint64_t offset = 0;
  std::span<const std::byte> bytes;
};
struct StreamCredit {
  uint32_t stream = 0;  // 0: `limit` counts streams
  uint64_t limit = 0;
};
struct StreamReset {
  uint32_t stream = 0;
  Errc code = Errc::kClosed;
  uint64_t sent_bytes = 0;
};

// Each writes kStreamHeaderBytes; a piece's bytes follow at out + kStreamHeaderBytes.
void encode_stream(uint32_t stream, bool end, uint64_t offset, std::byte* out) noexcept;
void encode(const StreamCredit& credit, std::byte* out) noexcept;
void encode(const StreamReset& reset, std::byte* out) noexcept;
// nullopt: malformed. Unknown flags are ignored; a code that is unknown here reads as kPeerLeft.
std::optional<StreamPiece> decode_stream(std::span<const std::byte> payload) noexcept;
std::optional<StreamCredit> decode_stream_credit(std::span<const std::byte> payload) noexcept;
std::optional<StreamReset> decode_stream_reset(std::span<const std::byte> payload) noexcept;

}  // namespace mercury::wire
