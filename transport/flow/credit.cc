#include "transport/flow/credit.h"

#include <algorithm>

#include "transport/wire/header.h"

namespace mercury {
namespace {

// Shares of a job's budget; the rest goes to its most urgent senders.
constexpr uint64_t kOldestShare = 10;  // a tenth: Homa's 5 to 10 %
constexpr uint64_t kFloorShare = 8;    // of an equal share
// A sender that was silent for so long has paused. Twice a sender's own kPauseNs: its share must
// not be another's while it still thinks it has it.
constexpr uint64_t kPauseNs = 4'000'000;
constexpr uint64_t kLeastEpochNs = 20'000;
constexpr uint64_t kFrameBytes = 9'000;  // of what paces itself below a frame per round trip

}  // namespace

void CreditAllocator::add_job(JobSlot slot, uint32_t senders, uint32_t weight) {
  if (jobs_.size() <= slot.value) jobs_.resize(slot.value + 1u);
  jobs_[slot.value] = Job();
  jobs_[slot.value].senders = std::max(senders, 1U);
  jobs_[slot.value].weight = std::max(weight, 1U);
  expect();
}

void CreditAllocator::remove_job(JobSlot slot) {
  if (slot.value >= jobs_.size()) return;
  jobs_[slot.value] = Job();
  expect();
}

void CreditAllocator::add_session(SessionSlot slot, JobSlot job) {
  if (senders_.size() <= slot.value) senders_.resize(slot.value + 1u);
  Sender& sender = senders_[slot.value];
  sender = Sender();
  sender.job = job;
  sender.present = sender.changed = true;
  next_ns_ = 0;
}

void CreditAllocator::remove_session(SessionSlot slot) noexcept {
  if (slot.value < senders_.size()) senders_[slot.value] = Sender();
}

void CreditAllocator::expect() noexcept {
  expected_ = 0;
  weights_ = 0;
  for (const Job& job : jobs_) {
    expected_ += job.senders;
    weights_ += job.weight;
  }
  for (Sender& sender : senders_) sender.changed = sender.present;
  next_ns_ = 0;
}

uint64_t CreditAllocator::idle_bytes(JobSlot slot) const noexcept {
  if (rate_ == 0 || expected_ <= 1 || slot.value >= jobs_.size()) return kUnbounded;
  const Job& job = jobs_[slot.value];
  if (job.senders == 0) return kUnbounded;
  return budget_bytes() * job.weight / (weights_ * job.senders);
}

uint64_t CreditAllocator::grant_bytes(SessionSlot session) const noexcept {
  return session.value < senders_.size() ? senders_[session.value].grant_bytes : kUnbounded;
}

uint16_t CreditAllocator::units(uint64_t bytes) noexcept {
  if (bytes == kUnbounded) return 0;
  return static_cast<uint16_t>(
      std::clamp<uint64_t>(bytes / wire::kGrantUnitBytes, 1, uint64_t{UINT16_MAX}));
}

void CreditAllocator::note(uint32_t session, uint16_t priority, uint64_t now_ns) noexcept {
  if (session >= senders_.size() || !senders_[session].present) return;
  Sender& sender = senders_[session];
  sender.heard_ns = now_ns;
  sender.heard = std::min<uint32_t>(sender.heard, priority);
  if (sender.active) return;
  sender.active = sender.changed = true;
  sender.urgent_ns = now_ns;
  sender.grant_bytes = idle_bytes(sender.job);
  ++active_;
}

void CreditAllocator::plan(uint64_t now_ns) noexcept {
  next_ns_ = now_ns + std::max(rtt_ns_, kLeastEpochNs);
  if (rate_ == 0) next_ns_ = kNever;
  count_active(now_ns);
  set_targets(now_ns);
  move_grants();
}

void CreditAllocator::count_active(uint64_t now_ns) noexcept {
  const uint64_t interval_ns =
      rate_ == 0 ? 0 : 2 * active_ * kFrameBytes * 1'000'000 / (rate_ / 1'000 + 1);
  for (Job& job : jobs_) {
    job.active = job.urgent = 0;
    job.priority = kNoPriority;
  }
  for (Sender& sender : senders_) {
    if (!sender.active) {
      sender.grant_bytes = idle_bytes(sender.job);
      continue;
    }
    if (now_ns - sender.heard_ns > kPauseNs + interval_ns) {
      sender.active = false;
      sender.grant_bytes = idle_bytes(sender.job);
      --active_;
      continue;
    }
    if (sender.heard != kNoPriority) sender.priority = sender.heard;
    sender.heard = kNoPriority;
    if (sender.job.value >= jobs_.size()) continue;
    Job& job = jobs_[sender.job.value];
    ++job.active;
    if (sender.priority < job.priority) {
      job.priority = sender.priority;
      job.urgent = 0;
    }
    if (sender.priority == job.priority) ++job.urgent;
  }
}

void CreditAllocator::set_targets(uint64_t now_ns) noexcept {
  uint64_t weights = 0;
  for (const Job& job : jobs_) weights += job.active > 0 ? job.weight : 0;
  for (Job& job : jobs_) {
    // Of a job that is being removed chunks may still come; its weight is gone already.
    job.share_bytes = job.active > 0 && job.weight > 0 ? budget_bytes() * job.weight / weights : 0;
    job.oldest = kNoPriority;
  }
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    Sender& sender = senders_[i];
    if (!sender.active || sender.job.value >= jobs_.size()) continue;
    Job& job = jobs_[sender.job.value];
    if (sender.priority == job.priority) {
      sender.urgent_ns = now_ns;
    } else if (job.oldest == kNoPriority || sender.urgent_ns < senders_[job.oldest].urgent_ns) {
      job.oldest = i;
    }
  }
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    Sender& sender = senders_[i];
    if (!sender.active) continue;
    sender.target_bytes = kUnbounded;
    if (expected_ <= 1 || sender.job.value >= jobs_.size()) continue;
    const Job& job = jobs_[sender.job.value];
    if (job.senders == 0) continue;
    const uint64_t floor = job.share_bytes / (kFloorShare * job.active);
    const uint64_t oldest = job.urgent < job.active ? job.share_bytes / kOldestShare : 0;
    sender.target_bytes = floor + (job.oldest == i ? oldest : 0);
    if (sender.priority != job.priority) continue;
    const uint64_t others = floor * (job.active - job.urgent) + oldest;
    sender.target_bytes = (job.share_bytes - others) / job.urgent;
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

}  // namespace mercury
