#include "shim/proof/secret.h"

#include <sodium.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "transport/wire/seal.h"

namespace mercury {
namespace {

// Each use of the hash begins with its own word, so that no proof can serve as another.
constexpr std::string_view kKeyDomain = "mercury job key";
constexpr std::string_view kHelloDomain = "mercury hello";
constexpr std::string_view kAckDomain = "mercury hello ack";

// One BLAKE2b computation. libsodium's generic hash needs no sodium_init (it draws no randomness,
// and without init it runs the portable code); its calls fail only for lengths out of range, and
// these are constants.
class Hash {
 public:
  explicit Hash(std::span<const uint8_t> key) {
    crypto_generichash_init(&state_, key.empty() ? nullptr : key.data(), key.size(), kBytes);
  }
  ~Hash() { sodium_memzero(&state_, sizeof state_); }  // it holds what was added last
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  Hash& add(std::string_view text) {
    return add(std::as_bytes(std::span(text.data(), text.size())));
  }
  Hash& add(std::span<const std::byte> bytes) {
    crypto_generichash_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()),
                              bytes.size());
    return *this;
  }
  std::array<uint8_t, 32> done() {
    std::array<uint8_t, kBytes> out{};
    crypto_generichash_final(&state_, out.data(), out.size());
    return out;
  }

 private:
  static constexpr size_t kBytes = 32;
  crypto_generichash_state state_{};
};

}  // namespace

JobKey derive_job_key(std::string_view job, std::string_view secret) {
  // The name's length separates it from the secret: "ab" + "c" is not "a" + "bc".
  const auto length = static_cast<uint8_t>(job.size() < 255 ? job.size() : 255);
  return Hash({})
      .add(kKeyDomain)
      .add(std::as_bytes(std::span(&length, 1)))
      .add(job)
      .add(secret)
      .done();
}

bool same_key(const JobKey& a, const JobKey& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

namespace {

// The key of a job without one is that of its name alone.
bool has_secret(std::string_view job, const JobKey& key) {
  return !same_key(key, derive_job_key(job, ""));
}

}  // namespace

uint32_t seal_features(Authentication how, std::string_view job, const JobKey& key) {
  if (how == Authentication::kOff || !wire::can_seal() || !has_secret(job, key)) return 0;
  const uint32_t asks = how == Authentication::kEncrypted ? wire::kFeatureAsksEncryption : 0U;
  return wire::kFeatureSeals | wire::kFeatureCanEncrypt | asks;
}

Status check_seals(Authentication how, std::string_view job, const JobKey& key, uint32_t features) {
  const bool encrypted = how == Authentication::kEncrypted;
  if ((how != Authentication::kRequired && !encrypted) || !has_secret(job, key)) return {};
  const std::string kind = encrypted ? "encrypted" : "authenticated";
  const std::string rule =
      " (authentication = \"" + std::string(encrypted ? "encrypted" : "required") + "\"), and ";
  if (!wire::can_seal()) {
    return Error(Errc::kUnsupported, "this host takes only " + kind + " frames" + rule +
                                         "its own CPU lacks what they need");
  }
  const uint32_t needed =
      encrypted ? wire::kFeatureSeals | wire::kFeatureCanEncrypt : wire::kFeatureSeals;
  if ((features & needed) == needed) return {};
  return Error(Errc::kUnsupported,
               "only " + kind + " frames are taken here" + rule +
                   "the other host does not offer them: its release is older, or it has them off");
}

wire::Nonce draw_nonce(const std::function<uint64_t()>& random) {
  const uint64_t words[2] = {random(), random()};
  wire::Nonce nonce;
  static_assert(sizeof words == sizeof nonce);
  std::memcpy(nonce.data(), words, sizeof words);
  return nonce;
}

wire::Proof prove(const JobKey& key, const wire::Hello& hello) {
  wire::Hello covered = hello;
  covered.session = 0;
  covered.max_udp_payload = 0;
  covered.proof = {};
  std::array<std::byte, wire::kMaxHandshakeBytes> body{};
  const size_t bytes = wire::encode(covered, body);
  return Hash(key).add(kHelloDomain).add(std::span(body).first(bytes)).done();
}

wire::Proof prove(const JobKey& key, const wire::Nonce& nonce, const wire::HelloAck& ack) {
  wire::HelloAck covered = ack;
  covered.session = 0;
  covered.max_udp_payload = 0;
  covered.proof = {};
  covered.confirmation.reset();
  std::array<std::byte, wire::kMaxHandshakeBytes> body{};
  const size_t bytes = wire::encode(covered, body);
  return Hash(key)
      .add(kAckDomain)
      .add(std::as_bytes(std::span(nonce)))
      .add(std::span(body).first(bytes))
      .done();
}

bool verify(const JobKey& key, const wire::Hello& hello) {
  const wire::Proof expected = prove(key, hello);
  return sodium_memcmp(expected.data(), hello.proof.data(), expected.size()) == 0;
}

bool verify(const JobKey& key, const wire::Nonce& nonce, const wire::HelloAck& ack) {
  const wire::Proof expected = prove(key, nonce, ack);
  return sodium_memcmp(expected.data(), ack.proof.data(), expected.size()) == 0;
}

}  // namespace mercury
