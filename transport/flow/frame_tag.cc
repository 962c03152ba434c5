#include "transport/flow/frame_tag.h"

#include <sodium.h>

#include <array>
#include <cstring>
#include <string_view>

namespace mercury {
namespace {

// A keyed BLAKE2b hash, as the proofs of proof/secret.cc, in domains of their own.
std::array<unsigned char, 32> hash_of(std::string_view domain, const wire::Key& key,
                                      const wire::Nonce& asked, const wire::Nonce& answered) {
  constexpr size_t kMostDomainBytes = 32;
  std::array<unsigned char, kMostDomainBytes + 2 * sizeof(wire::Nonce)> input{};
  std::memcpy(input.data(), domain.data(), domain.size());
  std::memcpy(input.data() + domain.size(), asked.data(), asked.size());
  std::memcpy(input.data() + domain.size() + asked.size(), answered.data(), answered.size());
  std::array<unsigned char, 32> hash{};
  crypto_generichash(hash.data(), hash.size(), input.data(),
                     domain.size() + asked.size() + answered.size(), key.data(), key.size());
  return hash;
}

}  // namespace

FrameTag derive_frame_tag(const wire::Key& key, const wire::Nonce& asked,
                          const wire::Nonce& answered) {
  const std::array<unsigned char, 32> hash = hash_of("mercury frame tag", key, asked, answered);
  FrameTag tag;
  std::memcpy(&tag.header, hash.data(), sizeof tag.header);
  std::memcpy(&tag.payload, hash.data() + sizeof tag.header, sizeof tag.payload);
  return tag;
}

ResetMasks derive_reset_masks(const wire::Key& key, const wire::Nonce& asked,
                              const wire::Nonce& answered) {
  const std::array<unsigned char, 32> hash = hash_of("mercury reset token", key, asked, answered);
  ResetMasks masks;
  std::memcpy(&masks.asking, hash.data(), sizeof masks.asking);
  std::memcpy(&masks.answering, hash.data() + sizeof masks.asking, sizeof masks.answering);
  return masks;
}

}  // namespace mercury
