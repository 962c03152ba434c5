// How many bytes may wait before this host's link, from what a path shows that it holds.
//
// What is configured is what every path is taken to hold. Twice as much for each of up to 16
// senders is what one may turn out to hold, where senders have as many receivers as a receiver has
// senders: their links are as narrow as this one, and who may not send to one receiver sends to
// another what others do not send yet. (Where senders have fewer receivers they fill this link
// whatever waits before it.) While the link is at least half full and no frame is marked or
// missing, an eighth more is allowed at each measurement; after one that is, what is configured
// again for a second or, where it is so each time, up to 64. It grows no further than what drains
// before the senders' windows take it for congestion: windows that shrink by delay share a link
// worse than grants do. What it has grown to for a job goes with the job's senders: a quarter less
// at each measurement, down to what it may grow to for those that are left.
//
// While frames go on being marked or missing the queue is somebody else's, too, or shorter than
// configured: a quarter less at each measurement, down to an eighth of what is configured for
// marks, but a frame for each sender, and to half for what is missing, but two frames for each;
// then a twelfth more at a time.
//
// What is in flight may lie elsewhere: where few hosts answer many, acknowledgements of answers
// wait behind what fills those hosts' links, and what they acknowledge counts as in flight until
// then. It does not lie before a link that is not full. So while that is so, and no
// frame is marked or missing, as much again as the queue may be in flight, and a quarter less of it
// at each measurement that finds the link full.
//
// Where the senders' own links are idle at times, what waits before this one only stands there: it
// keeps the link no fuller, and is in no order. So while that is so, the link is full, and no frame
// was marked or missing lately, the queue is taken a quarter shorter at each measurement, down to
// what is enough; and it is as long as ever at the first at which senders' links are busy, where
// what may not wait here would hold up what goes to others.
//
// Paper: SIRD (Prasopoulos et al., NSDI 2025), in which senders say that they are congested and
// receivers then ask less of them; here they say that they are not, so that a peer that says
// nothing changes nothing. Nichols and Jacobson, ACM Queue 10(5), 2012, for queues that stand.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class IncastQueue {
 public:
  // Of what paces itself below a frame per round trip.
  static constexpr uint64_t kFrameBytes = 9'000;

  struct Senders {
    uint32_t active = 0;
    uint32_t expected = 0;
    uint32_t divided = 0;       // of them: those of jobs in which a sender has as many receivers
    uint32_t frame_bytes = 0;   // largest that came
    bool links_free = false;    // their own were idle at times, since the last measurement
    uint64_t enough_bytes = 0;  // of a queue that stands
  };

  // `longest_bytes`: of a queue that has grown.
  IncastQueue(uint64_t configured_bytes, uint64_t longest_bytes)
      : configured_bytes_(configured_bytes), queue_bytes_(configured_bytes) {
    set_longest(longest_bytes);
  }

  // The link's rate is another one. What is longer already stays until a frame comes marked or is
  // missing: of a rate that is measured, less may be seen for a while.
  void set_longest(uint64_t bytes) noexcept { longest_bytes_ = std::max(bytes, configured_bytes_); }
  // The part of the link is, for now: what is longer is of no use meanwhile, and is not lost.
  void bound(uint64_t bytes) noexcept {
    set_longest(bytes);
    bound_bytes_ = longest_bytes_;
  }
  // Frames came marked, or after a gap.
  void on_signs(bool marked, bool missed, uint32_t active, uint64_t now_ns) noexcept;
  // `arrived_bytes` of the `carried_bytes` that the link could carry since the last measurement.
  void on_measured(uint64_t arrived_bytes, uint64_t carried_bytes, const Senders& senders,
                   uint64_t now_ns) noexcept;

  uint64_t configured_bytes() const noexcept { return configured_bytes_; }
  // Beyond what the link carries in a round trip.
  uint64_t bytes() const noexcept {
    return std::min({queue_bytes_, standing_bytes_, bound_bytes_}) + elsewhere_bytes_;
  }
  // Frames of 1500 bytes are 0.96 of what they take of a link.
  static bool is_full(uint64_t arrived_bytes, uint64_t carried_bytes) noexcept {
    return 20 * arrived_bytes >= 19 * carried_bytes;
  }
  // It has marked or lost lately, and is not to grow.
  bool held(uint64_t now_ns) const noexcept { return now_ns < held_until_ns_; }

 private:
  static constexpr uint64_t kUnbounded = ~uint64_t{0};

  uint64_t longest(uint32_t senders) const noexcept;
  uint64_t for_senders(uint32_t senders) const noexcept;
  void shorten(bool full, const Senders& senders, uint64_t now_ns) noexcept;
  void squeeze(const Senders& senders) noexcept;

  uint64_t configured_bytes_;
  uint64_t longest_bytes_ = 0;
  uint64_t queue_bytes_;
  uint64_t bound_bytes_ = kUnbounded;
  uint64_t elsewhere_bytes_ = 0;
  uint64_t standing_bytes_ = kUnbounded;  // no longer than that
  bool overrun_ = false;  // a frame was marked or missing, since the last measurement
  bool marked_ = false;
  uint64_t hold_ns_ = 0;
  uint64_t held_until_ns_ = 0;
};

}  // namespace mercury
