#include "transport/engine/path_check.h"

#include <sodium.h>

#include "transport/engine/derived_key.h"

namespace mercury {

PathChallenges::PathChallenges(uint64_t seed)
    : key_(derived_key(seed, KeyPurpose::kPathChallenge)) {}

uint64_t PathChallenges::next() noexcept {
  ++drawn_;
  uint64_t data = 0;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&data),
                   reinterpret_cast<const unsigned char*>(&drawn_), sizeof drawn_, key_.data());
  return data;
}

}  // namespace mercury
