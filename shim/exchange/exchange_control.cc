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
  return {};
}

Status GradientExchange::bind_shard(JobSlot job, uint16_t shard, SessionSlot session) {
  if (Status bound = worker_.bind_shard(job, shard, session); !bound) return bound;
  return bind(session, {Kind::kShard, shard, job, {}});
}

Status GradientExchange::bind_worker(JobSlot job, uint16_t rank, uint32_t incarnation,
                                     SessionSlot session) {
  const Result<WorkerPeer> worker = server_.bind_worker(job, rank, incarnation, session);
  if (!worker) return worker.error();
  Status bound = bind(session, {Kind::kWorker, 0, job, *worker});
  if (!bound) server_.forget(session, *worker);
  return bound;
}

void GradientExchange::forget(SessionSlot session) {
  Binding& binding = bindings_[session.value];
  if (binding.kind == Kind::kNone) return;
  sends_.forget(session);
  if (binding.kind == Kind::kWorker) server_.forget(session, binding.worker);
  binding = Binding{};
}

Status GradientExchange::add_worker_job(const command::AddWorkerJob& spec) {
  if (spec.job.value >= max_jobs_) return Error(Errc::kLimit, "too many jobs");
  if (Status added = worker_.add_job(spec); !added) return added;
  ++worker_jobs_;
  count_jobs();
  if (Status added = sends_.scheduler().add_job(spec.job, spec.weight); !added) return added;
  return set_policy(spec.job, spec.policy);
}

Status GradientExchange::add_server_job(const command::AddServerJob& spec) {
  if (Status added = server_.add_job(spec); !added) return added;
  count_jobs();
  return set_policy(spec.job, spec.policy);
}

Status GradientExchange::add_tensor(const command::AddTensor& spec) {
  const Status added =
      worker_.has_job(spec.job) ? worker_.add_tensor(spec) : server_.add_tensor(spec);
  if (added) set_unit(spec.job);
  return added;
}

Status GradientExchange::on_command(const Command& any) {
  if (const auto* c = std::get_if<command::AddWorkerJob>(&any)) return add_worker_job(*c);
  if (const auto* c = std::get_if<command::AddServerJob>(&any)) return add_server_job(*c);
  if (const auto* c = std::get_if<command::AddTensor>(&any)) return add_tensor(*c);
  if (const auto* c = std::get_if<command::Confirm>(&any)) {
    events_.emplace_back(event::Confirmed{c->job, c->number});
  }
  if (const auto* c = std::get_if<command::CountChunks>(&any)) {
    events_.emplace_back(event::ChunksMoved{c->job, worker_.chunks_moved(c->job)});
  }
  if (const auto* c = std::get_if<command::ReplaceWorker>(&any)) return server_.replace_worker(*c);
  if (const auto* c = std::get_if<command::WithdrawWorker>(&any)) server_.withdraw_worker(*c);
  if (const auto* c = std::get_if<command::Refill>(&any)) worker_.refill(c->job);
  if (const auto* c = std::get_if<command::SetPolicy>(&any)) return set_policy(c->job, c->policy);
  if (const auto* c = std::get_if<command::RemoveJob>(&any)) remove_job(*c);
  if (const auto* c = std::get_if<command::FailJob>(&any)) worker_.fail_job(c->job, c->code);
  if (const auto* c = std::get_if<command::FailRounds>(&any)) worker_.fail_rounds(*c);
  if (const auto* c = std::get_if<command::AttachChannel>(&any)) programs_.attach(c->channel);
  if (const auto* c = std::get_if<command::DetachChannel>(&any)) {
    worker_.drop_completions(c->channel);
    programs_.detach(c->channel);
  }
  return {};
}

void GradientExchange::remove_job(const command::RemoveJob& request) {
  for (uint32_t i = 0; i < bindings_.size(); ++i) {
    if (bindings_[i].kind != Kind::kNone && bindings_[i].job == request.job) forget(SessionSlot(i));
  }
  if (server_.has_job(request.job)) return server_.remove_job(request.job);
  if (worker_.has_job(request.job)) {
    worker_.remove_job(request.job, request.code);
    sends_.scheduler().remove_job(request.job);
    --worker_jobs_;
    count_jobs();
  }
  events_.emplace_back(event::JobRemoved{request.job});
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

bool GradientExchange::grants_by_urgency(JobSlot job) const noexcept {
  const Policy* policy = policy_of(job);
  return policy == nullptr || policy->grants == Policy::Grants::kUrgency;
}

uint32_t GradientExchange::chunk_bytes(JobSlot job) const noexcept {
  return worker_.has_job(job) ? worker_.chunk_bytes(job) : server_.chunk_bytes(job);
}

void GradientExchange::set_unit(JobSlot job) {
  const Policy* policy = policy_of(job);
  if (policy == nullptr) return;
  sends_.scheduler().set_unit(job, unit_frames(*policy, chunk_bytes(job)));
}

Status GradientExchange::set_policy(JobSlot job, std::string_view text) {
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
  return {};
}

}  // namespace mercury
