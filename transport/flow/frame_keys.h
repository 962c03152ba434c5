// The keys of a session's handshake and of its seals (wire/seal.h): both ends derive them from the
// job's key and from all that stands in HELLO and HELLO_ACK, session numbers, features and
// max_udp_payload included. So a session has keys of its own in each direction, as long as either
// side's nonce is new; and whoever alters anything of the handshake is heard by neither side:
// HELLO_ACK carries a confirmation of all, and the first frame with a tag is the asking side's.
//
// Cold. Owner/thread: pure functions, any thread; seals are their session's engine's.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

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
  ~Seals();
  Seals(const Seals&) = delete;
  Seals& operator=(const Seals&) = delete;

  // From the start: payloads, which have at most so many bytes, are encrypted, too.
  void encrypt(size_t largest_payload);
  bool encrypted() const noexcept { return encrypted_; }
  // The session has ended: nothing is opened any more.
  void forget_plain() noexcept;

  // Of each frame that this side sends, for who looks on.
  uint16_t flags() const noexcept {
    return encrypted() ? wire::kFlagSealed | wire::kFlagEncrypted : wire::kFlagSealed;
  }

  // What the CRC of the payload of a whole frame that this side sends is combined with besides.
  [[gnu::cold]] uint32_t crc_mask(uint64_t number) const noexcept {
    return encrypted() ? out_.crc_mask(number) : 0;
  }
  // Writes the seal of a frame that this side sends behind its header, which has `header_bytes` and
  // is written. `payload` stands behind the seal's place, or elsewhere; what is to travel there is
  // returned: the same, or the ciphertext, which has been written. `piece` is 0 but of parts
  // (wire/part.h).
  [[gnu::cold, gnu::noinline]] std::span<const std::byte> seal(uint64_t number, size_t header_bytes,
                                                               std::byte* frame,
                                                               std::span<const std::byte> payload,
                                                               uint32_t piece = 0) noexcept;

  // Of a frame of the peer's.
  struct Opened {
    std::span<const std::byte> payload;  // valid until the next call
    uint32_t crc_mask = 0;               // with which its CRC of the payload is combined
  };
  // Nothing: the frame is not the peer's. `body` stands behind its header: seal and payload.
  [[gnu::cold, gnu::noinline]] std::optional<Opened> open(uint64_t number, size_t header_bytes,
                                                          std::span<const std::byte> body,
                                                          uint32_t piece = 0) noexcept;
  // The same of a decoded frame of any type.
  std::optional<Opened> open(const wire::Header& header, std::span<const std::byte> body) noexcept {
    return open(header.packet_number, wire::header_bytes(header.type), body,
                wire::seal_piece(header, body));
  }
  // Whether a decoded frame is the peer's.
  bool fits(const wire::Header& header, std::span<const std::byte> body) noexcept;

 private:
  wire::FrameSeal out_;
  wire::FrameSeal in_;
  bool encrypted_ = false;
  std::vector<std::byte> plain_;  // of the frame that was opened last
};

}  // namespace mercury
