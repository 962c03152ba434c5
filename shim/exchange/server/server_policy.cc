// Server: a job's policy, and how it changes while sums are under way: in steps, as a job may have
// millions of chunks, and no frame is received as long as one step takes.
//
// A gate that holds sums back has to know which chunks of the rounds that are open have been
// answered already. So a new one counts along before it takes the last one's place: of a chunk that
// the walk has come to it hears each sum, and of the others how many rounds they are ahead when the
// walk comes to them. A group counts the sums of its chunks and begins anew when all are there, so
// the order in which it hears of them says nothing.
#include <algorithm>
#include <memory>
#include <utility>

#include "shim/exchange/server/server.h"

namespace mercury {
namespace {

// In looks at chunks: to answer all workers, however few.
constexpr uint32_t kLooksPerAnswer = 16;

bool holds_back(const Policy& policy) noexcept {
  return policy.forward != Policy::Forward::kChunk || policy.unit_bytes != 0;
}

}  // namespace

uint32_t Server::chunk_bytes(JobSlot slot) const noexcept { return jobs_[slot.value].chunk_bytes; }

void Server::set_policy(JobSlot slot, const Policy& policy) {
  ServerJob& job = jobs_[slot.value];
  GateChange& change = gate_changes_[slot.value];
  job.policy = policy;
  drop_gate(std::move(change.next));
  if (holds_back(policy)) {
    change.next = std::make_unique<ForwardGate>();
    change.tensor = TensorIndex(0);
    change.chunks = 0;
    if (aggregator_.tensor_count(slot) == 0) take_next_gate(job, change);
  } else if (job.gate) {
    change.old.push_back(std::move(job.gate));
  }
  changes_gates_ = changes_gates_ || change.is_under_way();
  walks_ = walks_ || changes_gates_;
}

void Server::take_next_gate(ServerJob& job, GateChange& change) {
  if (job.gate) change.old.push_back(std::move(job.gate));
  job.gate = std::move(change.next);
}

// Its memory goes in steps, too: a job may have tens of thousands of tensors.
void Server::drop_gate(std::unique_ptr<ForwardGate> gate) {
  if (!gate) return;
  dropped_gates_.push_back(std::move(gate));
  changes_gates_ = walks_ = true;
}

void Server::GateChange::note_complete(const ChunkKey& key) noexcept {
  if (!next || key.tensor.value > tensor.value) return;
  if (key.tensor == tensor &&
      (chunks == 0 || key.chunk.value - next->share_of(tensor).first.value >= chunks)) {
    return;
  }
  next->answered(key.tensor, key.chunk);
}

uint32_t Server::change_gates(uint32_t looks) {
  uint32_t left = looks;
  changes_gates_ = false;
  for (size_t slot = 0; slot < jobs_.size(); ++slot) {
    ServerJob& job = jobs_[slot];
    GateChange& change = gate_changes_[slot];
    if (change.next) teach_gate(job, change, left);
    const uint32_t an_answer = std::max<uint32_t>(kLooksPerAnswer, job.spec.workers);
    while (left > 0 && !change.old.empty()) {
      const bool empty = change.old.front()->drain(left, [&](const ChunkRange& range) {
        answer_all(job, range);
        left -= std::min(left, an_answer);
      });
      if (empty) change.old.erase(change.old.begin());
    }
    changes_gates_ = changes_gates_ || change.is_under_way();
  }
  while (left > 0 && !dropped_gates_.empty()) {
    if (dropped_gates_.back()->drop(left)) dropped_gates_.pop_back();
  }
  changes_gates_ = changes_gates_ || !dropped_gates_.empty();
  return looks - left;
}

void Server::teach_gate(ServerJob& job, GateChange& change, uint32_t& looks) {
  const uint32_t tensors = aggregator_.tensor_count(job.spec.job);
  for (; looks > 0 && change.tensor.value < tensors; --looks) {
    const TensorIndex tensor = change.tensor;
    if (change.chunks == 0) {
      add_to_gate(job, *change.next, aggregator_.tensor(job.spec.job, tensor));
    }
    const ChunkSpan share = change.next->share_of(tensor);
    if (change.chunks == share.count) {
      ++change.tensor.value;
      change.chunks = 0;
      continue;
    }
    const ChunkIndex chunk = share.at(change.chunks);
    const Round open = aggregator_.open_round(job.spec.job, tensor, chunk);
    // The rounds of a tensor's chunks differ by one at most.
    if (change.chunks == 0) change.base = open.previous();
    for (int32_t ahead = open.since(change.base); ahead > 0; --ahead) {
      change.next->answered(tensor, chunk);
    }
    ++change.chunks;
  }
  if (change.tensor.value == tensors) take_next_gate(job, change);
}

ShardPlan Server::plan_of(const ServerJob& job, const AggregationTensor& tensor) {
  const uint32_t chunks = chunk_count(tensor.numel, tensor.chunk_elems);
  return on_one_server(job.policy, tensor.numel)
             ? ShardPlan::whole(tensor.tensor, chunks, job.spec.shards)
             : ShardPlan(tensor.first_shard, chunks, job.spec.shards);
}

// What is answered together: the shard's part of a partition, a unit of it, or all of its share.
void Server::add_to_gate(const ServerJob& job, ForwardGate& gate, const AggregationTensor& tensor) {
  const uint32_t chunk_bytes = tensor.chunk_elems * static_cast<uint32_t>(size_of(tensor.dtype));
  const uint32_t chunks = chunk_count(tensor.numel, tensor.chunk_elems);
  uint16_t shards = job.spec.shards;
  Shard shard = job.spec.shard;
  if (on_one_server(job.policy, tensor.numel)) {  // as the only shard, or as one beside it
    shard = plan_of(job, tensor).span(shard).count == chunks ? Shard(0) : Shard(1);
    shards = 1;
  }
  uint64_t group_bytes = 0;
  if (job.policy.forward == Policy::Forward::kPartition) group_bytes = job.policy.partition_bytes;
  if (job.policy.forward == Policy::Forward::kChunk) {
    group_bytes = uint64_t{unit_frames(job.policy, job.chunk_bytes)} * shards * chunk_bytes;
  }
  gate.add_tensor(PartitionPlan::make(tensor.first_shard, chunks, shards, chunk_bytes, group_bytes),
                  shard);
}

}  // namespace mercury
