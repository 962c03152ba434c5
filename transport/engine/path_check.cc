#include "transport/engine/path_check.h"

#include <sodium.h>

#include <cstring>

namespace mercury {

static_assert(sizeof(std::array<unsigned char, 16>) == crypto_shorthash_KEYBYTES);

PathChallenges::PathChallenges(uint64_t seed) : key_{} {
  std::array<unsigned char, randombytes_SEEDBYTES> from{};
  std::memcpy(from.data(), &seed, sizeof seed);
  from.back() = 4;  // others are derived from the same seed (hello_gate.cc, reset_tokens.cc)
  randombytes_buf_deterministic(key_.data(), key_.size(), from.data());
}

uint64_t PathChallenges::next() noexcept {
  ++drawn_;
  uint64_t data = 0;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&data),
                   reinterpret_cast<const unsigned char*>(&drawn_), sizeof drawn_, key_.data());
  return data;
}

}  // namespace mercury
