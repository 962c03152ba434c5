#include "transport/engine/reset_tokens.h"

#include <sodium.h>

#include <cstring>

#include "transport/engine/derived_key.h"

namespace mercury {

static_assert(sizeof(ResetKey) == crypto_shorthash_KEYBYTES);

ResetKey reset_key_of(uint64_t seed) { return derived_key(seed, KeyPurpose::kReset); }

namespace {

uint64_t token_of(const ResetKey& key, uint32_t session, const Endpoint& peer) noexcept {
  std::array<unsigned char, 22> message{};
  static_assert(sizeof session + sizeof peer.ip.bytes + sizeof peer.port == 22);
  std::memcpy(message.data(), &session, sizeof session);
  std::memcpy(message.data() + 4, peer.ip.bytes.data(), peer.ip.bytes.size());
  std::memcpy(message.data() + 20, &peer.port, sizeof peer.port);
  uint64_t hash = 0;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&hash), message.data(), message.size(),
                   key.data());
  return hash;
}

}  // namespace

std::optional<uint64_t> ResetTokens::own(uint32_t session, const Endpoint& peer) const noexcept {
  if (!keys_.own) return std::nullopt;
  return token_of(*keys_.own, session, peer);
}

std::optional<uint64_t> ResetTokens::answer(uint32_t session, const Endpoint& peer,
                                            uint64_t now_ns) noexcept {
  if (!keys_.last || !answers_.take(now_ns)) return std::nullopt;
  return token_of(*keys_.last, session, peer);
}

}  // namespace mercury
