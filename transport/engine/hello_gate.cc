#include "transport/engine/hello_gate.h"

#include <sodium.h>

#include <cstring>

#include "transport/engine/derived_key.h"

namespace mercury {
namespace {

constexpr uint64_t kEpochNs = 30'000'000'000;

// Bytes one after another, for a hash.
template <size_t kBytes>
struct Message {
  std::array<unsigned char, kBytes> bytes{};
  size_t used = 0;
  void add(const void* data, size_t count) noexcept {
    std::memcpy(bytes.data() + used, data, count);
    used += count;
  }
  uint64_t hash(const ShortKey& key) const noexcept {
    uint64_t hash = 0;
    crypto_shorthash(reinterpret_cast<unsigned char*>(&hash), bytes.data(), used, key.data());
    return hash;
  }
};

}  // namespace

HelloHash::HelloHash(uint64_t seed) : key_(derived_key(seed, KeyPurpose::kHelloTable)) {}

size_t HelloHash::operator()(const HelloKey& key) const noexcept {
  Message<24> message;
  message.add(key.remote.ip.bytes.data(), key.remote.ip.bytes.size());
  message.add(&key.remote.port, sizeof key.remote.port);
  message.add(&key.session, sizeof key.session);
  return message.hash(key_);
}

HelloGate::HelloGate(uint64_t seed) : key_(derived_key(seed, KeyPurpose::kHelloToken)) {}

uint64_t HelloGate::token_of(uint64_t epoch, const Endpoint& remote,
                             const wire::Hello& hello) const noexcept {
  Message<48> message;
  message.add(&epoch, sizeof epoch);
  message.add(remote.ip.bytes.data(), remote.ip.bytes.size());
  message.add(&remote.port, sizeof remote.port);
  message.add(&hello.session, sizeof hello.session);
  message.add(hello.nonce.data(), hello.nonce.size());
  const uint64_t token = message.hash(key_);
  return token == 0 ? 1 : token;
}

bool HelloGate::may_answer(const Endpoint& remote, HelloKind kind, uint64_t now_ns) noexcept {
  Message<16> address;
  address.add(remote.ip.bytes.data(), remote.ip.bytes.size());
  Answers& answers = answers_[static_cast<size_t>(kind)];
  return answers.shares[address.hash(key_) % kShares].take(now_ns) && answers.all.take(now_ns);
}

uint64_t HelloGate::token(const Endpoint& remote, const wire::Hello& hello,
                          uint64_t now_ns) const noexcept {
  return token_of(now_ns / kEpochNs, remote, hello);
}

bool HelloGate::accepts(uint64_t token, const Endpoint& remote, const wire::Hello& hello,
                        uint64_t now_ns) const noexcept {
  if (token == 0) return false;  // most have none
  const uint64_t epoch = now_ns / kEpochNs;
  return token == token_of(epoch, remote, hello) ||
         (epoch > 0 && token == token_of(epoch - 1, remote, hello));
}

}  // namespace mercury
