// GradientExchange: the cold paths: sessions are bound, jobs and programs come and go, and policies
// change, as the control plane's commands say.
#include <string>
#include <utility>

#include "shim/exchange/gradient_exchange.h"

namespace mercury {

Status GradientExchange::bind(SessionSlot session, const Binding& binding) {
  if (Status added = sends_.scheduler().add_session(session, binding.job); !added) return added;
  sends_.scheduler().block(session);  // the engine unblocks it when its window has room
  bindings_[session.value] = binding;
  SessionSlot& last = bound_to_[binding.job.value];
  if (last != kNoSession) bindings_[last.value].next = session;
  bindings_[session.value].previous = std::exchange(last, session);
  return {};
}

Status GradientExchange::run(const command::BindShard& request, SessionHost& host) {
  const auto session = host.claim(request.token);
  if (!session) return {};
  if (Status bound = worker_.bind_shard(request.job, request.shard, *session); !bound) return bound;
  return bind(*session, {Kind::kShard, {request.shard}, request.job, {}});
}

Status GradientExchange::run(const command::BindWorker& request, SessionHost& host) {
  const auto session = host.claim(request.token);
  if (!session) return {};
  const Result<WorkerPeer> worker =
      server_.bind_worker(request.job, request.rank, request.incarnation, *session);
  if (!worker) return worker.error();
  Status bound = bind(*session, {Kind::kWorker, {}, request.job, *worker});
  if (!bound) server_.forget(*session, *worker);
  return bound;
}

void GradientExchange::forget(SessionSlot session) {
  Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kNone) return;
  sends_.forget(session);
  if (binding.kind == Kind::kWorker) server_.forget(session, binding.worker);
  if (binding.previous != kNoSession) bindings_[binding.previous.value].next = binding.next;
  (binding.next != kNoSession ? bindings_[binding.next.value].previous
                              : bound_to_[binding.job.value]) = binding.previous;
  binding = Binding{};
}

// --- jobs ---------------------------------------------------------------------------------------

Status GradientExchange::run(const command::AddWorkerJob& spec, SessionHost& host) {
  const uint32_t servers = (uint32_t{spec.shards} + spec.lanes - 1) / spec.lanes;  // of this lane
  host.expect(spec.job, {servers, spec.workers, spec.terms.weight});
  if (spec.job.value >= max_jobs_) return Error(Errc::kLimit, "too many jobs");
  if (Status added = worker_.add_job(spec); !added) return added;
  ++worker_jobs_;
  count_jobs();
  if (Status added = sends_.scheduler().add_job(spec.job, spec.terms.weight); !added) return added;
  sends_.limit(spec.job, spec.bytes_per_second);
  return set_policy(spec.job, spec.terms.policy, host);
}

Status GradientExchange::run(const command::AddServerJob& spec, SessionHost& host) {
  host.expect(spec.job, {spec.workers, uint32_t{spec.shards} / spec.lanes, spec.terms.weight});
  if (Status added = server_.add_job(spec); !added) return added;
  sends_.limit(spec.job, spec.bytes_per_second);
  count_jobs();
  return set_policy(spec.job, spec.terms.policy, host);
}

Status GradientExchange::run(const command::AddTensor& spec, SessionHost&) {
  const bool of_worker = worker_.has_job(spec.job);
  Status added = of_worker ? worker_.add_tensor(spec) : server_.add_tensor(spec);
  if (!added) return added;
  if (of_worker) {
    const EngineChannel* const channel = worker_.channel_of(spec.job);
    programs_.make_room(channel, worker_.most_completions(channel));
  }
  set_unit(spec.job);
  return {};
}

Status GradientExchange::run(const command::Confirm& request, SessionHost&) {
  events_.emplace_back(event::Confirmed{request.job, request.number});
  return {};
}

Status GradientExchange::run(const command::CountChunks& request, SessionHost&) {
  events_.emplace_back(event::ChunksMoved{request.job, worker_.chunks_moved(request.job)});
  return {};
}

Status GradientExchange::run(const command::ReplaceWorker& request, SessionHost&) {
  return server_.replace_worker(request);
}

Status GradientExchange::run(const command::WithdrawWorker& request, SessionHost&) {
  server_.withdraw_worker(request);
  return {};
}

Status GradientExchange::run(const command::Refill& request, SessionHost&) {
  worker_.refill(request.job);
  return {};
}

Status GradientExchange::run(const command::SetPolicy& request, SessionHost& host) {
  return set_policy(request.job, request.policy, host);
}

Status GradientExchange::run(const command::FailJob& request, SessionHost&) {
  worker_.fail_job(request.job, request.code);
  return {};
}

Status GradientExchange::run(const command::FailRounds& request, SessionHost&) {
  worker_.fail_rounds(request);
  return {};
}

Status GradientExchange::run(const command::RemoveJob& request, SessionHost& host) {
  host.release(request.job, request.code, request.text);
  const bool serves = server_.has_job(request.job);
  if (serves) server_.remove_job(request.job);  // JobRemoved follows when it is drained
  if (request.job.value < max_jobs_) {
    while (bound_to_[request.job.value] != kNoSession) forget(bound_to_[request.job.value]);
  }
  if (serves) return {};
  if (worker_.has_job(request.job)) {
    worker_.remove_job(request.job, request.code);  // the same when its operations have ended
    sends_.remove_job(request.job);
    return {};
  }
  events_.emplace_back(event::JobRemoved{request.job});
  return {};
}

// --- programs -----------------------------------------------------------------------------------

Status GradientExchange::run(const command::AttachChannel& request, SessionHost&) {
  programs_.attach(request.channel);
  return {};
}

Status GradientExchange::run(const command::DetachChannel& request, SessionHost&) {
  worker_.drop_completions(request.channel);
  programs_.detach(request.channel);
  return {};
}

// --- events -------------------------------------------------------------------------------------

void GradientExchange::report_failure(JobSlot job, const Error& error) {
  events_.emplace_back(event::CommandFailed{job, error.code, error.message});
}

void GradientExchange::count_jobs() noexcept {
  counters_.set(Gauge::kJobs, worker_jobs_ + server_.job_count());
}

std::optional<Event> GradientExchange::take_event() {
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// --- policy -------------------------------------------------------------------------------------

const Policy* GradientExchange::policy_of(JobSlot job) const noexcept {
  if (worker_.has_job(job)) return &worker_.policy_of(job);
  return server_.has_job(job) ? &server_.policy_of(job) : nullptr;
}

uint32_t GradientExchange::chunk_bytes(JobSlot job) const noexcept {
  return worker_.has_job(job) ? worker_.chunk_bytes(job) : server_.chunk_bytes(job);
}

void GradientExchange::set_unit(JobSlot job) {
  const Policy* policy = policy_of(job);
  if (policy == nullptr) return;
  sends_.scheduler().set_unit(job, unit_frames(*policy, chunk_bytes(job)));
}

Status GradientExchange::set_policy(JobSlot job, std::string_view text, SessionHost& host) {
  const Result<Policy> policy = parse_engine_policy(text);
  if (!policy) return policy.error();
  const Policy* before = policy_of(job);
  if (before == nullptr) return {};  // the job has ended meanwhile
  if (chunk_bytes(job) != 0 && before->place != policy->place) {
    return Error(Errc::kInvalidArgument, "policy '" + std::string(text) +
                                             "' places tensors on other servers than the job's");
  }
  if (worker_.has_job(job)) {
    worker_.set_policy(job, *policy);
  } else {
    server_.set_policy(job, *policy);
  }
  set_unit(job);
  host.heed_urgency(job, policy->grants == Policy::Grants::kUrgency);
  return {};
}

}  // namespace mercury
