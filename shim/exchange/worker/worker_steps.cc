// Worker: what concerns all tensors of a job, in steps: a job may have tens of thousands, and no
// frame is received as long as one step takes.
#include <algorithm>
#include <utility>

#include "shim/exchange/worker/worker.h"
#include "shim/exchange/worker/worker_state.h"

namespace mercury {
namespace {

// In looks at tensors that nothing waits for: to add one to a credit, which allocates, to free one,
// and to copy 4,096 bits of its sets.
constexpr uint32_t kLooksToAdd = 4;
constexpr uint32_t kLooksToFree = 16;
constexpr uint32_t kChunksPerLook = 4096;

}  // namespace

void Worker::fail_job(JobSlot slot, Errc code) noexcept {
  WorkerJob* job = find(slot);
  if (!job || job->failed != Errc::kOk) return;
  job->failed = code;
  give_up_credit(*job, false);
  has_steps_ = true;
}

void Worker::remove_job(JobSlot slot, Errc code) noexcept {
  WorkerJob* job = find(slot);
  if (!job) return;
  fail_job(slot, code);
  job->removed = true;
  has_steps_ = true;
}

// A server has taken a worker's part out. The credit is given up: only sums acknowledge now, and
// workers that release in different orders would wait for each other's partitions for ever.
void Worker::refill(JobSlot slot) {
  WorkerJob* job = find(slot);
  if (!job || job->failed != Errc::kOk) return;
  if (job->partitions) {
    give_up_credit(*job, false);
    begin_credit(*job);
  }
  job->not_refilled = TensorIndex(0);
  has_steps_ = true;
}

bool Worker::take_removed(uint32_t& looks, JobSlot& out) noexcept {
  if (!has_steps_) return false;
  has_steps_ = false;
  bool found = false;
  const size_t first = first_to_refill_;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const size_t slot = (first + i) % jobs_.size();
    WorkerJob* const job = jobs_[slot].get();
    if (job == nullptr) continue;
    if (!found && !lacks_room_ && job->failed == Errc::kOk) {
      const size_t waiting = waiting_ranges();
      follow_on(*job, looks);
      refill_on(*job, looks);
      if (waiting_ranges() != waiting) first_to_refill_ = slot + 1;
    }
    if (!found && job->failed != Errc::kOk) give_up_on(*job, looks);
    if (!found && job->removed && job->tensors.size() == 0 && job->old_credits.empty()) {
      found = true;
      out = JobSlot(static_cast<uint16_t>(slot));
      jobs_held_up_ -= !job->held_up.empty();
      jobs_[slot].reset();
      continue;
    }
    const bool waits = job->failed == Errc::kOk && !job->held_up.empty();
    has_steps_ = has_steps_ || (job->has_steps() && !waits);
  }
  for (const auto& job : jobs_) {  // nobody waits for it
    if (job) drop_credits(*job, looks);
  }
  return found;
}

void Worker::follow_on(WorkerJob& job, uint32_t& looks) noexcept {
  for (; looks > 0 && job.not_followed.value < job.tensors.size(); ++job.not_followed.value) {
    WorkerTensor& tensor = job.tensors.at(job.not_followed);
    const PartitionRelease* const old = job.waited_for(tensor);
    const auto from = old != nullptr ? old->waited_from(tensor.tensor_index) : std::nullopt;
    if (from && !has_room_for_ranges(job)) break;
    --looks;
    if (from) let_go(job, tensor, *from);
    if (!job.partitions || job.partitions->has(tensor.tensor_index)) continue;
    plan_partitions(job, tensor);
    looks -= std::min(looks, kLooksToAdd - 1);
  }
  if (job.not_followed.value == job.tensors.size()) job.not_followed = WorkerJob::kNoTensor;
}

void Worker::let_go(const WorkerJob& job, WorkerTensor& tensor, uint32_t from) noexcept {
  tensor.credit = 0;
  for (const WorkerJob::Bound& shard : job.shards) {
    const ChunkSpan share = tensor.shard_plan.span(shard.shard);
    const ChunkIndex first = tensor.plan.span(shard.shard, from).first;
    queue_range(job, shard.session, tensor, {first, share.end().value - first.value});
  }
}

// Those of which nothing is to be let go any more.
void Worker::drop_credits(WorkerJob& job, uint32_t& looks) noexcept {
  const bool walks = job.failed == Errc::kOk && job.not_followed != WorkerJob::kNoTensor;
  while (looks > 0 && !job.old_credits.empty()) {
    WorkerJob::OldCredit& oldest = job.old_credits.front();
    if ((oldest.lets_go && walks) || !oldest.partitions->drop(looks)) return;
    job.old_credits.erase(job.old_credits.begin());
  }
}

void Worker::refill_on(WorkerJob& job, uint32_t& looks) noexcept {
  for (; looks > 0 && job.not_refilled.value < job.tensors.size(); ++job.not_refilled.value) {
    WorkerTensor& tensor = job.tensors.at(job.not_refilled);
    const bool waits = tensor.in_flight && tensor.missing_sums > 0;
    if (waits && !has_room_for_ranges(job)) break;
    --looks;
    if (!waits) continue;
    looks -= std::min(looks, tensor.chunks / kChunksPerLook);
    if (job.counts(tensor)) withdraw(job, tensor);  // it was pushed since the credit was given up
    tensor.credit = 0;
    tensor.acks_void = true;
    tensor.missing_acks = tensor.missing_sums;
    tensor.pushed = tensor.summed;
    tensor.row = tensor.sent_of_row = 0;
    for (const WorkerJob::Bound& shard : job.shards) {
      queue_range(job, shard.session, tensor, tensor.shard_plan.span(shard.shard));
    }
  }
  if (job.not_refilled.value == job.tensors.size()) job.not_refilled = WorkerJob::kNoTensor;
}

void Worker::give_up_on(WorkerJob& job, uint32_t& looks) noexcept {
  for (; looks > 0 && job.given_up < job.tensors.size(); --looks, ++job.given_up) {
    give_up(job, job.tensors.at(TensorIndex(job.given_up)), job.failed);
  }
  if (!job.removed || job.given_up < job.tensors.size()) return;
  for (; looks > 0 && job.tensors.size() > 0; looks -= std::min(looks, kLooksToFree)) {
    const WorkerTensor& last = job.tensors.at(TensorIndex(job.tensors.size() - 1));
    if (last.absent) most_absent_words_ -= job.absent_words_of_tensor();
    job.found = nullptr;
    job.tensors.drop_last();
    most_completions_ -= kCompletionsOfTensor;
    most_ranges_ -= job.shards.size();
  }
}

void Worker::give_up(const WorkerJob& job, WorkerTensor& tensor, Errc code) noexcept {
  for (const uint64_t cookie : {tensor.push_cookie, tensor.pull_cookie}) {
    if (cookie != 0) complete(job, cookie, tensor.spec.tensor, tensor.round, code);
  }
  tensor.give_up();
}

}  // namespace mercury
