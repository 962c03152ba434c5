// Sessions that this side has ended, and whose peers may not have heard of it: all copies of a
// CLOSE may be lost with one full queue. What such a peer goes on sending is answered with the same
// CLOSE again, so it learns of the end in a round trip of its next frame instead of by silence.
//
// A frame must come from the peer's address with the session's tag to be answered, where frames
// have seals with one that fits, and the answers become seldom. So nobody but the peer is answered,
// and no two sides answer each other: a CLOSE is not. What was the peer's and is sent again by
// another is answered, too: to the peer, with what it has a right to hear. That holds, too, for
// sessions that ended before any frame of the peer's had come. Strangers can make many of these in
// others' names, so they have few places, of their own: a peer whose session lost its place waits
// for a peer time-out.
//
// Paper: RFC 9000 section 10.2.1 (closing state; the packet itself is kept).
// Owner/thread: one engine. Cold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/flow/frame_keys.h"
#include "transport/wire/header.h"

namespace mercury {

class Farewells {
 public:
  // More than that many ended sessions, or longer ago than `kept_ns`: silence again. A peer has
  // given the session up itself when it has heard nothing for that long.
  static constexpr size_t kMost = 1024;
  static constexpr size_t kMostUnheard = 256;  // beside these, whose peers were not heard
  // That expire() forgets, keys and all, as no frame is received meanwhile. Nobody waits for it:
  // answer() looks at the time itself.
  static constexpr size_t kForgottenAtOnce = 32;
  static constexpr uint64_t kFirstPauseNs = 1'000'000;  // between two answers; then twice as long
  static constexpr uint64_t kLongestPauseNs = 250'000'000;

  // What shows that a frame is the peer's.
  struct Peer {
    Endpoint remote;
    uint32_t tag = 0;
    bool heard = false;            // a frame with the tag has come
    std::unique_ptr<Seals> seals;  // null: its frames have none
  };

  explicit Farewells(uint64_t kept_ns) : kept_ns_(kept_ns) {}

  // The session `number` has ended with this `close`, a whole frame: the same bytes each time, as
  // no other frame may have its packet number.
  void keep(uint32_t number, Peer peer, std::span<const std::byte> close, uint64_t now_ns);
  // A frame came for a session that is not there: what it is to be answered with, valid until the
  // next call; empty: nothing. `payload` stands behind the header as it came.
  std::span<const std::byte> answer(const wire::Header& header, std::span<const std::byte> payload,
                                    const Endpoint& source, uint64_t now_ns);
  bool knows(uint32_t number) const { return kept_.contains(number); }
  void expire(uint64_t now_ns);  // of those whose time is over the oldest
  size_t size() const noexcept { return kept_.size(); }

 private:
  struct Farewell {
    Peer peer;
    uint64_t ended_ns = 0;
    uint64_t answer_ns = 0;  // no earlier
    uint64_t pause_ns = kFirstPauseNs;
    std::vector<std::byte> close;
  };

  // Numbers, and when each session ended, in that order; some may not be kept any more.
  using Order = std::deque<std::pair<uint32_t, uint64_t>>;
  void forget_first(Order& order);

  const uint64_t kept_ns_;
  std::unordered_map<uint32_t, Farewell> kept_;  // by the session's number here
  Order heard_;
  Order unheard_;
};

}  // namespace mercury
