// GradientExchange: a job's policy, when it begins and while it runs.
#include "shim/runtime/gradient_exchange.h"

namespace mercury {

Status GradientExchange::set_policy(JobSlot slot, std::string_view text) {
  const Result<Policy> policy = parse_engine_policy(text);
  if (!policy) return policy.error();
  if (worker_.has_job(slot)) {
    worker_.set_policy(slot, *policy);
  } else if (slot.value < server_jobs_.size() && server_jobs_[slot.value].present) {
    set_server_policy(slot, server_jobs_[slot.value], *policy);
  }
  return {};
}

void GradientExchange::set_server_policy(JobSlot slot, ServerJob& job, const Policy& policy) {
  if (job.gate) job.gate->drain([&](const ChunkRange& range) { answer_all(job, range); });
  job.gate.reset();
  job.policy = policy;
  if (policy.forward == Policy::Forward::kChunk) return;
  job.gate = std::make_unique<ForwardGate>();
  for (const command::AddTensor& tensor : job.tensors) add_to_gate(job, tensor);
  // What is complete in the rounds that are open has been answered: the others wait for it no more.
  for (const TensorRound& open : aggregator_.open_rounds(slot)) {
    ChunkResult result;
    const ChunkSpan share = job.gate->share_of(open.tensor);
    for (uint32_t i = 0; i < share.count; ++i) {
      if (aggregator_.result(slot, open.tensor, open.round, share.first + i, result)) {
        job.gate->answered(open.tensor, share.first + i);
      }
    }
  }
}

void GradientExchange::add_to_gate(ServerJob& job, const command::AddTensor& tensor) {
  const auto element_bytes = static_cast<uint32_t>(size_of(tensor.dtype));
  const uint32_t elems = chunk_elems(tensor.chunk_bytes, element_bytes);
  const uint64_t group_bytes =
      job.policy.forward == Policy::Forward::kPartition ? job.policy.partition_bytes : 0;
  job.gate->add_tensor(PartitionPlan::make(tensor.tensor, chunk_count(tensor.numel, elems),
                                           job.spec.shards, elems * element_bytes, group_bytes),
                       job.spec.shard);
}

}  // namespace mercury
