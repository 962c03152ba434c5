// Whether the peer of a session is where its newest frames come from: a translator of addresses
// gave it another port, or it has a new address. Nothing but a challenge goes there until it has
// come back from there.
//
// Whoever can copy the peer's frames can have challenges sent to an address of his choice. So each
// frame, which must be newer than all before it, is good for one at most, and a round trip of the
// session, or kLeastNs, has one.
//
// Paper: RFC 9000 sections 8.2 (path validation) and 9.3 (responding to connection migration).
// Owner/thread: one engine. Cold.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "transport/base/endpoint.h"

namespace mercury {

// Nobody can guess one: a peer may write others' addresses into its frames.
class PathChallenges {
 public:
  explicit PathChallenges(uint64_t seed);  // random
  uint64_t next() noexcept;

 private:
  std::array<unsigned char, 16> key_;
  uint64_t drawn_ = 0;
};

class PathCheck {
 public:
  static constexpr uint64_t kLeastNs = 1'000'000;

  // The peer's frame with this number has come from `from`: whether to send a challenge there.
  bool may_ask(uint64_t number, uint64_t rtt_ns, uint64_t now_ns) const noexcept {
    if (asked_ns_ == 0) return true;
    return number > number_ && now_ns - asked_ns_ >= std::max(rtt_ns, kLeastNs);
  }
  void on_asked(const Endpoint& from, uint64_t number, uint64_t data, uint64_t now_ns) noexcept {
    from_ = from;
    number_ = number;
    data_ = data;
    asked_ns_ = now_ns;
  }
  // The peer has answered from there: once.
  bool confirms(const Endpoint& from, std::optional<uint64_t> data) noexcept {
    if (!data || !data_ || *data != *data_ || from != from_) return false;
    data_.reset();
    return true;
  }

 private:
  Endpoint from_;
  std::optional<uint64_t> data_;
  uint64_t number_ = 0;
  uint64_t asked_ns_ = 0;
};

}  // namespace mercury
