#include "transport/flow/frame_tag.h"

#include <sodium.h>

#include <array>
#include <cstring>
#include <string_view>

namespace mercury {

// A keyed BLAKE2b hash, as the proofs of proof/secret.cc, in a domain of its own.
FrameTag derive_frame_tag(const wire::Key& key, const wire::Nonce& asked,
                          const wire::Nonce& answered) {
  constexpr std::string_view kDomain = "mercury frame tag";
  std::array<unsigned char, kDomain.size() + 2 * sizeof(wire::Nonce)> input{};
  std::memcpy(input.data(), kDomain.data(), kDomain.size());
  std::memcpy(input.data() + kDomain.size(), asked.data(), asked.size());
  std::memcpy(input.data() + kDomain.size() + asked.size(), answered.data(), answered.size());
  std::array<unsigned char, 32> hash{};
  crypto_generichash(hash.data(), hash.size(), input.data(), input.size(), key.data(), key.size());
  FrameTag tag;
  std::memcpy(&tag.header, hash.data(), sizeof tag.header);
  std::memcpy(&tag.payload, hash.data() + sizeof tag.header, sizeof tag.payload);
  return tag;
}

}  // namespace mercury
