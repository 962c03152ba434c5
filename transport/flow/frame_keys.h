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

#include "transport/wire/hello.h"
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

struct Seals {
  // `passive`: of the side that said HELLO_ACK.
  Seals(const FrameKeys& keys, bool passive)
      : out(passive ? keys.answering : keys.asking), in(passive ? keys.asking : keys.answering) {}
  // Whether a frame that arrived, as wire::decode gave it, is the peer's. Then its seal is taken
  // off `payload`; the header's payload_bytes still counts it.
  bool open(const wire::Header& header, std::span<const std::byte>& payload) noexcept;

  wire::FrameSeal out;  // frames that this side sends
  wire::FrameSeal in;   // and those of its peer
};

}  // namespace mercury
