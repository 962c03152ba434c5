// GradientExchange: a job's policy, when it begins and while it runs.
#include "shim/exchange/gradient_exchange.h"

namespace mercury {

const Policy* GradientExchange::policy_of(JobSlot slot) const noexcept {
  if (worker_.has_job(slot)) return &worker_.policy_of(slot);
  if (slot.value >= server_jobs_.size() || !server_jobs_[slot.value].present) return nullptr;
  return &server_jobs_[slot.value].policy;
}

bool GradientExchange::grants_by_urgency(JobSlot slot) const noexcept {
  const Policy* policy = policy_of(slot);
  return policy == nullptr || policy->grants == Policy::Grants::kUrgency;
}

uint32_t GradientExchange::chunk_bytes(JobSlot slot) const noexcept {
  if (worker_.has_job(slot)) return worker_.chunk_bytes(slot);
  const ServerJob& job = server_jobs_[slot.value];
  return job.tensors.empty() ? 0 : job.tensors.front().chunk_bytes;
}

void GradientExchange::set_unit(JobSlot slot) {
  const Policy* policy = policy_of(slot);
  if (policy != nullptr) scheduler_.set_unit(slot, unit_frames(*policy, chunk_bytes(slot)));
}

Status GradientExchange::set_policy(JobSlot slot, std::string_view text) {
  const Result<Policy> policy = parse_engine_policy(text);
  if (!policy) return policy.error();
  const Policy* before = policy_of(slot);
  if (before != nullptr && chunk_bytes(slot) != 0 && before->place != policy->place) {
    return Error(Errc::kInvalidArgument, "policy '" + std::string(text) +
                                             "' places tensors on other servers than the job's");
  }
  if (worker_.has_job(slot)) {
    worker_.set_policy(slot, *policy);
  } else if (slot.value < server_jobs_.size() && server_jobs_[slot.value].present) {
    set_server_policy(slot, server_jobs_[slot.value], *policy);
  }
  set_unit(slot);
  return {};
}

void GradientExchange::set_server_policy(JobSlot slot, ServerJob& job, const Policy& policy) {
  if (job.gate) job.gate->drain([&](const ChunkRange& range) { answer_all(job, range); });
  job.gate.reset();
  job.policy = policy;
  if (policy.forward == Policy::Forward::kChunk && policy.unit_bytes == 0) return;
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

ShardPlan GradientExchange::plan_of(const ServerJob& job, const command::AddTensor& tensor) {
  const uint32_t elems =
      chunk_elems(tensor.chunk_bytes, static_cast<uint32_t>(size_of(tensor.dtype)));
  const uint32_t chunks = chunk_count(tensor.numel, elems);
  return on_one_server(job.policy, tensor.numel)
             ? ShardPlan::whole(tensor.tensor, chunks, job.spec.shards)
             : ShardPlan(tensor.tensor, chunks, job.spec.shards);
}

// What is answered together: the shard's part of a partition, a unit of it, or all of its share.
void GradientExchange::add_to_gate(ServerJob& job, const command::AddTensor& tensor) {
  const auto element_bytes = static_cast<uint32_t>(size_of(tensor.dtype));
  const uint32_t elems = chunk_elems(tensor.chunk_bytes, element_bytes);
  const uint32_t chunks = chunk_count(tensor.numel, elems);
  uint16_t shards = job.spec.shards;
  uint16_t shard = job.spec.shard;
  if (on_one_server(job.policy, tensor.numel)) {  // as the only shard, or as one beside it
    shard = plan_of(job, tensor).span(shard).count == chunks ? 0 : 1;
    shards = 1;
  }
  uint64_t group_bytes = 0;
  if (job.policy.forward == Policy::Forward::kPartition) group_bytes = job.policy.partition_bytes;
  if (job.policy.forward == Policy::Forward::kChunk) {
    group_bytes =
        uint64_t{unit_frames(job.policy, tensor.chunk_bytes)} * shards * elems * element_bytes;
  }
  job.gate->add_tensor(
      PartitionPlan::make(tensor.tensor, chunks, shards, elems * element_bytes, group_bytes),
      shard);
}

}  // namespace mercury
