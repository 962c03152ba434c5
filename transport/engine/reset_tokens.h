// By what a peer knows that this host does not know a session any more, because it was started
// again: a keyed hash of the session's number here and of the peer's address, told to the peer when
// the session opened.
//
// Each life of a host has a key of its own, and the next one knows it. Peers are told what this
// life's key says; whoever sends frames of unknown sessions is shown what the last life's said, of
// which no session is left. So nobody learns what would end a session, neither by asking nor by
// reading the answers.
//
// An answer goes to whoever is written as a frame's sender: none is larger than the frame, RESET is
// not answered, and a second has kMost of them. What is told to one address is good for that
// address alone.
//
// Paper: RFC 9000 section 10.3 (stateless reset; its keys are static, which is the oracle of
// section 21.11).
// Owner/thread: one engine. Cold.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "transport/base/endpoint.h"
#include "transport/engine/rate_limit.h"

namespace mercury {

using ResetKey = std::array<unsigned char, 16>;
ResetKey reset_key_of(uint64_t seed);  // random

// Secret.
struct ResetKeys {
  std::optional<ResetKey> own;   // none, as nobody will know it: peers are told nothing
  std::optional<ResetKey> last;  // of the life before; none: nobody is answered
};

class ResetTokens {
 public:
  static constexpr uint64_t kMost = 256;  // RESETs in a second, and at once

  explicit ResetTokens(const ResetKeys& keys) : keys_(keys) {}
  // What the peer of a session is told.
  std::optional<uint64_t> own(uint32_t session, const Endpoint& peer) const noexcept;
  // What is said to `peer` of a session that is not known here; or nothing.
  std::optional<uint64_t> answer(uint32_t session, const Endpoint& peer, uint64_t now_ns) noexcept;

 private:
  const ResetKeys keys_;
  RateLimit<kMost> answers_;
};

}  // namespace mercury
