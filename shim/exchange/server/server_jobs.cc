// Server: jobs, workers and tensors come and go. Cold.
#include <algorithm>
#include <memory>
#include <utility>

#include "shim/exchange/server/server.h"

namespace mercury {

Status Server::add_job(const command::AddServerJob& spec) {
  if (spec.job.value >= jobs_.size()) return Error(Errc::kLimit, "too many jobs");
  ServerJob& job = jobs_[spec.job.value];
  if (job.present) return Error(Errc::kExists, "the job slot is taken in this engine");
  const AggregationJob aggregation{spec.workers, spec.terms, spec.memory_limit_bytes};
  if (Status added = aggregator_.add_job(spec.job, aggregation); !added) return added;
  Status added = sends_.scheduler().add_job(spec.job, spec.terms.weight);
  if (added && spec.workers > 1) {
    added = sends_.scheduler().share(spec.job);
    if (!added) sends_.remove_job(spec.job);
  }
  if (!added) {
    aggregator_.remove_job(spec.job);
    return added;
  }
  job.present = true;
  ++serving_;
  job.spec = spec;
  job.workers.assign(spec.workers, SessionSlot());
  job.bound.assign(spec.workers, 0);
  job.replaced.assign(spec.workers, 0);
  job.answered.reserve(spec.workers);
  return {};
}

void Server::note_answered(ServerJob& job) {
  job.answered.clear();
  for (size_t rank = 0; rank < job.workers.size(); ++rank) {
    if (job.bound[rank]) job.answered.push_back(job.workers[rank]);
  }
  job.takers = static_cast<uint32_t>(job.answered.size());
}

Result<WorkerPeer> Server::bind_worker(JobSlot slot, Rank rank, uint32_t incarnation,
                                       SessionSlot session) {
  if (!has_job(slot) || rank.value >= jobs_[slot.value].spec.workers) {
    return Error(Errc::kNotFound, "bind of a worker to a job that is not here");
  }
  if (Status let_in = aggregator_.admit(slot, rank, incarnation); !let_in) return let_in.error();
  ServerJob& job = jobs_[slot.value];
  if (job.bound[rank.value]) sends_.leave_shared(job.workers[rank.value]);
  job.workers[rank.value] = session;
  job.bound[rank.value] = 1;
  note_answered(job);
  return WorkerPeer{slot, rank, incarnation, job.replaced[rank.value] != 0};
}

void Server::forget(SessionSlot session, const WorkerPeer& worker) noexcept {
  if (!has_job(worker.job)) return;
  ServerJob& job = jobs_[worker.job.value];
  if (job.bound[worker.rank.value] && job.workers[worker.rank.value] == session) {
    job.bound[worker.rank.value] = 0;
    note_answered(job);
  }
}

Status Server::replace_worker(const command::ReplaceWorker& request) {
  if (!has_job(request.job) || request.rank.value >= jobs_[request.job.value].spec.workers) {
    return Error(Errc::kNotFound, "a worker was replaced in a job that is not here");
  }
  Status begun = aggregator_.replace(request.job, request.rank, request.incarnation);
  if (!begun) return begun;
  walks_ = true;
  ServerJob& job = jobs_[request.job.value];
  if (job.bound[request.rank.value]) sends_.leave_shared(job.workers[request.rank.value]);
  job.bound[request.rank.value] = 0;
  job.replaced[request.rank.value] = 1;
  note_answered(job);
  return {};
}

void Server::withdraw_worker(const command::WithdrawWorker& request) noexcept {
  aggregator_.withdraw(request.job, request.rank);
  walks_ = true;
  if (request.ending) aggregator_.end_admission(request.job);
}

Status Server::add_tensor(const command::AddTensor& spec) {
  if (!has_job(spec.job)) return Error(Errc::kNotFound, "tensor for a job that is not here");
  ServerJob& job = jobs_[spec.job.value];
  const uint32_t elems = chunk_elems(spec.chunk_bytes, static_cast<uint32_t>(size_of(spec.dtype)));
  AggregationTensor tensor{spec.tensor, spec.numel, spec.dtype, spec.op, elems};
  tensor.first_shard = spec.first_shard;
  const ChunkSpan share = plan_of(job, tensor).span(job.spec.shard);
  tensor.first_chunk = share.first;
  tensor.chunk_count = share.count;
  if (Status added = aggregator_.add_tensor(spec.job, tensor); !added) return added;
  count_sums();
  job.chunk_bytes = spec.chunk_bytes;
  if (job.gate) add_to_gate(job, *job.gate, tensor);
  return {};
}

void Server::count_sums() {
  counters_.set(Gauge::kSumBytes, aggregator_.memory_bytes());
  counters_.set(Gauge::kUnmappedSumBytes, aggregator_.unmapped_bytes());
}

void Server::remove_job(JobSlot slot) {
  drop_gate(std::move(jobs_[slot.value].gate));
  drop_gate(std::move(gate_changes_[slot.value].next));
  for (auto& old : gate_changes_[slot.value].old) drop_gate(std::move(old));
  jobs_[slot.value] = ServerJob{};
  gate_changes_[slot.value] = GateChange{};
  --serving_;
  sends_.remove_job(slot);
  draining_.push_back(slot);
}

}  // namespace mercury
