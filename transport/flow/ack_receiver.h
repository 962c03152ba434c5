// What the peer's acknowledgements say, from one to the next: each becomes a sample for congestion
// control (congestion.h), and the newest decides what the peer has counted and grants.
//
// Invariant: an acknowledgement that was overtaken acknowledges, but adds no mark and no grant:
// its counts are older than what is known.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/base/arrival.h"
#include "transport/flow/congestion.h"
#include "transport/flow/sent_pool.h"
#include "transport/wire/ack.h"

namespace mercury {

class AckReceiver {
 public:
  // An acknowledgement begins, in packet `number` of the peer. True: it is the newest, and its
  // header's grants count.
  bool begin(uint64_t number, const wire::Ack& ack, uint64_t in_flight_bytes,
             uint64_t now_ns) noexcept {
    sample_ = AckSample();
    sample_.in_flight_bytes = in_flight_bytes;
    sample_.now_ns = now_ns;
    largest_ = ack.ranges[0].last;
    if (number < next_) return false;
    next_ = number + 1;
    sample_.marked = static_cast<uint16_t>(ack.marked - marked_);
    marked_ = ack.marked;
    return true;
  }
  // A packet that it acknowledges, and that no other one did before.
  void on_acked(const SentRecord& record) noexcept {
    sample_.bytes += record.bytes;
    ++sample_.packets;
    sample_.newest_sent_ns = std::max(sample_.newest_sent_ns, record.sent_ns);
    if (record.number == largest_) sample_.rtt_ns = sample_.now_ns - record.sent_ns;
  }
  // What the network marked of its packets does not count.
  void forget_marks() noexcept { sample_.marked = 0; }
  // It ends, having come so; `delay_ns` is how long the peer says that it waited, or with `at_most`
  // waited at most.
  const AckSample& end(uint64_t delay_ns, bool at_most = false,
                       const Arrival& arrival = {}) noexcept {
    if (at_most || arrival.waited_ns != 0) [[unlikely]] {
      take_waits(delay_ns, at_most, arrival);
    } else if (sample_.rtt_ns > delay_ns) {
      sample_.rtt_ns -= delay_ns;
    }
    return sample_;
  }

 private:
  // A bound may hide what the network did, so it is taken from the one figure and not from the
  // other.
  [[gnu::cold]] void take_waits(uint64_t delay_ns, bool at_most, const Arrival& arrival) noexcept {
    const uint64_t whole_ns = sample_.rtt_ns;
    if (whole_ns == 0) return;
    const uint64_t waited_ns = delay_ns + arrival.waited_ns;
    const uint64_t known_ns = (at_most ? 0 : delay_ns) + (arrival.at_most ? 0 : arrival.waited_ns);
    const uint64_t least_ns = at_most || arrival.at_most ? 1 : whole_ns;
    sample_.rtt_ns = whole_ns > waited_ns ? whole_ns - waited_ns : least_ns;
    sample_.rtt_most_ns = whole_ns > known_ns ? whole_ns - known_ns : whole_ns;
  }

  AckSample sample_;
  uint64_t largest_ = 0;  // that the acknowledgement names
  uint64_t next_ = 0;     // above the newest acknowledgement's packet number
  uint16_t marked_ = 0;   // as the newest said it; wraps
};

}  // namespace mercury
