#include "transport/flow/send_gate.h"

#include "transport/base/random.h"

namespace mercury {
namespace {

// A pause shorter than this is a gap within a burst, not between two (of training: between two
// tensors, not two iterations); the receiver (credit.h) keeps a silent sender's share for at least
// as long.
constexpr uint64_t kBurstPauseNs = 2'000'000;

}  // namespace

void SendGate::begin_burst(uint32_t bytes, SendLimit& limit, const LossDetector& flight,
                           uint64_t now_ns, uint64_t seed) noexcept {
  if (limit.held()) return;
  const uint64_t pause_ns =
      std::max({kBurstPauseNs, 4 * flight.rtt().smoothed_ns(), 2 * limit.idle_interval_ns(bytes)});
  if (now_ns - sent_ns_ < pause_ns || burst_drawn_) return;
  limit.begin_burst();
  if (bytes <= limit.bytes()) return;
  paced_ns_ = now_ns + split_mix(seed) % (limit.start_interval_ns(bytes, flight.rtt()) + 1);
  burst_drawn_ = true;
}

void SendGate::pace(uint32_t bytes, const SendLimit& limit, const LossDetector& flight,
                    uint64_t now_ns) noexcept {
  if (limit.held()) return;  // what comes of this frame says when the next may go
  paced_ns_ = now_ns + (burst_drawn_ ? limit.start_interval_ns(bytes, flight.rtt())
                                     : limit.interval_ns(bytes, flight.rtt()));
}

}  // namespace mercury
