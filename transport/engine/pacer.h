// Bounds the bytes that may stand in front of an urgent datagram behind the port: virtual devices
// do not say when a frame has left, so frames are released at the link's rate, with a bucket as
// deep as the bound that the configuration states (like byte queue limits, in time instead of
// completions).
//
// The engine reads the time once a pass, and comes back when the pass is over. So it may release as
// much more as the link carries meanwhile: at 400 Gb/s a pass takes longer than the link needs for
// the bound. What a pass finds ahead of the link is the bound at most.
//
// Where handing frames to the device is a system call, it is not made for each frame: while the
// link has enough to send for kCushionNs, what may be sent gathers until the link has sent half of
// what it had when some was, or for kGatherNs at most, or for kShortGatherNs where something was in
// haste lately (note_datagram), or engines share the link. A frame that waits here could not have
// left before what is ahead of it, but for those to other engines of this host, which no link
// carries: they wait, too. None is chosen before it may leave, so those that are more urgent and
// come meanwhile go first.
//
// Engines that share a link (shared_link.h) have one bound together, and each a frame more: who
// asks at the same time as others may find room for the same. Who has had more than one that waits
// leaves it half of the bound; what is left then keeps the link busy, whether that one comes or
// not. While several wait they send frame by frame, by turns. Paper: ours; Homa (ATC 2021, section
// 5) caps the NIC's backlog for the same reason.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "transport/base/endpoint.h"
#include "transport/base/types.h"
#include "transport/engine/shared_link.h"

namespace mercury {

// What a frame to `peer` takes on the link besides its UDP payload: UDP, IP, Ethernet's header and
// checksum, preamble and gap.
inline uint32_t link_overhead_bytes(const IpAddress& peer) noexcept {
  return 8 + (peer.is_v4() ? 20 : 40) + 14 + 4 + 8 + 12;
}

class Pacer {
 public:
  // `rate` bytes per second, 0 = the link's rate is unknown: never waits. `bound_bytes` is how many
  // bytes may be ahead of the link. `link`: what other engines send over too; they have the same
  // rate. `gathers`: see above.
  Pacer(uint64_t rate, uint64_t bound_bytes, std::shared_ptr<SharedLink> link = nullptr,
        bool gathers = false)
      : rate_(rate), bound_bytes_(bound_bytes), gathers_(gathers), ahead_bytes_(bound_bytes) {
    if (!link) return;
    clock_ = &link->clock();
    place_ = std::make_unique<SharedLink::Place>(std::move(link));
  }

  // A pass begins. `follows`: the last one had work, so it lasted until now; else the engine slept.
  void begin_pass(uint64_t now_ns, bool follows) noexcept {
    if (rate_ == 0) return;
    const uint64_t took_ns = follows ? std::min(now_ns - begun_ns_, kLongestPassNs) : 0;
    begun_ns_ = now_ns;
    // Short ones in between say little of how long the next is: what is known falls by eighths.
    pass_ns_ = std::max(took_ns, pass_ns_ - (pass_ns_ + 7) / 8);
    ahead_bytes_ = bound_bytes_ + carried_bytes(pass_ns_);
    if (place_) begin_turn(now_ns);
    holds_ = now_ns < gathered_at_ns();
  }
  bool allows(uint64_t now_ns) noexcept {
    if (rate_ == 0) return true;
    return !holds_ && backlog_bytes(now_ns) < ahead_bytes_;
  }
  // allows() was false, and there is something to send.
  void note_waiting() noexcept {
    if (place_) place_->note_waiting();
  }
  // How often the link has had nothing to send; may wrap.
  uint32_t pauses() const noexcept { return clock_->pauses(); }
  // A datagram goes. One that is more urgent than the last has come meanwhile, or in an iteration
  // of its own, and is waited for; one of another job has that job's turn.
  void note_datagram(uint16_t priority, JobSlot job, uint64_t now_ns) noexcept {
    const bool another_job = job != last_job_ && last_job_ != kNoJob;
    if (priority < last_priority_ || another_job) note_haste(now_ns);
    last_priority_ = priority;
    last_job_ = job;
  }
  // Something goes that somebody may be waiting for while others send as much as they can.
  void note_haste(uint64_t now_ns) noexcept { haste_until_ns_ = now_ns + kHasteNs; }
  void sent(uint32_t wire_bytes, uint64_t now_ns) noexcept {
    if (rate_ == 0) return;
    // A pass that holds sends what does not gather, as acknowledgements: that puts what gathers off
    // by half of its own time at most.
    if (!holds_) sent_at_ns_ = now_ns;
    // What is left of the division is carried on: a nanosecond lost with each frame would let the
    // queue of a fast link grow without end.
    const uint64_t work = uint64_t{wire_bytes} * 1'000'000'000 + remainder_;
    if (place_) [[unlikely]] {
      clock_->give(work / rate_, now_ns);
      place_->sent(wire_bytes);
    } else {
      clock_->give_alone(work / rate_, now_ns);
    }
    remainder_ = work % rate_;
  }
  // When allows() turns true; 0 when it is true already.
  uint64_t ready_at_ns() const noexcept {
    if (rate_ == 0) return 0;
    const uint64_t bound_ns = to_ns(ahead_bytes_);
    const uint64_t free_at_ns = clock_->free_at_ns();
    const uint64_t room_at_ns = free_at_ns < bound_ns ? 0 : free_at_ns - bound_ns + 1;
    return std::max(room_at_ns, gathered_at_ns());
  }
  uint64_t bound_bytes() const noexcept { return bound_bytes_; }
  uint64_t rate() const noexcept { return rate_; }
  bool gathers() const noexcept { return gathers_; }
  bool shares_link() const noexcept { return place_ != nullptr; }
  void note_receives(bool receives) noexcept {
    if (place_) place_->note_receives(receives);
  }
  // What peers may send to this engine before it hears them: an equal part for each of those that
  // share the link to which peers may send.
  [[gnu::cold]] uint64_t idle_part() const noexcept {
    return place_ ? rate_ / std::max(place_->receivers(), 1U) : rate_;
  }
  // What they may when they send: an equal part for each of those to which they do.
  [[gnu::cold]] uint64_t part_of_link(uint64_t now_ns) const noexcept {
    return place_ && place_->hears(now_ns) ? place_->part_of(rate_, now_ns) : idle_part();
  }
  // For the others: peers send to this engine, until then; 0: they do not. What they leave is its
  // own from its next division on: they have had a while, but not all of them may have divided.
  [[gnu::cold]] void note_hears(uint64_t until_ns) noexcept {
    if (place_) place_->note_hears(until_ns);
  }
  // The link carries another rate from now on: what is ahead of it stays ahead, but for what
  // several engines have there, for each of which it changes.
  void set_rate(uint64_t rate, uint64_t now_ns) noexcept {
    const uint64_t ahead_bytes = rate_ == 0 || place_ ? 0 : backlog_bytes(now_ns);
    rate_ = rate;
    remainder_ = 0;
    if (place_) {
      place_->note_nothing_waits();
    } else {
      clock_->set_free_at(rate == 0 ? 0 : now_ns + to_ns(ahead_bytes));
    }
  }

 private:
  void begin_turn(uint64_t now_ns) noexcept {
    const SharedLink::Place::Waiting waiting = place_->begin_pass(now_ns, pass_ns_);
    const uint64_t bound_bytes = waiting.comes_first ? bound_bytes_ / 2 : bound_bytes_;
    const uint64_t pass_bytes = carried_bytes(std::max(pass_ns_, waiting.pass_ns));
    ahead_bytes_ = bound_bytes + (waiting.is_awake ? pass_bytes / 2 : pass_bytes);
    others_wait_ = waiting.any;
  }
  // When what gathers goes; 0: nothing does.
  uint64_t gathered_at_ns() const noexcept {
    if (!gathers_ || others_wait_) return 0;
    // What a pass does not send leaves in the next, after what that one receives.
    const uint64_t early_ns = pass_ns_ + kCushionNs;
    const uint64_t free_at_ns = clock_->free_at_ns();
    return std::min(sent_at_ns_ + gather_ns(free_at_ns),
                    free_at_ns - std::min(free_at_ns, early_ns));
  }
  uint64_t gather_ns(uint64_t free_at_ns) const noexcept {
    if (place_ || sent_at_ns_ < haste_until_ns_) return kShortGatherNs;
    // At least half of what the link had to send then is left to a thread that wakes late.
    const uint64_t ahead_ns = free_at_ns - std::min(free_at_ns, sent_at_ns_);
    return std::clamp(ahead_ns / 2, kShortGatherNs, kGatherNs);
  }
  uint64_t to_ns(uint64_t bytes) const noexcept { return bytes * 1'000'000'000 / rate_; }
  uint64_t backlog_bytes(uint64_t now_ns) const noexcept {
    const uint64_t free_at_ns = clock_->free_at_ns();
    if (free_at_ns <= now_ns) return 0;
    // At most the bound, a pass and a frame of each engine, so the product fits.
    return carried_bytes(free_at_ns - now_ns);
  }
  uint64_t carried_bytes(uint64_t ns) const noexcept { return ns * (rate_ / 1000) / 1'000'000; }

  // A pass that somebody else's process has made longer says nothing of the next.
  static constexpr uint64_t kLongestPassNs = 100'000;
  // What is urgent may wait so long at each end; a link of 500 Mb/s carries four frames of 1500
  // bytes meanwhile.
  static constexpr uint64_t kShortGatherNs = 100'000;
  // What overtakes nothing by its priority may wait so long, and the first that does. The same link
  // carries less than one frame of 9000 bytes in 100 us: each was a wake-up of its own, which took
  // most of the processor time of its bytes.
  static constexpr uint64_t kGatherNs = 500'000;
  // An iteration of most trainings.
  static constexpr uint64_t kHasteNs = 10'000'000'000;
  // A thread that sleeps until then comes 18 to 33 us late, one in a hundred times 36 to 57 us (of
  // 80 us, two cores of an AMD EPYC); one that shares its core later still.
  static constexpr uint64_t kCushionNs = 100'000;

  uint64_t rate_;
  uint64_t bound_bytes_;
  bool gathers_;
  uint64_t ahead_bytes_;  // that this pass may have ahead of the link
  bool others_wait_ = false;
  bool holds_ = false;       // this pass sends nothing
  uint64_t sent_at_ns_ = 0;  // the last frame of a pass that did not hold, whatever it was
  uint64_t haste_until_ns_ = 0;
  uint16_t last_priority_ = 0;
  JobSlot last_job_ = kNoJob;
  uint64_t begun_ns_ = 0;  // this pass
  uint64_t pass_ns_ = 0;   // how long the next is expected to be
  LinkClock own_clock_;
  LinkClock* clock_ = &own_clock_;            // or what others send by, too
  uint64_t remainder_ = 0;                    // of a nanosecond, in 1/rate_
  std::unique_ptr<SharedLink::Place> place_;  // none: no other engine sends over the link
};

}  // namespace mercury
