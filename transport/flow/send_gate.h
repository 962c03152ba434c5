// Whether a frame may leave now, in front of the limit (send_limit.h): up to the limit at once,
// above it one at a time, at the intervals that keep its rate; and which of them ask for an
// acknowledgement.
//
// Invariants: a frame above the limit leaves only when nothing is in flight and its interval has
// passed; who was refused is let go (opened()) once for all refusals before it; a burst draws its
// random start once.
// Owner/thread: one engine. Nothing allocates. `flight` is what the session has in flight, without
// the frame asked for; `now_ns` does not decrease.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/flow/loss.h"
#include "transport/flow/send_limit.h"

namespace mercury {

class SendGate {
 public:
  // False: no, and opened() says when to ask again. A question, and so const, although it is
  // remembered.
  bool can_send(uint32_t bytes, const SendLimit& limit, const LossDetector& flight,
                uint64_t now_ns) const noexcept {
    if (fits(bytes, limit, flight, now_ns)) return true;
    refused_bytes_ = refused_bytes_ == 0 ? bytes : std::min(refused_bytes_, bytes);
    return false;
  }
  // Before it: a frame is ready, and nothing is in flight. After a pause the peer's idle grant
  // counts, and above the limit the first frame waits a part of its interval that `seed` decides,
  // so that many senders that begin at once do not arrive at once.
  void begin_burst(uint32_t bytes, SendLimit& limit, const LossDetector& flight, uint64_t now_ns,
                   uint64_t seed) noexcept;
  // No frame leaves before. For as long as the limit is held it is one at a time after that.
  void hold(uint64_t until_ns) noexcept {
    paced_ns_ = std::max(paced_ns_, until_ns);
    burst_drawn_ = false;
  }
  // It left, and `flight` has it already.
  void on_sent(uint32_t bytes, const SendLimit& limit, const LossDetector& flight,
               uint64_t now_ns) noexcept {
    sent_ns_ = now_ns;
    if (bytes > limit.bytes()) pace(bytes, limit, flight, now_ns);
    burst_drawn_ = false;
    unasked_bytes_ += bytes;
    const uint64_t in_flight = flight.bytes_in_flight();
    ask_now_ = in_flight + bytes > limit.bytes() ||
               (4 * unasked_bytes_ >= limit.bytes() && 2 * in_flight >= limit.bytes());
    if (ask_now_) unasked_bytes_ = 0;
  }
  // Whether the frame that left last asks for an acknowledgement at once: at each quarter of the
  // limit, and where it is full.
  bool ask_now() const noexcept { return ask_now_; }

  // Whether the smallest frame that was refused may leave now. True once.
  bool opened(const SendLimit& limit, const LossDetector& flight, uint64_t now_ns) noexcept {
    if (refused_bytes_ == 0 || !fits(refused_bytes_, limit, flight, now_ns)) return false;
    refused_bytes_ = 0;
    return true;
  }
  // When time alone opens it; kNever if an acknowledgement or a loss must. With nothing in flight
  // there is a record for a frame (SentHistory).
  uint64_t deadline_ns(const LossDetector& flight) const noexcept {
    return refused_bytes_ == 0 || flight.packets_in_flight() != 0 ? kNever : paced_ns_;
  }

 private:
  bool fits(uint32_t bytes, const SendLimit& limit, const LossDetector& flight,
            uint64_t now_ns) const noexcept {
    if (!flight.has_room(SentKind::kData)) return false;
    const uint64_t in_flight = flight.bytes_in_flight();
    return in_flight + bytes <= limit.bytes() || (in_flight == 0 && now_ns >= paced_ns_);
  }
  void pace(uint32_t bytes, const SendLimit& limit, const LossDetector& flight,
            uint64_t now_ns) noexcept;

  uint64_t sent_ns_ = 0;                // last frame
  uint64_t paced_ns_ = 0;               // a frame above the limit leaves no earlier
  uint64_t unasked_bytes_ = 0;          // sent since one asked for an acknowledgement
  mutable uint32_t refused_bytes_ = 0;  // smallest frame refused since opened(); 0: none
  bool burst_drawn_ = false;            // paced_ns_ is the random start of a burst
  bool ask_now_ = false;
};

}  // namespace mercury
