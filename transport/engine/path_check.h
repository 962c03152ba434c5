// Whether the peer of a session is where its newest frames come from: a translator of addresses
// gave it another port, or it has a new address. Nothing but a challenge goes there until it has
// come back from there.
//
// Whoever can copy the peer's frames can have challenges sent to an address of his choice. So each
// frame, which must be newer than all before it, is good for one at most, and a round trip of the
// session, or kLeastNs, has one. An address that is asked again is asked with the same bytes: the
// answer may take longer than that. Several are open at a time, so that a copy from elsewhere does
// not close the peer's.
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
  // It is sent: the bytes that it has.
  uint64_t ask(const Endpoint& from, uint64_t number, PathChallenges& challenges,
               uint64_t now_ns) noexcept {
    number_ = number;
    asked_ns_ = now_ns;
    for (const Challenge& one : open_) {
      if (one.data && one.from == from) return *one.data;
    }
    Challenge& oldest = open_[next_];
    next_ = (next_ + 1) % kMost;
    oldest = {from, challenges.next()};
    return *oldest.data;
  }
  // The peer has answered from there: once, and then the others are not open any more either.
  bool confirms(const Endpoint& from, std::optional<uint64_t> data) noexcept {
    const bool open = data && std::ranges::any_of(open_, [&](const Challenge& one) {
                        return one.from == from && one.data == data;
                      });
    if (open) open_ = {};
    return open;
  }

 private:
  static constexpr size_t kMost = 4;
  struct Challenge {
    Endpoint from;
    std::optional<uint64_t> data;  // nothing: it is not open
  };
  std::array<Challenge, kMost> open_;
  size_t next_ = 0;
  uint64_t number_ = 0;
  uint64_t asked_ns_ = 0;
};

}  // namespace mercury
