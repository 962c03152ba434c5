// Keys of an engine's short hashes, all drawn from its one random seed.
#pragma once

#include <sodium.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace mercury {

using ShortKey = std::array<unsigned char, crypto_shorthash_KEYBYTES>;

// Each purpose has a key of its own; 0 would be what session numbers are drawn from
// (session_table.cc).
enum class KeyPurpose : unsigned char { kHelloTable = 1, kHelloToken, kReset, kPathChallenge };

inline ShortKey derived_key(uint64_t seed, KeyPurpose purpose) {
  std::array<unsigned char, randombytes_SEEDBYTES> from{};
  std::memcpy(from.data(), &seed, sizeof seed);
  from.back() = static_cast<unsigned char>(purpose);
  ShortKey key{};
  randombytes_buf_deterministic(key.data(), key.size(), from.data());
  return key;
}

}  // namespace mercury
