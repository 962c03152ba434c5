// GradientExchange: the cold paths: sessions are bound, and jobs and programs come and go, as the
// control plane's commands say.
#include <algorithm>

#include "shim/exchange/gradient_exchange.h"

namespace mercury {

Status GradientExchange::bind(SessionSlot session, const Binding& binding) {
  if (Status added = scheduler_.add_session(session, binding.job); !added) return added;
  scheduler_.block(session);  // the engine unblocks it when its window has room
  bindings_[session.value] = binding;
  return {};
}

Status GradientExchange::bind_shard(JobSlot job, uint16_t shard, SessionSlot session) {
  if (Status bound = worker_.bind_shard(job, shard, session); !bound) return bound;
  return bind(session, {Kind::kShard, job, shard, 0});
}

Status GradientExchange::bind_worker(JobSlot slot, uint16_t rank, uint32_t incarnation,
                                     SessionSlot session) {
  ServerJob& job = server_jobs_[slot.value];
  if (!job.present || rank >= job.spec.workers) {
    return Error(Errc::kNotFound, "bind of a worker to a job that is not here");
  }
  if (Status set = aggregator_.set_incarnation(slot, rank, incarnation); !set) return set;
  const bool catches_up = job.replaced[rank] != 0;
  if (Status bound = bind(session, {Kind::kWorker, slot, rank, incarnation, catches_up}); !bound) {
    return bound;
  }
  job.workers[rank] = session;
  job.bound[rank] = 1;
  return {};
}

void GradientExchange::forget(SessionSlot session) {
  Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kNone) return;
  scheduler_.remove_session(session);
  if (binding.kind == Kind::kWorker) {
    ServerJob& job = server_jobs_[binding.job.value];
    if (job.present && job.bound[binding.rank] && job.workers[binding.rank] == session) {
      job.bound[binding.rank] = 0;
    }
  }
  std::erase_if(lost_, [session](const auto& item) { return item.first == session; });
  binding = Binding{};
}

Status GradientExchange::add_server_job(const command::AddServerJob& spec) {
  ServerJob& job = server_jobs_[spec.job.value];
  if (job.present) return Error(Errc::kExists, "the job slot is taken in this engine");
  const AggregationJob aggregation{spec.workers, spec.deterministic, spec.memory_limit_bytes,
                                   spec.quorum,  spec.patience_ns,   spec.stall_ns};
  if (Status added = aggregator_.add_job(spec.job, aggregation); !added) return added;
  if (Status added = scheduler_.add_job(spec.job, spec.weight); !added) {
    aggregator_.remove_job(spec.job);
    return added;
  }
  job.present = true;
  ++serving_;
  job.spec = spec;
  job.workers.assign(spec.workers, SessionSlot());
  job.bound.assign(spec.workers, 0);
  job.replaced.assign(spec.workers, 0);
  counters_.set(Gauge::kJobs, ++jobs_);
  return set_policy(spec.job, spec.policy);
}

Status GradientExchange::replace_worker(const command::ReplaceWorker& request) {
  ServerJob& job = server_jobs_[request.job.value];
  if (!job.present || request.rank >= job.spec.workers) {
    return Error(Errc::kNotFound, "a worker was replaced in a job that is not here");
  }
  const Status set = aggregator_.set_incarnation(request.job, request.rank, request.incarnation);
  if (!set) return set;
  job.bound[request.rank] = 0;
  job.replaced[request.rank] = 1;
  event::WorkerReplaced replaced{request.job, request.rank, request.incarnation, {}};
  for (const TensorRound& at : aggregator_.open_rounds(request.job)) {
    replaced.rounds.push_back({at.tensor, at.round});
  }
  events_.emplace_back(std::move(replaced));
  return {};
}

Status GradientExchange::add_server_tensor(const command::AddTensor& spec) {
  ServerJob& job = server_jobs_[spec.job.value];
  const uint32_t elems = chunk_elems(spec.chunk_bytes, static_cast<uint32_t>(size_of(spec.dtype)));
  const ChunkSpan share = plan_of(job, spec).span(job.spec.shard);
  if (Status added = aggregator_.add_tensor(spec.job, {spec.tensor, spec.numel, spec.dtype, spec.op,
                                                       elems, share.first, share.count});
      !added) {
    return added;
  }
  counters_.set(Gauge::kSumBytes, aggregator_.memory_bytes());
  job.tensors.push_back(spec);
  if (job.gate) add_to_gate(job, spec);
  return {};
}

Status GradientExchange::on_command(const Command& any) {
  if (const auto* c = std::get_if<command::AddWorkerJob>(&any)) {
    if (c->job.value >= server_jobs_.size()) return Error(Errc::kLimit, "too many jobs");
    if (Status added = worker_.add_job(*c); !added) return added;
    counters_.set(Gauge::kJobs, ++jobs_);
    if (Status added = scheduler_.add_job(c->job, c->weight); !added) return added;
    return set_policy(c->job, c->policy);
  }
  if (const auto* c = std::get_if<command::AddServerJob>(&any)) {
    if (c->job.value >= server_jobs_.size()) return Error(Errc::kLimit, "too many jobs");
    return add_server_job(*c);
  }
  if (const auto* c = std::get_if<command::AddTensor>(&any)) {
    const Status added = worker_.has_job(c->job) ? worker_.add_tensor(*c) : add_server_tensor(*c);
    if (added) set_unit(c->job);
    return added;
  }
  if (const auto* c = std::get_if<command::Confirm>(&any)) {
    events_.emplace_back(event::Confirmed{c->job, c->number});
  }
  if (const auto* c = std::get_if<command::CountChunks>(&any)) {
    events_.emplace_back(event::ChunksMoved{c->job, worker_.chunks_moved(c->job)});
  }
  if (const auto* c = std::get_if<command::ReplaceWorker>(&any)) return replace_worker(*c);
  if (const auto* c = std::get_if<command::WithdrawWorker>(&any)) {
    aggregator_.withdraw(c->job, c->rank);
    if (c->ending) aggregator_.end_admission(c->job);
  }
  if (const auto* c = std::get_if<command::Refill>(&any)) worker_.refill(c->job);
  if (const auto* c = std::get_if<command::SetPolicy>(&any)) return set_policy(c->job, c->policy);
  if (const auto* c = std::get_if<command::RemoveJob>(&any)) remove_job(*c);
  if (const auto* c = std::get_if<command::FailJob>(&any)) worker_.fail_job(c->job, c->code);
  if (const auto* c = std::get_if<command::FailRounds>(&any)) worker_.fail_rounds(*c);
  if (const auto* c = std::get_if<command::AttachChannel>(&any)) {
    programs_.push_back({c->channel, false, {}});
    counters_.set(Gauge::kChannels, programs_.size());
  }
  if (const auto* c = std::get_if<command::DetachChannel>(&any)) detach(c->channel);
  return {};
}

void GradientExchange::remove_job(const command::RemoveJob& request) {
  for (uint32_t i = 0; i < bindings_.size(); ++i) {
    if (bindings_[i].kind != Kind::kNone && bindings_[i].job == request.job) forget(SessionSlot(i));
  }
  if (worker_.has_job(request.job)) {
    worker_.remove_job(request.job, request.code);
    scheduler_.remove_job(request.job);
    forget_job(request.job);
  } else if (server_jobs_[request.job.value].present) {
    server_jobs_[request.job.value] = ServerJob{};
    --serving_;
    scheduler_.remove_job(request.job);
    draining_.push_back(request.job);
  } else {
    events_.emplace_back(event::JobRemoved{request.job});
  }
}

void GradientExchange::forget_job(JobSlot job) {
  counters_.set(Gauge::kJobs, --jobs_);
  counters_.set(Gauge::kSumBytes, aggregator_.memory_bytes());
  events_.emplace_back(event::JobRemoved{job});
}

// Completions that the program will never read are dropped with it.
void GradientExchange::detach(EngineChannel* channel) {
  worker_.drop_completions(channel);
  std::erase_if(programs_, [channel](const Program& p) { return p.channel == channel; });
  counters_.set(Gauge::kChannels, programs_.size());
  events_.emplace_back(event::ChannelDetached{channel});
}

std::optional<Event> GradientExchange::take_event() {
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace mercury
