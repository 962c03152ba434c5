// The seals of a session (wire/seal.h): both ends derive their keys from the job's key and from all
// that stands in HELLO and HELLO_ACK, session numbers, features and max_udp_payload included. So a
// session has keys of its own in each direction, as long as either side's nonce is new; and whoever
// alters anything of the handshake is heard by neither side: HELLO_ACK carries a confirmation of
// all, and the first sealed frame is the asking side's.
//
// Cold. Owner/thread: pure functions, any thread; seals are their session's engine's.
#pragma once

#include <cstddef>
#include <span>

#include "transport/wire/header.h"
#include "transport/wire/hello.h"
#include "transport/wire/part.h"
#include "transport/wire/seal.h"

namespace mercury {

struct FrameKeys {
  wire::Proof confirmation{};  // HELLO_ACK's
  wire::SealSecret asking{};   // of frames from the side that said HELLO
  wire::SealSecret answering{};
};

// `hello` and `answer` are the bodies as they travel, of HELLO_ACK the first wire::kHelloAckBytes.
FrameKeys derive_frame_keys(const wire::Key& key, std::span<const std::byte> hello,
                            std::span<const std::byte> answer);
// Leaves nothing of them in memory.
void wipe(FrameKeys& keys) noexcept;

// Of one session. Out of line and by value, so that frames without seals take no more than a
// branch.
class Seals {
 public:
  // `passive`: of the side that said HELLO_ACK.
  Seals(const FrameKeys& keys, bool passive)
      : out_(passive ? keys.answering : keys.asking), in_(passive ? keys.asking : keys.answering) {}

  // Writes the seal of a frame that this side sends behind its header, which has `header_bytes` and
  // is written. `payload` is what travels behind the seal; `piece` is 0 but of parts (wire/part.h).
  [[gnu::cold, gnu::noinline]] void seal(uint64_t number, size_t header_bytes, std::byte* frame,
                                         std::span<const std::byte> payload,
                                         uint32_t piece = 0) noexcept;
  // Whether a frame that arrived is the peer's. `body` is what stands behind its header: the seal,
  // then the payload.
  [[gnu::cold, gnu::noinline]] bool fits(uint64_t number, size_t header_bytes,
                                         std::span<const std::byte> body,
                                         uint32_t piece = 0) noexcept;
  // The same of a decoded frame of any type.
  bool fits(const wire::Header& header, std::span<const std::byte> body) noexcept {
    return fits(header.packet_number, wire::header_bytes(header.type), body,
                wire::seal_piece(header, body));
  }

 private:
  wire::FrameSeal out_;
  wire::FrameSeal in_;
};

}  // namespace mercury
