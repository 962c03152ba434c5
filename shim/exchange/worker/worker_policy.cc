// Worker: what depends on the job's policy.
#include <algorithm>

#include "shim/exchange/worker/worker.h"
#include "shim/exchange/worker/worker_state.h"

namespace mercury {

void Worker::plan_partitions(WorkerJob& job, WorkerTensor& tensor) {
  tensor.plan = PartitionPlan::make(tensor.spec.first_shard, tensor.chunks, job.spec.shards,
                                    tensor.full_chunk_bytes, job.policy.partition_bytes);
  const uint32_t partitions = tensor.own_chunks == 0 ? 0 : tensor.plan.partitions();
  const uint64_t before = uint64_t{partitions == 0 ? 0 : partitions - 1} *
                          tensor.plan.partition_chunks * tensor.full_chunk_bytes;
  job.partitions->add_tensor(tensor.tensor_index, partitions,
                             tensor.spec.numel * size_of(tensor.spec.dtype) - before);
}

void Worker::set_policy(JobSlot slot, const Policy& policy) {
  WorkerJob* job = find(slot);
  if (!job || job->failed != Errc::kOk) return;
  give_up_credit(*job, true);
  job->policy = policy;
  look_for_rows(*job);
  if (policy.release == Policy::Release::kPartition) begin_credit(*job);
}

// Tensors follow one by one (take_removed), or as they are pushed: a job may have tens of
// thousands.
void Worker::begin_credit(WorkerJob& job) {
  job.partitions = std::make_unique<PartitionRelease>(job.policy, job.tensors.size());
  ++job.credits;
  job.old_credits.reserve(job.old_credits.size() + 1);  // for when it is given up
  job.not_followed = TensorIndex(0);
  has_steps_ = true;
}

// What waits goes, tensor by tensor (take_removed), and nobody waits for what has gone.
void Worker::give_up_credit(WorkerJob& job, bool lets_go) noexcept {
  if (!job.partitions) return;
  job.partitions->stop();
  job.old_credits.push_back({job.credits, lets_go, std::move(job.partitions)});
  if (lets_go) job.not_followed = TensorIndex(0);
  has_steps_ = true;
}

const Policy& Worker::policy_of(JobSlot slot) const noexcept { return find(slot)->policy; }

uint32_t Worker::chunk_bytes(JobSlot slot) const noexcept {
  const WorkerJob* job = find(slot);
  return job && job->tensors.size() > 0 ? job->tensors.at(0).spec.chunk_bytes : 0;
}

// --- partitions ---------------------------------------------------------------------------------

void Worker::release(uint64_t now_ns) noexcept {
  release_due_ns_ = kNever;
  const size_t first = first_to_release_;
  for (size_t i = 0; i < jobs_.size() && !lacks_room_; ++i) {
    const size_t slot = (first + i) % jobs_.size();
    const auto& job = jobs_[slot];
    if (!job || !job->partitions || !job->held_up.empty()) continue;
    PartitionRelease::Released released;
    // The rest follows on the next pass.
    while (job->partitions->due_ns() <= now_ns && has_room_for_ranges(*job) &&
           job->partitions->next(now_ns, released)) {
      first_to_release_ = slot + 1;
      const WorkerTensor& tensor = job->tensors.at(released.tensor);
      uint32_t chunks = 0;
      for (const WorkerJob::Bound& shard : job->shards) {
        const ChunkSpan span = tensor.plan.span(shard.shard, released.partition);
        const uint32_t missing = tensor.missing_acks_of(span);
        if (missing > 0) queue_range(*job, shard.session, tensor, span);
        chunks += missing;
      }
      job->partitions->expect(released, chunks);
    }
    release_due_ns_ = std::min(release_due_ns_, job->partitions->due_ns());
  }
  if (lacks_room_) release_due_ns_ = 0;
}

void Worker::acknowledge(WorkerJob& job, const WorkerTensor& tensor, ChunkIndex chunk) noexcept {
  job.partitions->acknowledged(tensor.tensor_index, tensor.plan.partition_of(chunk));
  release_due_ns_ = std::min(release_due_ns_, job.partitions->due_ns());
}

// Its sums are all here, or it is queued otherwise. Some partitions may not have been released when
// they are: a server sums without this worker under a quorum, or where an earlier life contributed.
void Worker::withdraw(WorkerJob& job, const WorkerTensor& tensor) noexcept {
  job.partitions->withdraw(tensor.tensor_index);
  release_due_ns_ = std::min(release_due_ns_, job.partitions->due_ns());
}

// The last chunk of a partition that a server gets is acknowledged at once: the credit waits for
// it.
bool Worker::ends_partition(const WorkerTensor& tensor, ChunkIndex chunk) noexcept {
  const PartitionPlan& plan = tensor.plan;
  const ChunkSpan span = plan.span(plan.shard_of(chunk), plan.partition_of(chunk));
  return chunk.value + 1 == span.end().value;
}

}  // namespace mercury
