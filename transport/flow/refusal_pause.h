// What a sender does when its datagrams arrive and are refused for now, because the peer's service
// has no room: it waits. The path is not to blame, so neither window nor grant nor the estimate of
// loss changes.
//
// Where half or more of what an ACK names anew was refused, no datagram leaves for a while. Then
// one goes at a time, and asks for an answer; if that is refused, too, the next while is twice as
// long, up to kMostNs. The first that is taken ends it. Single refusals among much that is taken
// hold nobody up: those datagrams go again when it is their turn.
//
// Owner/thread: one engine. Nothing allocates. Cold: called only once something was refused.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class RefusalPause {
 public:
  static constexpr uint64_t kLeastNs = 100'000;
  // What a peer that has room again may wait for at most, and what a peer without room is sent:
  // a frame in each such time.
  static constexpr uint64_t kMostNs = 16'000'000;

  // From the first refusal that was the rule until something is taken.
  bool holding() const noexcept { return holding_; }
  uint64_t until_ns() const noexcept { return until_ns_; }

  // A datagram that left at `sent_ns`.
  void on_refused(uint64_t sent_ns) noexcept {
    ++refused_;
    refused_sent_ns_ = std::max(refused_sent_ns_, sent_ns);
  }
  void on_taken(uint64_t sent_ns) noexcept { taken_since_ = taken_since_ || sent_ns >= began_ns_; }

  // The ACK ends; it acknowledged so many `packets`, refused ones among them.
  void on_ack_end(uint32_t packets, uint64_t round_trip_ns, uint64_t now_ns) noexcept {
    if (holding_ && taken_since_) holding_ = false;
    // What left before the pause began says nothing about whether it was long enough.
    const bool news = !holding_ || refused_sent_ns_ >= began_ns_;
    if (news && refused_ > 0 && 2 * refused_ >= packets) begin(round_trip_ns, now_ns);
    refused_ = 0;
  }

 private:
  void begin(uint64_t round_trip_ns, uint64_t now_ns) noexcept {
    const uint64_t least_ns = std::max(kLeastNs, round_trip_ns);
    const uint64_t most_ns = std::max(kMostNs, least_ns);
    pause_ns_ = holding_ ? std::min(2 * pause_ns_, most_ns) : least_ns;
    holding_ = true;
    taken_since_ = false;
    began_ns_ = now_ns;
    until_ns_ = now_ns + pause_ns_;
  }

  bool holding_ = false;
  bool taken_since_ = false;  // a datagram that left since the pause began
  uint32_t refused_ = 0;      // in the ACK that is being read
  uint64_t refused_sent_ns_ = 0;
  uint64_t began_ns_ = 0;
  uint64_t until_ns_ = 0;
  uint64_t pause_ns_ = 0;
};

}  // namespace mercury
