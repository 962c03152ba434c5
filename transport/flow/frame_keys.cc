#include "transport/flow/frame_keys.h"

#include <sodium.h>

#include <array>
#include <string_view>

namespace mercury {
namespace {

using Hash = std::array<uint8_t, 32>;

// Keyed BLAKE2b, as the proofs of proof/secret.cc. Each use begins with its own word, so that none
// can serve as another.
Hash hash(const Hash& key, std::string_view domain, std::span<const std::byte> first,
          std::span<const std::byte> second = {}) {
  crypto_generichash_state state;
  Hash out{};
  crypto_generichash_init(&state, key.data(), key.size(), out.size());
  const auto add = [&state](const void* data, size_t bytes) {
    crypto_generichash_update(&state, static_cast<const unsigned char*>(data), bytes);
  };
  add(domain.data(), domain.size());
  add(first.data(), first.size());
  add(second.data(), second.size());
  crypto_generichash_final(&state, out.data(), out.size());
  sodium_memzero(&state, sizeof state);
  return out;
}

}  // namespace

// A HELLO says how long it is, and an answer has one length: no two handshakes run into the same
// bytes.
FrameKeys derive_frame_keys(const wire::Key& key, std::span<const std::byte> hello,
                            std::span<const std::byte> answer) {
  const Hash handshake = hash(key, "mercury handshake", hello, answer);
  const auto all = std::as_bytes(std::span(handshake));
  return {hash(key, "mercury confirmation", all), hash(key, "mercury frames asking", all),
          hash(key, "mercury frames answering", all)};
}

void Seals::seal(uint64_t number, size_t header_bytes, std::byte* frame,
                 std::span<const std::byte> payload, uint32_t piece) noexcept {
  out_.seal(number, {frame, header_bytes}, payload, frame + header_bytes, piece);
}

// The header stands right before the seal; it is read again, as it was sealed.
bool Seals::fits(uint64_t number, size_t header_bytes, std::span<const std::byte> body,
                 uint32_t piece) noexcept {
  if (body.size() < wire::kSealBytes) return false;
  const std::byte* const seal = body.data();
  return in_.fits(number, {seal - header_bytes, header_bytes}, body.subspan(wire::kSealBytes), seal,
                  piece);
}

void wipe(FrameKeys& keys) noexcept { sodium_memzero(&keys, sizeof keys); }

}  // namespace mercury
