// How much each peer may have in flight towards this engine, so that many senders do not overrun
// the one link before it. The receiver knows who sends (its jobs say so) and what its link carries
// in a round trip; it divides that, and a small queue, among those who send.
//
// The budget is divided between jobs by weight; within a job most goes to the senders whose last
// chunks were the most urgent (each sender's scheduler sends its most urgent first, so that is what
// it still has), a tenth to the one that has waited longest to be among them, and an eighth of an
// equal share to each other one, so that all are heard of. What is given to one is first taken from
// another, a round trip earlier.
//
// A grant is a bound on bytes in flight, not a permit that is used up. It travels on every
// acknowledgement, so the next one repeats what was lost with one; it is never zero, and a sender
// whose grant is below a frame still sends one at intervals: nothing can stall by a lost grant.
// There are no frames of its own, no timers, and no bounds where a single sender is expected or the
// link's rate is not known.
//
// Invariant: the grants of the senders that are active sum to at most budget_bytes().
// Paper: Homa (Montazeri et al., SIGCOMM 2018, sections 3.3 to 3.5; max_incoming and the oldest's
// share as in HomaModule); ExpressPass (Cho et al., SIGCOMM 2017) for credits at the receiver.
// Owner/thread: one engine. Allocates when sessions and jobs are added only.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/base/types.h"

namespace mercury {

class CreditAllocator {
 public:
  // `link_bytes_per_second` 0: not known, everything is unbounded. `queue_bytes` may wait before
  // the link.
  CreditAllocator(uint64_t link_bytes_per_second, uint64_t queue_bytes)
      : rate_(link_bytes_per_second), queue_bytes_(queue_bytes) {}

  // --- cold: what is expected ---
  void add_job(JobSlot job, uint32_t senders, uint32_t weight);
  void remove_job(JobSlot job);
  void add_session(SessionSlot session, JobSlot job);
  void remove_session(SessionSlot session) noexcept;

  // --- datapath ---
  void on_chunk(SessionSlot session, uint16_t priority, uint64_t now_ns) noexcept {
    if (rate_ == 0) return;
    note(session.value, priority, now_ns);
  }
  bool due(uint64_t now_ns) const noexcept { return now_ns >= next_ns_; }
  // Divides anew. `use(SessionSlot, uint16_t now_units, uint16_t idle_units) -> uint64_t` takes a
  // grant to a session and returns its least round-trip time, 0 if there is none yet.
  template <class F>
  void divide(uint64_t now_ns, F use) noexcept {
    plan(now_ns);
    uint64_t rtt_ns = 0;
    for (uint32_t index = 0; index < senders_.size(); ++index) {
      const Sender& sender = senders_[index];
      if (!sender.changed) continue;
      senders_[index].changed = sender.active;
      const uint64_t least_ns =
          use(SessionSlot(index), units(sender.grant_bytes), units(idle_bytes(sender.job)));
      if (sender.active) rtt_ns = rtt_ns < least_ns ? least_ns : rtt_ns;
    }
    if (rtt_ns != 0) rtt_ns_ = rtt_ns;
  }
  // For a session that has sent nothing yet, or not for long.
  uint16_t idle_units(JobSlot job) const noexcept { return units(idle_bytes(job)); }

  uint64_t budget_bytes() const noexcept {
    return rate_ / 1'000'000 * rtt_ns_ / 1'000 + queue_bytes_;
  }
  uint64_t grant_bytes(SessionSlot session) const noexcept;
  uint32_t active_senders() const noexcept { return active_; }

 private:
  static constexpr uint32_t kNoPriority = kPriorities;
  static constexpr uint64_t kUnbounded = ~uint64_t{0};

  struct Sender {
    JobSlot job;
    bool present = false;
    bool active = false;
    bool changed = false;          // its session is to be told
    uint32_t heard = kNoPriority;  // most urgent since the last division
    uint32_t priority = kNoPriority;
    uint64_t heard_ns = 0;
    uint64_t urgent_ns = 0;  // when it was last among the most urgent of its job
    uint64_t grant_bytes = kUnbounded;
    uint64_t target_bytes = 0;
  };
  struct Job {
    uint32_t senders = 0;  // expected; 0 = no such job
    uint32_t weight = 0;
    // Of the division under way.
    uint32_t active = 0;
    uint32_t urgent = 0;
    uint32_t priority = kNoPriority;
    uint32_t oldest = 0;
    uint64_t share_bytes = 0;
  };

  void note(uint32_t session, uint16_t priority, uint64_t now_ns) noexcept;
  void plan(uint64_t now_ns) noexcept;
  void count_active(uint64_t now_ns) noexcept;
  void set_targets(uint64_t now_ns) noexcept;
  void move_grants() noexcept;
  void expect() noexcept;  // sums over jobs changed
  uint64_t idle_bytes(JobSlot job) const noexcept;
  static uint16_t units(uint64_t bytes) noexcept;

  uint64_t rate_;
  uint64_t queue_bytes_;
  uint64_t rtt_ns_ = 50'000;  // until one is measured
  uint64_t next_ns_ = 0;
  uint32_t active_ = 0;
  uint32_t expected_ = 0;        // senders of all jobs
  uint64_t weights_ = 0;         // of all jobs
  std::vector<Sender> senders_;  // by session slot
  std::vector<Job> jobs_;        // by job slot
};

}  // namespace mercury
