// How much each peer may have in flight towards this engine, so that many senders do not overrun
// the one link before it. The receiver knows who sends (its jobs say so) and what its link carries
// in a round trip; it divides that, and a queue (flow/incast_queue.h), among those who send.
//
// The budget is divided between jobs by weight; within a job first come the senders whose last
// datagrams were the most urgent (each sender's scheduler sends its most urgent first, so that is
// what it still has); where datagrams are parts of sums, those that are behind (flow/sum_lag.h):
// what more urgent parts others send only waits for them. They have an equal share, and more as far
// as they fill it: a sender whose own link is divided between several receivers cannot, and what it
// would hold in vain is the others'. The one that has waited longest to be among the urgent has a
// tenth at least, and each other one an eighth of an equal share, so that all are heard of. What is
// given to one is first taken from another, a round trip earlier.
//
// A grant is a bound on bytes in flight, not a permit that is used up. It travels on every
// acknowledgement, so the next one repeats what was lost with one; it is never zero, and a sender
// whose grant is below a frame still sends one at intervals: nothing can stall by a lost grant.
// An idle grant below a frame says the rate at which all that are expected fill the link, whatever
// round trip each has measured: they begin within that interval, none waits for much longer, and
// while nearly all of them send it is their grant and they keep to it, so that a queue of fewer
// frames than senders holds.
// There are no frames of its own, no timers, and no bounds where a single sender is expected, and
// for peers on this host: what they send does not come over the link. A
// link that does not say its rate is measured (flow/arrival_rate.h) while more are; until it is,
// there are no bounds either. Then a quarter more than it was seen to carry is divided, by which a
// faster link shows.
//
// What a server has in flight may lie elsewhere: acknowledgements of its sums wait in the queue
// before its link, with what its workers push. A queue that is longer than the other servers' shows
// in the round trips that this host measures. Where this host's link is full, what the server
// brings in that time is granted besides, or the server with the slowest link, for which all wait,
// would get least of this one. (Where it is not full all get more: flow/incast_queue.h.)
//
// Invariant: the grants of the senders that are active sum to at most budget_bytes(), but for what
// lies elsewhere.
// Senders say whether their own links were idle (wire::kFlagLinkFree), as in SIRD; what follows is
// in flow/incast_queue.h.
// Paper: Homa (Montazeri et al., SIGCOMM 2018, sections 3.3 to 3.5; max_incoming and the oldest's
// share as in HomaModule); SIRD (Prasopoulos et al., NSDI 2025) for what senders say; ExpressPass
// (Cho et al., SIGCOMM 2017) for credits at the receiver. Owner/thread: one engine. Allocates when
// sessions and jobs are added only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "transport/base/types.h"
#include "transport/flow/arrival_rate.h"
#include "transport/flow/incast_queue.h"
#include "transport/flow/sum_lag.h"

namespace mercury {

class CreditAllocator {
 public:
  struct PathState {
    uint64_t least_rtt_ns = 0;  // 0: none is measured yet
    uint32_t marked = 0;        // frames of this peer that came marked; may wrap
    bool missing = false;       // some seem lost, that did not before
    uint64_t rtt_ns = 0;        // of what is under way to the peer; 0: nothing is
  };

  struct FanIn {  // of a job
    uint32_t senders = 1;
    uint32_t receivers = 1;  // to which each of them sends
    uint32_t weight = 1;     // between jobs
  };

  // `link_bytes_per_second` 0: not known, to be measured. `queue_bytes` may wait before the link,
  // whatever its path is like; senders take more than `delay_target_ns` of waiting for congestion
  // (0: they do not look at it). Frames, and acknowledgements, wait behind `ahead_bytes` that
  // their host has given to its link before.
  CreditAllocator(uint64_t link_bytes_per_second, uint64_t queue_bytes, uint64_t delay_target_ns,
                  uint64_t ahead_bytes = 0)
      : told_(link_bytes_per_second != 0),
        rate_(link_bytes_per_second),
        idle_rate_(link_bytes_per_second),
        delay_target_ns_(delay_target_ns),
        ahead_bytes_(ahead_bytes),
        queue_(queue_bytes, longest_queue_bytes()) {}

  // --- cold: what is expected ---
  void add_job(JobSlot job, const FanIn& fan_in);
  void remove_job(JobSlot job);
  // From the next division on: whether a sender's priority counts. Usual: true; false for
  // comparison, and then all of the job's have an equal share, and more as far as they fill it.
  void heed_urgency(JobSlot job, bool heed) noexcept;
  // `near`: of a peer on this host, whose datagrams do not come over the link.
  void add_session(SessionSlot session, JobSlot job, bool near = false);
  void remove_session(SessionSlot session) noexcept;
  // The link has come up, or up at another rate: what was learnt of it and of the queue before it
  // is void. To be followed by divide().
  void set_rate(uint64_t link_bytes_per_second) noexcept;
  // Others have a larger or smaller part of the same link from now on: what was learnt of it stays.
  // `idle_bytes_per_second`: the part that is divided among peers before they are heard. To be
  // followed by divide().
  [[gnu::cold]] void set_part(uint64_t bytes_per_second, uint64_t idle_bytes_per_second) noexcept;
  // Until when peers may send as much as they were last granted, though nothing more is heard of
  // them; 0: none sends. After divide(). From the first set_part() on a single sender counts, too.
  [[gnu::cold]] uint64_t hears_until_ns(uint64_t now_ns) const noexcept;

  // --- datapath ---
  struct Signs {             // of a datagram
    bool last = false;       // SumLag's
    bool link_free = false;  // wire::kFlagLinkFree
  };
  // `bytes`: of the frame, as grants count them.
  void on_datagram(SessionSlot session, uint16_t priority, uint32_t bytes, uint64_t now_ns,
                   Signs signs = {false, false}) noexcept {
    if (expected_ <= uncounted_) return;  // nothing is to be divided
    if (!told_ && !is_near(session) && arrivals_.add(bytes, now_ns)) follow();
    if (rate_ == 0) return;
    note(session.value, priority, bytes, now_ns, signs);
  }
  bool due(uint64_t now_ns) const noexcept { return now_ns >= next_ns_; }
  // Divides anew. `use(SessionSlot, uint16_t now_units, uint16_t idle_units) -> PathState` takes a
  // grant to a session and says what its path is like.
  template <class F>
  void divide(uint64_t now_ns, F use) noexcept {
    plan(now_ns);
    uint64_t least_ns = kUnbounded;
    uint64_t most_ns = 0;
    for (uint32_t index = 0; index < senders_.size(); ++index) {
      const Sender& sender = senders_[index];
      if (!sender.changed) continue;
      senders_[index].changed = sender.active;
      const PathState path = use(SessionSlot(index), told_units(sender), units(idle_bytes(sender)));
      marked_ = marked_ || path.marked != sender.marked;
      missed_ = missed_ || path.missing;
      senders_[index].marked = path.marked;
      senders_[index].least_rtt_ns = path.least_rtt_ns;
      senders_[index].rtt_ns = path.least_rtt_ns == 0 ? 0 : path.rtt_ns;
      if (!sender.active || path.least_rtt_ns == 0) continue;
      least_ns = least_ns < path.least_rtt_ns ? least_ns : path.least_rtt_ns;
      most_ns = most_ns < path.least_rtt_ns ? path.least_rtt_ns : most_ns;
    }
    // A session that began behind a full queue knows no round trip without it: where queues are too
    // long, the shortest counts. Nor may one peer that is slow to acknowledge, whatever makes it
    // so, hold up the division and widen the grants of all.
    if (most_ns == 0) return;
    const uint64_t far_ns = std::max(kFarNs, kFarTimes * least_ns);
    rtt_ns_ = queue_.held(now_ns) ? least_ns : std::min(most_ns, far_ns);
  }
  // For a session that has sent nothing yet, or not for long.
  uint16_t idle_units(JobSlot job) const noexcept { return units(idle_bytes(job)); }

  // Products of two budgets fit into 64 bits; 512 of the largest grants are not more.
  uint64_t budget_bytes() const noexcept {
    return std::min(in_flight_bytes() + queue_.bytes(), uint64_t{UINT32_MAX});
  }
  uint64_t grant_bytes(SessionSlot session) const noexcept;
  uint64_t elsewhere_bytes(SessionSlot session) const noexcept;  // beside its grant
  uint32_t active_senders() const noexcept { return active_; }
  // Of all jobs, and of all sessions: nothing when nobody uses the host.
  uint32_t expected_senders() const noexcept { return expected_; }
  uint32_t registered_senders() const noexcept;
  // Whether a peer has a session of a job, over the link. Cold.
  bool receives() const noexcept;

 private:
  static constexpr uint32_t kNoPriority = kPriorities;
  static constexpr uint64_t kUnbounded = ~uint64_t{0};
  // Round trips that are longer, and so many times as long as the shortest, are not the network's.
  static constexpr uint64_t kFarNs = 1'000'000;
  static constexpr uint64_t kFarTimes = 10;
  // Of what a measured link carries: so much more in flight, or it would never be seen to carry
  // more. BBR's.
  static constexpr uint64_t kProbe = 4;
  // That a frame passes one after the other, the sender's and this host's: it fills each for its
  // time. Round trips may have been measured of small frames alone.
  static constexpr uint64_t kLinks = 2;

  struct Sender {
    JobSlot job;
    bool present = false;
    bool near = false;
    bool counted = false;  // present, and not near
    bool active = false;
    bool changed = false;             // its session is to be told
    uint32_t heard = kNoPriority;     // most urgent since the last division
    uint32_t said = kNoPriority;      // the last that was heard
    uint32_t priority = kNoPriority;  // in the division: that, or by `lag`
    SumLag lag;
    uint64_t heard_ns = 0;
    uint64_t urgent_ns = 0;      // when it was last among the most urgent of its job
    uint32_t marked = 0;         // PathState's, as last seen
    uint64_t arrived_bytes = 0;  // since the last measurement
    uint64_t used_bytes = 0;     // of the budget: its part of what the link could carry
    uint64_t grant_bytes = kUnbounded;
    uint64_t target_bytes = 0;
    uint32_t part = 0;          // of what the link could carry, in kWhole
    uint64_t least_rtt_ns = 0;  // PathState's
    uint64_t rtt_ns = 0;
    uint64_t elsewhere_bytes = 0;
  };
  struct JobCredit {
    uint32_t told = 0;       // FanIn's senders; 0 = no such job
    uint32_t senders = 0;    // of them, those that come over the link; at least one
    uint32_t receivers = 0;  // FanIn's
    uint32_t weight = 0;
    bool heeds_urgency = true;
    bool sums = false;  // its datagrams are parts of sums
    // Of the division under way.
    uint64_t idle_bytes = 0;  // idle_bytes() of its slot: divides, which is too slow per sender
    bool idle_by_rate = false;
    bool by_lag = false;  // not by what they said, in which they differ
    uint32_t active = 0;
    uint32_t urgent = 0;
    uint32_t priority = kNoPriority;
    uint32_t oldest = 0;
    uint64_t share_bytes = 0;
    uint64_t oldest_bytes = 0;
    uint64_t most_bytes = 0;   // of an urgent sender, however much it wants
    uint64_t taken_bytes = 0;  // by the urgent
    uint32_t unsatisfied = 0;  // of them: those that want more
    uint64_t rest_bytes = 0;   // of all others
  };

  // What fills the link, without a queue.
  uint64_t in_flight_bytes() const noexcept {
    const uint64_t bytes = carried_bytes(rtt_ns_);
    return told_ ? std::max(bytes, kLinks * uint64_t{frame_bytes_}) : bytes + bytes / kProbe;
  }
  void follow() noexcept;
  void note(uint32_t session, uint16_t priority, uint32_t bytes, uint64_t now_ns,
            Signs signs) noexcept;
  void plan(uint64_t now_ns) noexcept;
  void measure(uint64_t now_ns) noexcept;
  IncastQueue::Senders senders(uint64_t arrived_bytes) noexcept;
  void find_idle() noexcept;
  void count_active(uint64_t now_ns) noexcept;
  static void place(Sender& sender, JobCredit& job, uint32_t priority) noexcept;
  void place_by_lag() noexcept;
  void find_oldest(uint64_t now_ns) noexcept;
  void share_out() noexcept;
  bool fill() noexcept;
  void raise() noexcept;
  void set_targets() noexcept;
  void move_grants() noexcept;
  void find_elsewhere(uint64_t now_ns) noexcept;
  void expect() noexcept;  // sums over jobs changed
  uint64_t idle_bytes(JobSlot job) const noexcept;
  uint64_t idle_bytes(const Sender& sender) const noexcept {
    const JobCredit* job = job_of(sender);
    return job == nullptr || sender.near ? kUnbounded : job->idle_bytes;
  }
  bool is_near(SessionSlot session) const noexcept {
    return session.value < senders_.size() && senders_[session.value].near;
  }
  uint64_t equal_share(const JobCredit& job, uint64_t of_bytes) const noexcept;
  uint16_t told_units(const Sender& sender) const noexcept;
  // Until one came, of what paces itself below a frame per round trip.
  uint64_t largest_frame() const noexcept { return frame_bytes_ == 0 ? 9'000 : frame_bytes_; }
  uint64_t carried_bytes(uint64_t ns) const noexcept { return carried_bytes(rate_, ns); }
  static uint64_t carried_bytes(uint64_t rate, uint64_t ns) noexcept {
    constexpr uint64_t kMega = 1'000'000;  // in two parts that stay below 2^64
    return rate / kMega * ns / 1'000 + rate % kMega * ns / (1'000 * kMega);
  }
  JobCredit* job_of(const Sender& sender) noexcept {
    return sender.job.value < jobs_.size() ? &jobs_[sender.job.value] : nullptr;
  }
  const JobCredit* job_of(const Sender& sender) const noexcept {
    return sender.job.value < jobs_.size() ? &jobs_[sender.job.value] : nullptr;
  }
  static uint64_t floor_bytes(const JobCredit& job) noexcept;
  static uint64_t other_bytes(const JobCredit& job, bool oldest) noexcept;
  static uint64_t wanted_bytes(const Sender& sender, const JobCredit& job) noexcept;
  static uint16_t units(uint64_t bytes) noexcept;

  uint64_t longest_queue_bytes() const noexcept {
    return delay_target_ns_ == 0 ? kUnbounded : carried_bytes(delay_target_ns_ / 2);
  }

  bool told_;  // the rate; else it is what arrivals show
  uint64_t rate_;
  uint64_t idle_rate_;      // set_part()'s
  uint32_t uncounted_ = 1;  // so few senders are not counted
  ArrivalRate arrivals_;
  uint64_t delay_target_ns_;
  uint64_t ahead_bytes_;
  IncastQueue queue_;
  bool marked_ = false;  // a frame, since the last division
  bool missed_ = false;
  bool full_ = false;           // the link, at the last measurement
  uint64_t whole_from_ns_ = 0;  // nothing is granted besides before
  uint32_t frame_bytes_ = 0;    // largest that came
  uint64_t free_bytes_ = 0;     // since the last measurement, of senders whose links were free
  uint64_t free_share_ = 0;     // of what came lately, in kWhole
  uint64_t measured_ns_ = 0;
  uint64_t rtt_ns_ = 50'000;  // until one is measured
  uint64_t next_ns_ = 0;
  uint32_t active_ = 0;
  uint32_t expected_ = 0;        // senders of all jobs
  uint32_t divided_ = 0;         // of them: IncastQueue::Senders::divided
  uint64_t weights_ = 0;         // of all jobs
  std::vector<Sender> senders_;  // by session slot
  std::vector<JobCredit> jobs_;  // by job slot
};

}  // namespace mercury
