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

// A header stands right before its body; it is read again, as it was sealed.
std::span<const std::byte> header_before(std::span<const std::byte> body, size_t header_bytes) {
  return {body.data() - header_bytes, header_bytes};
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

std::span<const std::byte> Seals::seal(uint64_t number, size_t header_bytes, std::byte* frame,
                                       std::span<const std::byte> payload,
                                       uint32_t piece) noexcept {
  std::byte* const out = frame + header_bytes;
  if (!encrypted_ || piece != 0) {
    out_.seal(number, {frame, header_bytes}, payload, out, piece);
    return payload;
  }
  out_.encrypt(number, {frame, header_bytes}, payload, out);
  return {out + wire::kSealBytes, payload.size()};
}

Seals::~Seals() { forget_plain(); }

void Seals::encrypt(size_t largest_payload) {
  encrypted_ = true;
  plain_.resize(largest_payload);
}

void Seals::forget_plain() noexcept {
  sodium_memzero(plain_.data(), plain_.size());
  plain_ = {};
}

std::optional<Seals::Opened> Seals::open(uint64_t number, size_t header_bytes,
                                         std::span<const std::byte> body, uint32_t piece) noexcept {
  if (body.size() < wire::kSealBytes) return std::nullopt;
  const std::span<const std::byte> header = header_before(body, header_bytes);
  const std::span<const std::byte> payload = body.subspan(wire::kSealBytes);
  if (!encrypted_ || piece != 0) {
    if (!in_.fits(number, header, payload, body.data(), piece)) return std::nullopt;
    return Opened{payload};
  }
  if (payload.size() > plain_.size() || !in_.decrypt(number, header, body, plain_.data())) {
    return std::nullopt;
  }
  return Opened{std::span(plain_).first(payload.size()), in_.crc_mask(number)};
}

bool Seals::fits(const wire::Header& header, std::span<const std::byte> body) noexcept {
  if (body.size() < wire::kSealBytes) return false;
  const std::span<const std::byte> head = header_before(body, wire::header_bytes(header.type));
  const uint32_t piece = wire::seal_piece(header, body);
  if (encrypted_ && piece == 0) return in_.fits_encrypted(header.packet_number, head, body);
  return in_.fits(header.packet_number, head, body.subspan(wire::kSealBytes), body.data(), piece);
}

void wipe(FrameKeys& keys) noexcept { sodium_memzero(&keys, sizeof keys); }

}  // namespace mercury
