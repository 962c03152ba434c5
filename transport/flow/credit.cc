#include "transport/flow/credit.h"

#include <algorithm>
#include <utility>

#include "transport/wire/header.h"

namespace mercury {
namespace {

// Shares of a job's budget; the rest goes to its most urgent senders.
constexpr uint64_t kOldestShare = 10;  // a tenth: Homa's 5 to 10 %
constexpr uint64_t kFloorShare = 8;    // of an equal share
// A sender that was silent for so long, and for as long as its frames may have waited, has paused.
// Twice a sender's own kBurstPauseNs: its share must not be another's while it still thinks it has
// it.
constexpr uint64_t kPauseNs = 4'000'000;
constexpr uint64_t kLeastEpochNs = 20'000;
// What an urgent sender uses and an eighth: one that fills its grant has twice as much after six
// measurements. More is held in vain by senders whose own link is divided between receivers: with
// a half AlexNet at 100 Gb/s, 2 workers and servers, takes 0.2 % longer, with as much again 2.4 %,
// and where use does not count, 7 %.
constexpr uint64_t kGrowth = 8;
constexpr uint64_t kMeasuredFrames = 4;  // of each sender, on average: fewer are chance
constexpr uint64_t kLeastMeasuredFrame = 1'500;
constexpr uint64_t kLongestMeasureNs = 1'000'000'000;
// Each is a pass over all senders and halves, at least, what of the budget is not used yet.
constexpr uint32_t kMostFills = 3;
// Of what comes, an eighth says that its sender's link was idle, over eight measurements: a burst
// of one sender's makes no queue one that only stands. Of links of 3 Gb/s and senders' of 10 it is
// 0.6 to 0.7 once the queue is short, and 0.4 of two senders and one receiver alike. By single
// measurements four and four, with receivers of half the senders' rate, take 4 % longer.
constexpr uint64_t kWhole = 1024;
constexpr uint64_t kFree = kWhole / 8;
constexpr uint64_t kFreeMeasurements = 8;
// A queue that only stands need not be longer than frames of each sender, as many each way as are
// acknowledged at once, and what comes while they and their acknowledgements wait behind what their
// hosts have given to their links: without the latter ResNet-50 takes 0.2 % longer where one of two
// senders has a third of the others' rate.
constexpr uint64_t kStandingFrames = 4;
constexpr uint64_t kStandingNs = 20'000;  // engines look at their ports more often
constexpr uint64_t kFrameBytes = IncastQueue::kFrameBytes;
// Of the shortest round trip: what is longer by no more is taken for chance.
constexpr uint64_t kChance = 4;
constexpr uint64_t kLongestElsewhereNs = 20'000'000;
constexpr uint64_t kAfterLossNs = 1'000'000'000;  // what was granted besides may have been lost
// Dividing takes some 20 ns per sender: a few percent of a processor.
constexpr uint64_t kEpochPerSenderNs = 400;

}  // namespace

void CreditAllocator::add_job(JobSlot slot, const FanIn& fan_in) {
  if (jobs_.size() <= slot.value) jobs_.resize(slot.value + 1u);
  jobs_[slot.value] = JobCredit();
  jobs_[slot.value].told = std::max(fan_in.senders, 1U);
  jobs_[slot.value].receivers = fan_in.receivers;
  jobs_[slot.value].weight = std::max(fan_in.weight, 1U);
  expect();
}

void CreditAllocator::heed_urgency(JobSlot slot, bool heed) noexcept {
  if (slot.value < jobs_.size()) jobs_[slot.value].heeds_urgency = heed;
}

void CreditAllocator::remove_job(JobSlot slot) {
  if (slot.value >= jobs_.size()) return;
  jobs_[slot.value] = JobCredit();
  expect();
}

void CreditAllocator::add_session(SessionSlot slot, JobSlot job, bool near) {
  if (senders_.size() <= slot.value) senders_.resize(slot.value + 1u);
  remove_session(slot);
  Sender& sender = senders_[slot.value];
  sender.job = job;
  sender.present = sender.changed = true;
  sender.near = near;
  sender.counted = !near;
  next_ns_ = 0;
  if (near) expect();
}

void CreditAllocator::remove_session(SessionSlot slot) noexcept {
  if (slot.value >= senders_.size()) return;
  if (senders_[slot.value].active) --active_;
  const bool near = std::exchange(senders_[slot.value], Sender()).near;
  if (near) expect();
}

void CreditAllocator::set_rate(uint64_t link_bytes_per_second) noexcept {
  told_ = link_bytes_per_second != 0;
  rate_ = idle_rate_ = link_bytes_per_second;
  uncounted_ = 1;
  arrivals_ = ArrivalRate();
  queue_ = IncastQueue(queue_.configured_bytes(), longest_queue_bytes());
  free_bytes_ = free_share_ = 0;
  // Who still sends is heard of again with its next datagram.
  for (Sender& sender : senders_) {
    sender.active = false;
    sender.changed = sender.present;
  }
  active_ = 0;
  next_ns_ = 0;
}

void CreditAllocator::set_part(uint64_t bytes_per_second, uint64_t idle_bytes_per_second) noexcept {
  if (idle_bytes_per_second != idle_rate_) {
    for (Sender& sender : senders_) sender.changed = sender.present;
  }
  rate_ = bytes_per_second;
  idle_rate_ = idle_bytes_per_second;
  uncounted_ = 0;
  queue_.bound(longest_queue_bytes());
}

uint32_t CreditAllocator::registered_senders() const noexcept {
  return static_cast<uint32_t>(
      std::count_if(senders_.begin(), senders_.end(), [](const Sender& s) { return s.present; }));
}

bool CreditAllocator::receives() const noexcept {
  return std::ranges::any_of(senders_,
                             [](const Sender& s) { return s.counted && s.job != kNoJob; });
}

void CreditAllocator::expect() noexcept {
  expected_ = divided_ = 0;
  weights_ = 0;
  for (JobCredit& job : jobs_) job.senders = job.told;
  for (const Sender& sender : senders_) {
    JobCredit* const job = sender.near ? job_of(sender) : nullptr;
    if (job != nullptr && job->senders > 1) --job->senders;
  }
  for (const JobCredit& job : jobs_) {
    expected_ += job.senders;
    if (job.senders <= job.receivers) divided_ += job.senders;
    weights_ += job.weight;
  }
  for (Sender& sender : senders_) sender.changed = sender.present;
  next_ns_ = 0;
}

uint64_t CreditAllocator::equal_share(const JobCredit& job, uint64_t of_bytes) const noexcept {
  return of_bytes * job.weight / (weights_ * job.senders);
}

// Of those that begin nothing is known: not what the path has turned out to hold.
uint64_t CreditAllocator::idle_bytes(JobSlot slot) const noexcept {
  if (rate_ == 0 || expected_ <= 1 || slot.value >= jobs_.size()) return kUnbounded;
  const JobCredit& job = jobs_[slot.value];
  if (job.senders == 0) return kUnbounded;
  const uint64_t in_flight = carried_bytes(idle_rate_, rtt_ns_);
  const uint64_t share = equal_share(job, in_flight + queue_.configured_bytes());
  if (share >= largest_frame()) return share;
  // To the nearest unit: an idle grant has few of them.
  const uint64_t rate = equal_share(job, carried_bytes(idle_rate_, wire::kIdleGrantNs));
  return std::min(share, rate + wire::kGrantUnitBytes / 2);
}

// A grant below a frame, where nearly all that are expected send, is told as the idle grant: then
// senders keep to its rate. By the round trips that they measure, once a frame each, they would run
// ahead of the link together and then wait together.
uint16_t CreditAllocator::told_units(const Sender& sender) const noexcept {
  const bool bounded = sender.grant_bytes != kUnbounded;
  const uint64_t bytes = bounded ? sender.grant_bytes + sender.elsewhere_bytes : kUnbounded;
  const uint16_t now = units(bytes);
  const JobCredit* job = job_of(sender);
  if (job == nullptr || std::max(bytes, job->idle_bytes) >= largest_frame()) {
    return now;
  }
  const uint16_t idle = units(job->idle_bytes);
  if (8 * expected_ <= 9 * active_ && job->idle_by_rate) return std::min(now, idle);
  return now == idle ? static_cast<uint16_t>(now + 1) : now;  // equal ones say: keep to the rate
}

uint64_t CreditAllocator::grant_bytes(SessionSlot session) const noexcept {
  return session.value < senders_.size() ? senders_[session.value].grant_bytes : kUnbounded;
}

uint64_t CreditAllocator::elsewhere_bytes(SessionSlot session) const noexcept {
  return session.value < senders_.size() ? senders_[session.value].elsewhere_bytes : 0;
}

uint16_t CreditAllocator::units(uint64_t bytes) noexcept {
  if (bytes == kUnbounded) return 0;
  return static_cast<uint16_t>(
      std::clamp<uint64_t>(bytes / wire::kGrantUnitBytes, 1, uint64_t{UINT16_MAX}));
}

// An eighth is within what chance makes of an interval.
void CreditAllocator::follow() noexcept {
  const uint64_t rate = arrivals_.bytes_per_second();
  if (8 * (std::max(rate, rate_) - std::min(rate, rate_)) <= rate_) return;
  rate_ = idle_rate_ = rate;
  queue_.set_longest(longest_queue_bytes());
  next_ns_ = 0;
}

void CreditAllocator::note(uint32_t session, uint16_t priority, uint32_t bytes, uint64_t now_ns,
                           Signs signs) noexcept {
  if (session >= senders_.size() || !senders_[session].counted) return;
  Sender& sender = senders_[session];
  sender.heard_ns = now_ns;
  sender.arrived_bytes += bytes;
  frame_bytes_ = std::max(frame_bytes_, bytes);
  sender.heard = std::min<uint32_t>(sender.heard, priority);
  if (signs.link_free) free_bytes_ += bytes;
  sender.lag.add(signs.last);
  if (signs.last && sender.job.value < jobs_.size()) jobs_[sender.job.value].sums = true;
  if (sender.active) return;
  sender.active = sender.changed = true;
  sender.used_bytes = 0;
  sender.part = 0;
  sender.rtt_ns = 0;  // of before
  sender.urgent_ns = now_ns;
  sender.grant_bytes = idle_bytes(sender.job);
  if (active_++ > 0) return;
  // While nobody sent, nothing showed what the link is like.
  measured_ns_ = now_ns;
  for (Sender& other : senders_) other.arrived_bytes = 0;
}

void CreditAllocator::plan(uint64_t now_ns) noexcept {
  next_ns_ = now_ns + std::max({rtt_ns_, kLeastEpochNs, active_ * kEpochPerSenderNs});
  if (rate_ == 0) next_ns_ = kNever;
  measure(now_ns);
  find_idle();
  count_active(now_ns);
  find_oldest(now_ns);
  share_out();
  set_targets();
  move_grants();
  find_elsewhere(now_ns);
}

// In a link that is full, with all of its queue, a sender's part of the bytes in flight is its part
// of the rate.
void CreditAllocator::measure(uint64_t now_ns) noexcept {
  if (missed_) whole_from_ns_ = now_ns + kAfterLossNs;
  queue_.on_signs(std::exchange(marked_, false), std::exchange(missed_, false), active_, now_ns);
  const uint64_t carried = carried_bytes(std::min(now_ns - measured_ns_, kLongestMeasureNs));
  const uint64_t budget = budget_bytes();
  const uint64_t frame_bytes = std::max(largest_frame(), kLeastMeasuredFrame);
  if (carried < std::max(budget, kMeasuredFrames * frame_bytes * std::max(active_, 1U))) return;
  measured_ns_ = now_ns;
  uint64_t arrived = 0;
  for (Sender& sender : senders_) {
    arrived += sender.arrived_bytes;
    const uint64_t bytes = std::min(sender.arrived_bytes, carried);
    sender.used_bytes = bytes * (budget / 1024) / (carried / 1024);
    sender.part = static_cast<uint32_t>(kWhole * bytes / carried);
    sender.arrived_bytes = 0;
  }
  full_ = IncastQueue::is_full(arrived, carried);
  queue_.on_measured(arrived, carried, senders(arrived), now_ns);
}

uint64_t CreditAllocator::hears_until_ns(uint64_t now_ns) const noexcept {
  return active_ == 0 ? 0 : now_ns + std::max(2 * (next_ns_ - now_ns), kPauseNs);
}

IncastQueue::Senders CreditAllocator::senders(uint64_t arrived_bytes) noexcept {
  const uint64_t free_bytes = std::min(std::exchange(free_bytes_, 0), arrived_bytes);
  const uint64_t share = kWhole * free_bytes / std::max(arrived_bytes, uint64_t{1});
  free_share_ = (free_share_ * (kFreeMeasurements - 1) + share) / kFreeMeasurements;
  const uint64_t frames =
      kStandingFrames * active_ * std::max(largest_frame(), kLeastMeasuredFrame);
  const uint64_t enough = std::max(carried_bytes(kStandingNs), frames) + 2 * ahead_bytes_;
  return {active_, expected_, divided_, frame_bytes_, free_share_ >= kFree, enough};
}

void CreditAllocator::find_idle() noexcept {
  for (uint32_t slot = 0; slot < jobs_.size(); ++slot) {
    JobCredit& job = jobs_[slot];
    job.idle_bytes = idle_bytes(JobSlot(static_cast<uint16_t>(slot)));
    job.idle_by_rate =
        job.idle_bytes < largest_frame() &&
        equal_share(job, carried_bytes(idle_rate_, rtt_ns_) + queue_.configured_bytes()) >=
            equal_share(job, carried_bytes(idle_rate_, wire::kIdleGrantNs));
  }
}

void CreditAllocator::count_active(uint64_t now_ns) noexcept {
  uint64_t waiting = 2 * kFrameBytes * active_ + budget_bytes();
  for (const Sender& sender : senders_) waiting += sender.elsewhere_bytes;
  const uint64_t interval_ns = rate_ == 0 ? 0 : waiting * 1'000'000 / (rate_ / 1'000 + 1);
  for (JobCredit& job : jobs_) {
    job.active = job.urgent = 0;
    job.priority = kNoPriority;
  }
  for (Sender& sender : senders_) {
    if (!sender.active) {
      sender.grant_bytes = idle_bytes(sender);
      continue;
    }
    if (now_ns - sender.heard_ns > kPauseNs + interval_ns) {
      sender.active = false;
      sender.grant_bytes = idle_bytes(sender);
      --active_;
      continue;
    }
    if (sender.heard != kNoPriority) sender.said = sender.heard;
    sender.heard = kNoPriority;
    JobCredit* job = job_of(sender);
    if (job == nullptr) continue;
    ++job->active;
    place(sender, *job, job->heeds_urgency ? sender.said : 0);
  }
  place_by_lag();
}

void CreditAllocator::place(Sender& sender, JobCredit& job, uint32_t priority) noexcept {
  sender.priority = priority;
  if (priority < job.priority) {
    job.priority = priority;
    job.urgent = 0;
  }
  if (priority == job.priority) ++job.urgent;
}

// Senders of one priority are equals, as all are that are in step.
void CreditAllocator::place_by_lag() noexcept {
  bool any = false;
  for (JobCredit& job : jobs_) {
    job.by_lag = job.sums && job.urgent < job.active;
    if (!job.by_lag) continue;
    job.priority = kNoPriority;
    any = true;
  }
  if (!any) return;
  for (Sender& sender : senders_) {
    JobCredit* job = job_of(sender);
    if (!sender.active || job == nullptr || !job->by_lag) continue;
    place(sender, *job, sender.lag.behind() ? 0 : 1);
  }
}

void CreditAllocator::find_oldest(uint64_t now_ns) noexcept {
  for (JobCredit& job : jobs_) job.oldest = kNoPriority;
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    Sender& sender = senders_[i];
    JobCredit* job = job_of(sender);
    if (!sender.active || job == nullptr) continue;
    if (sender.priority == job->priority) {
      sender.urgent_ns = now_ns;
    } else if (job->oldest == kNoPriority || sender.urgent_ns < senders_[job->oldest].urgent_ns) {
      job->oldest = i;
    }
  }
}

// An equal share, or what it uses and a little more, so that it can show that it needs it.
uint64_t CreditAllocator::wanted_bytes(const Sender& sender, const JobCredit& job) noexcept {
  return std::max(job.share_bytes / job.active, sender.used_bytes + sender.used_bytes / kGrowth);
}

uint64_t CreditAllocator::floor_bytes(const JobCredit& job) noexcept {
  return job.share_bytes / (kFloorShare * job.active);
}

void CreditAllocator::share_out() noexcept {
  uint64_t weights = 0;
  for (const JobCredit& job : jobs_) weights += job.active > 0 ? job.weight : 0;
  for (JobCredit& job : jobs_) {
    // Of a job that is being removed datagrams may still come; its weight is gone already.
    job.share_bytes = job.active > 0 && job.weight > 0 ? budget_bytes() * job.weight / weights : 0;
    job.oldest_bytes = job.oldest == kNoPriority ? 0 : job.share_bytes / kOldestShare;
    if (job.active == 0) continue;
    const uint64_t rest = job.oldest_bytes + floor_bytes(job) * (job.active - job.urgent);
    job.most_bytes = std::min(job.share_bytes / job.active, (job.share_bytes - rest) / job.urgent);
  }
  for (uint32_t i = 1; fill() && i < kMostFills; ++i) raise();
}

// What the urgent leave is the others'. Whether an urgent one wants more than it has.
bool CreditAllocator::fill() noexcept {
  for (JobCredit& job : jobs_) {
    job.taken_bytes = 0;
    job.unsatisfied = 0;
  }
  for (const Sender& sender : senders_) {
    JobCredit* job = job_of(sender);
    if (!sender.active || job == nullptr || sender.priority != job->priority) continue;
    const uint64_t wanted = wanted_bytes(sender, *job);
    if (wanted > job->most_bytes) ++job->unsatisfied;
    job->taken_bytes += std::min(wanted, job->most_bytes);
  }
  bool unsatisfied = false;
  for (JobCredit& job : jobs_) {
    if (job.active == 0) continue;
    unsatisfied = unsatisfied || job.unsatisfied > 0;
    job.rest_bytes = job.share_bytes - job.oldest_bytes - job.taken_bytes;
  }
  return unsatisfied;
}

// What the others can spare is for the urgent that want more.
void CreditAllocator::raise() noexcept {
  for (JobCredit& job : jobs_) {
    if (job.active == 0 || job.unsatisfied == 0) continue;
    const uint64_t floors = floor_bytes(job) * (job.active - job.urgent);
    job.most_bytes += (job.rest_bytes - std::min(floors, job.rest_bytes)) / job.unsatisfied;
  }
}

// Of one that is not urgent. The oldest is often the one that is furthest ahead of its job: more
// than the others for it would only take it further.
uint64_t CreditAllocator::other_bytes(const JobCredit& job, bool oldest) noexcept {
  const uint32_t others = job.active - job.urgent;
  const uint64_t even = (job.rest_bytes + job.oldest_bytes) / others;
  if (even >= job.oldest_bytes) return even;
  return oldest ? job.oldest_bytes : job.rest_bytes / (others - 1);
}

void CreditAllocator::set_targets() noexcept {
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    Sender& sender = senders_[i];
    if (!sender.active) continue;
    sender.target_bytes = kUnbounded;
    const JobCredit* job = job_of(sender);
    if (expected_ <= 1 || job == nullptr || job->senders == 0) continue;
    if (sender.priority == job->priority) {
      sender.target_bytes = std::min(job->most_bytes, wanted_bytes(sender, *job));
    } else {
      sender.target_bytes = other_bytes(*job, job->oldest == i);
    }
  }
}

// What grows is what was free: senders that were told of less still have more in flight for a round
// trip.
void CreditAllocator::move_grants() noexcept {
  uint64_t held = 0;
  uint64_t wanted = 0;
  for (const Sender& sender : senders_) {
    if (!sender.active || sender.target_bytes == kUnbounded) continue;
    held += std::min(sender.grant_bytes, budget_bytes());
    if (sender.target_bytes > sender.grant_bytes)
      wanted += sender.target_bytes - sender.grant_bytes;
  }
  const uint64_t free = budget_bytes() - std::min(held, budget_bytes());
  for (Sender& sender : senders_) {
    if (!sender.active) continue;
    if (sender.target_bytes <= sender.grant_bytes || sender.target_bytes == kUnbounded ||
        wanted <= free) {
      sender.grant_bytes = sender.target_bytes;
    } else {
      sender.grant_bytes += (sender.target_bytes - sender.grant_bytes) * free / wanted;
    }
  }
}

// This host's own queue is in all senders' round trips: the shortest of them, less the shortest
// that any ever had (who began behind the queue knows no shorter one of its own), is at least that
// queue. More is allowed for chance, a whole round trip where frames come marked. Of few of the
// senders the shortest may have been measured before the queue grew. Who sends parts of sums is not
// to get ahead of the others, wherever it waits.
void CreditAllocator::find_elsewhere(uint64_t now_ns) noexcept {
  uint64_t least_way_ns = kUnbounded;
  uint64_t least_rtt_ns = kUnbounded;
  uint32_t measured = 0;
  for (Sender& sender : senders_) {
    sender.elsewhere_bytes = 0;
    if (!sender.active || sender.rtt_ns == 0) continue;
    least_way_ns = std::min(least_way_ns, sender.least_rtt_ns);
    least_rtt_ns = std::min(least_rtt_ns, sender.rtt_ns);
    ++measured;
  }
  if (!told_ || !full_ || now_ns < whole_from_ns_) return;
  if (measured < 2 || 2 * measured < active_) return;
  const uint64_t own_ns = least_rtt_ns - std::min(least_rtt_ns, least_way_ns) +
                          least_rtt_ns / (queue_.held(now_ns) ? 1 : kChance);
  for (Sender& sender : senders_) {
    const JobCredit* job = job_of(sender);
    if (!sender.active || job == nullptr || job->active == 0 || job->sums) continue;
    const uint64_t queued_ns = sender.rtt_ns - std::min(sender.rtt_ns, sender.least_rtt_ns);
    if (queued_ns <= own_ns) continue;
    const uint64_t bytes = carried_bytes(std::min(queued_ns - own_ns, kLongestElsewhereNs));
    const uint64_t equal = kWhole * job->share_bytes / std::max(budget_bytes(), uint64_t{1});
    sender.elsewhere_bytes = bytes * std::min<uint64_t>(sender.part, equal / job->active) / kWhole;
  }
}

}  // namespace mercury
