#include "transport/flow/incast_queue.h"

#include <utility>

namespace mercury {
namespace {

// Of what the queue is allowed, per measurement: what a path cannot hold after all is little.
constexpr uint64_t kQueueGrowth = 8;
// Of a queue that marks have made shorter, when there are none. Eight senders find a link that went
// from 50 to 500 Mb/s in 3 round trips (0.3 to 12), and leave a TCP cubic flow half of it; with an
// eighth it takes as long, and TCP has 0.37, less than a third now and then (incast_netns.py).
constexpr uint64_t kReturn = 12;
constexpr uint64_t kSqueeze = 4;  // of it, per measurement that says it is too much
// Of the configured queue, however often frames come marked, or are missing.
constexpr uint64_t kLeastMarked = 8;
constexpr uint64_t kLeastMissed = 2;
// After how long a path that marked or lost is tried again. Longer each time that a larger queue
// was too much for it, and at once where a frame more for each sender would be half a queue: all
// get it in the same round trip, before a mark can say that it is too much.
constexpr uint64_t kFirstHoldNs = 1'000'000'000;
constexpr uint64_t kLongestHoldNs = 64'000'000'000;
// Queues that a path may turn out to hold for each sender: with one BERT-Base at 10 Gb/s and 8
// workers takes 1 % longer. In all no more than 32: 4 MiB of the usual 128 KiB.
constexpr uint64_t kQueuesPerSender = 2;
constexpr uint64_t kMostQueues = 32;

}  // namespace

void IncastQueue::on_signs(bool marked, bool missed, uint32_t active, uint64_t now_ns) noexcept {
  if (!marked && !missed) return;
  if (queue_bytes_ > configured_bytes_) hold_ns_ = 2 * std::max(hold_ns_, kFirstHoldNs / 2);
  if (2 * kFrameBytes * active > configured_bytes_) hold_ns_ = kLongestHoldNs;
  hold_ns_ = std::min(hold_ns_, kLongestHoldNs);
  queue_bytes_ = std::min(queue_bytes_, configured_bytes_);
  elsewhere_bytes_ = 0;
  standing_bytes_ = kUnbounded;
  held_until_ns_ = now_ns + std::max(hold_ns_, kFirstHoldNs);
  overrun_ = true;
  marked_ = marked_ || marked;
}

uint64_t IncastQueue::for_senders(uint32_t senders) const noexcept {
  return configured_bytes_ * std::clamp<uint64_t>(kQueuesPerSender * senders, 1, kMostQueues);
}

uint64_t IncastQueue::longest(uint32_t senders) const noexcept {
  return std::min(longest_bytes_, for_senders(senders));
}

void IncastQueue::on_measured(uint64_t arrived_bytes, uint64_t carried_bytes,
                              const Senders& senders, uint64_t now_ns) noexcept {
  if (std::exchange(overrun_, false)) return squeeze(senders);
  const uint64_t most = held(now_ns) ? configured_bytes_ : longest(senders.divided);
  if (is_full(arrived_bytes, carried_bytes)) {
    elsewhere_bytes_ -= elsewhere_bytes_ / kSqueeze;
  } else if (arrived_bytes > 0 && !held(now_ns)) {
    elsewhere_bytes_ =
        std::min(elsewhere_bytes_ + bytes() / kQueueGrowth, longest(senders.expected));
  }
  if (2 * arrived_bytes < carried_bytes) return;
  // Acknowledgements come, too.
  shorten(10 * arrived_bytes >= 9 * carried_bytes, senders, now_ns);
  if (queue_bytes_ >= most && !held(now_ns)) hold_ns_ = 0;  // it holds all that is asked
  const uint64_t growth = queue_bytes_ < configured_bytes_ ? kReturn : kQueueGrowth;
  queue_bytes_ = std::max(queue_bytes_, std::min(queue_bytes_ + queue_bytes_ / growth, most));
  const uint64_t theirs = for_senders(senders.divided);
  if (queue_bytes_ > theirs) {
    queue_bytes_ = std::max(queue_bytes_ - queue_bytes_ / kSqueeze, theirs);
  }
}

void IncastQueue::shorten(bool full, const Senders& senders, uint64_t now_ns) noexcept {
  if (!senders.links_free || held(now_ns)) {
    standing_bytes_ = kUnbounded;
  } else if (full) {
    const uint64_t now = std::min(queue_bytes_, standing_bytes_);
    standing_bytes_ = std::max(now - now / kSqueeze, senders.enough_bytes);
  }
}

// The queue is somebody else's, too, or was never so long. What is missing may have been lost for
// another reason, so it says less: room for two frames of each sender stays, or comes back, as
// behind a frame that is alone nothing would show that it is lost.
void IncastQueue::squeeze(const Senders& senders) noexcept {
  const bool marked = std::exchange(marked_, false);
  const uint64_t part = marked ? kLeastMarked : kLeastMissed;
  const uint64_t frames = uint64_t{senders.frame_bytes} * senders.active * (marked ? 1 : 2);
  const uint64_t floor = std::min(configured_bytes_, std::max(configured_bytes_ / part, frames));
  queue_bytes_ = queue_bytes_ < floor ? std::min(queue_bytes_ + queue_bytes_ / kReturn, floor)
                                      : std::max(queue_bytes_ - queue_bytes_ / kSqueeze, floor);
}

}  // namespace mercury
