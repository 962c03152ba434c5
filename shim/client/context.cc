#include "shim/client/context.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "scheduler/policy.h"
#include "shim/client/options.h"

namespace mercury::client {
namespace {

Status check_tensor(const mercury_tensor_options& t) {
  const std::string name = tensor_name(TensorId(t.id));
  const int dtype = t.dtype;
  if (dtype < 0 || dtype >= kDtypeCount) {
    return Error(Errc::kInvalidArgument, name + ": unknown dtype " + std::to_string(dtype));
  }
  const auto type = static_cast<Dtype>(dtype);
  const int op = t.op;
  if (op < 0 || op >= kReduceOpCount) {
    return Error(Errc::kInvalidArgument, name + ": unknown op " + std::to_string(op));
  }
  if (!applies(static_cast<ReduceOp>(op), type)) {
    return Error(Errc::kInvalidArgument, name + ": only floating point can be averaged");
  }
  if (t.priority < 0 || t.priority > kLeastUrgent) {
    return Error(Errc::kInvalidArgument, name + ": priorities are 0 to 65535");
  }
  if (t.numel == 0 || t.numel > attach::kMaxRegionBytes / size_of(type)) {
    return Error(Errc::kInvalidArgument, name + ": bad number of elements");
  }
  if (!t.data || reinterpret_cast<uintptr_t>(t.data) % size_of(type) != 0) {
    return Error(Errc::kInvalidArgument, name + ": data must be aligned to its element's " +
                                             std::to_string(size_of(type)) + " bytes");
  }
  return {};
}

}  // namespace

Context::Context(std::unique_ptr<Backend> backend, mercury_mode mode, UniqueFd interrupt,
                 OperationTable operations)
    : backend_(std::move(backend)),
      mode_(mode),
      memory_(*backend_),
      interrupt_(std::move(interrupt)),
      operations_(std::move(operations)),
      spin_budget_(longest_spin()) {
  backend_->watch(operations_.held());
}

Result<std::unique_ptr<Context>> Context::create(std::unique_ptr<Backend> backend,
                                                 mercury_mode mode) {
  UniqueFd interrupt(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!interrupt) return Error::system(errno, "eventfd");
  Result<OperationTable> operations = OperationTable::create();
  if (!operations) return operations.error();
  return std::unique_ptr<Context>(
      new Context(std::move(backend), mode, std::move(interrupt), std::move(*operations)));
}

Context::~Context() {
  (void)close();
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return closers_ == 0; });
}

// Jobs first, so that their peers hear that they were left in order; then whoever is opening one.
// Only then are users awaited: one job's callback may wait for another job, or open one.
bool Context::close() {
  if (in_callback()) return false;
  Lock lock(mutex_);
  closed_ = true;
  ++closers_;
  const auto all = [&](bool Job::*state) {
    return std::all_of(jobs_.begin(), jobs_.end(), [&](const auto& job) { return (*job).*state; });
  };
  const auto next = [&] {
    return std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) { return !job->closing; });
  };
  std::vector<Job*> ending;  // by this thread: they stay until they have ended
  for (auto job = next(); job != jobs_.end(); job = next()) {
    ending.push_back(job->get());
    leave_job(lock, *ending.back());
  }
  changed_.wait(lock, [&] { return all(&Job::left); });
  lock.unlock();
  backend_->leave();
  lock.lock();
  for (Job* const job : ending) end_job(lock, *job);
  changed_.wait(lock, [&] { return calls_ == 0 && all(&Job::ended); });
  --closers_;
  changed_.notify_all();
  return true;
}

Result<Job*> Context::open_job(attach::JobOpen& request) {
  {
    const Lock lock(mutex_);
    if (closed_) return left_error();
    request.client_job = ++last_client_job_;
  }
  Result<attach::JobOpened> opened = backend_->open_job(request);
  if (!opened) return opened.error();
  auto job = std::make_unique<Job>();
  job->context = this;
  job->host = {opened->slot, request.client_job};
  job->role = request.role;
  job->rank = opened->rank;
  job->workers = opened->workers;
  job->servers = opened->servers;
  job->features = opened->features;
  job->quorum = request.terms.quorum > 0 && request.terms.quorum < opened->workers;
  const Result<Policy> policy = parse_engine_policy(request.terms.policy);
  if (policy) job->place = policy->place;
  Lock lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!closed_) return jobs_.back().get();
  Job& late = *jobs_.back();
  leave_job(lock, late);
  end_job(lock, late);
  remove(late);
  return left_error();
}

bool Context::close_job(Job* job) {
  if (in_callback()) return false;
  Lock lock(mutex_);
  if (job->closing) {  // with its context, which awaits this call then
    ++calls_;
    changed_.wait(lock, [&] { return job->ended; });
    --calls_;
  } else {
    leave_job(lock, *job);
    end_job(lock, *job);
  }
  remove(*job);
  return true;
}

// Whoever awaits that may destroy the context as soon as this thread lets go of the mutex.
void Context::remove(Job& job) {
  jobs_.remove_if([&](const auto& candidate) { return candidate.get() == &job; });
  changed_.notify_all();
}

// Ends what is under way in it, and awaits nobody. No callback is called: it may wait for a job
// that is to be left next.
void Context::leave_job(Lock& lock, Job& job) {
  job.closing = true;
  lock.unlock();
  backend_->close_job(job.host);  // from here on no engine touches its tensors
  lock.lock();
  progress();
  operations_.for_each([&](Operation& operation) {
    if (operation.job == &job && operation.state == Operation::State::kInFlight) {
      finish(operation, lost_ ? Errc::kDaemonLost : Errc::kClosed);
    }
  });
  job.left = true;
  wake_waiters();
  changed_.notify_all();
}

// What remains of a job that was left refuses every call, until the program closes it.
void Context::end_job(Lock& lock, Job& job) {
  run_callbacks(lock);
  wake_waiters();
  changed_.wait(lock, [&] { return job.users == 0; });
  operations_.for_each([&](Operation& operation) {
    if (operation.job == &job) operations_.release(operation);
  });
  job.done = {};
  for (const Tensor& tensor : job.tensors) unplace(tensor);
  job.index_of.clear();
  job.tensors.clear();
  if (job.barrier.memory) (void)memory_.free(job.barrier.memory);
  if (job.epoll) --armed_jobs_;
  rearm();
  job.ended = true;
  signal_queue(job);  // the descriptor stays, for whoever sleeps on it
  changed_.notify_all();
}

// What the host answers, without the mutex; the job stays meanwhile.
template <class Question>
Status Context::ask_about(Job& job, Question question) {
  {
    const Lock lock(mutex_);
    if (job.closing) return closing_error();
    ++job.users;
  }
  Status status = question();
  const Lock lock(mutex_);
  --job.users;
  changed_.notify_all();
  if (!status && job.closing) return closing_error();
  return status;
}

Status Context::job_status(Job& job) {
  return ask_about(job, [&] { return backend_->job_status(job.host); });
}

Status Context::wait_job(Job& job, int timeout_ms) {
  return ask_about(job, [&] { return backend_->wait_job(job.host, timeout_ms); });
}

Status Context::set_policy(Job& job, std::string_view text) {
  const Result<Policy> policy = parse_engine_policy(text);
  if (!policy) return policy.error();
  if (policy->place != job.place) {
    return Error(Errc::kInvalidArgument,
                 "policy '" + std::string(text) +
                     "' would place tensors on other servers: open a job with it instead");
  }
  return ask_about(job, [&] { return backend_->set_policy(job.host, print_policy(*policy)); });
}

// Checks a declaration and finds its memory; what the daemon does not see gets a shadow that it
// does.
Result<Tensor> Context::place(const mercury_tensor_options& options) {
  if (Status status = check_tensor(options); !status) return status.error();
  Tensor tensor;
  tensor.wire.id = TensorId(options.id);
  tensor.wire.numel = options.numel;
  tensor.wire.dtype = static_cast<Dtype>(options.dtype);
  tensor.wire.op = static_cast<ReduceOp>(options.op);
  tensor.wire.priority = static_cast<uint16_t>(options.priority);
  tensor.bytes = options.numel * size_of(tensor.wire.dtype);
  tensor.user = static_cast<std::byte*>(options.data);
  bool foreign = false;
  Result<Placement> where = memory_.pin(options.data, tensor.bytes, foreign);
  if (!where) {
    return Error(where.error().code,
                 tensor_name(TensorId(options.id)) + ": " + where.error().message);
  }
  if (foreign) {
    Result<std::byte*> shadow = memory_.allocate(tensor.bytes);
    if (!shadow) {
      memory_.unpin(options.data);
      return shadow.error();
    }
    tensor.shadow = *shadow;
    where = memory_.pin(tensor.shadow, tensor.bytes, foreign);
  }
  // By the program that asks for it: else the daemon would take these pages, one by one, while it
  // works for others.
  if (!backend_->sees_program_memory()) {
    if (Status populated = Region::populate(where->data, tensor.bytes); !populated) {
      unplace(tensor);
      return Error(populated.error().code, populated.error().sys_errno,
                   tensor_name(TensorId(options.id)) + ": " + populated.error().message);
    }
  }
  tensor.wire.region = where->region;
  tensor.wire.offset_bytes = where->offset_bytes;
  return tensor;
}

void Context::unplace(const Tensor& tensor) {
  if (tensor.shadow) {
    memory_.unpin(tensor.shadow);
    (void)memory_.free(tensor.shadow);
  }
  memory_.unpin(tensor.user);
}

Status Context::declare(Job& job, std::span<const mercury_tensor_options> tensors) {
  for (const mercury_tensor_options& tensor : tensors) {
    if (tensor.id < kBarrierTensor.value) continue;
    return Error(Errc::kInvalidArgument,
                 tensor_name(TensorId(tensor.id)) + ": ids are 0 to 2^31-2");
  }
  return declare_tensors(job, tensors);
}

// Finding memory may take long. A job that was closed meanwhile has lost its number to another.
bool Context::is_closing(const Job& job) {
  const Lock lock(mutex_);
  return job.closing;
}

Status Context::declare_tensors(Job& job, std::span<const mercury_tensor_options> options) {
  std::vector<Tensor> tensors;
  std::vector<TensorSpec> specs;
  std::set<uint32_t> ids;
  const auto give_up = [&](Error error) {
    for (const Tensor& tensor : tensors) unplace(tensor);
    return Status(std::move(error));
  };
  if (job.role != Role::kWorker) {
    return Error(Errc::kInvalidArgument, "servers learn the tensors from the workers");
  }
  {
    const Lock lock(mutex_);
    if (job.closing) return closing_error();
    for (const mercury_tensor_options& option : options) {
      if (!ids.insert(option.id).second || job.index_of.count(TensorId(option.id)) != 0) {
        return Error(Errc::kExists, tensor_name(TensorId(option.id)) + " is declared already");
      }
    }
    ++job.users;
  }
  Status status;
  for (const mercury_tensor_options& option : options) {
    Result<Tensor> tensor = place(option);
    if (!tensor) {
      status = give_up(tensor.error());
      break;
    }
    std::byte* data = tensor->shadow ? tensor->shadow : tensor->user;
    specs.push_back({tensor->wire, data});
    if (job.quorum) tensor->missing = std::make_unique<Tensor::Missing>();
    tensors.push_back(std::move(*tensor));
  }
  if (status.ok() && is_closing(job)) status = give_up(closing_error());
  std::vector<Round> rounds;
  if (status.ok()) {
    status = backend_->declare(job.host, specs, rounds);
    if (!status) status = give_up(status.error());
  }
  const Lock lock(mutex_);
  --job.users;
  changed_.notify_all();
  if (!status && job.closing) return closing_error();
  if (!status) return status;
  for (size_t i = 0; i < rounds.size() && i < tensors.size(); ++i)
    tensors[i].next_round = rounds[i];
  for (Tensor& tensor : tensors) {
    job.index_of.emplace(tensor.wire.id, TensorIndex(static_cast<uint32_t>(job.tensors.size())));
    job.tensors.push_back(std::move(tensor));
  }
  return {};
}

Result<Round> Context::tensor_round(Job& job, TensorId id) {
  const Lock lock(mutex_);
  const auto known = job.index_of.find(id);
  if (known == job.index_of.end()) {
    return Error(Errc::kNotFound, tensor_name(id) + " is not declared");
  }
  return job.tensors[known->second.value].next_round;
}

Result<Part> Context::part(Job& job, TensorId id, uint32_t rank) {
  const Lock lock(mutex_);
  const auto known = job.index_of.find(id);
  if (known == job.index_of.end()) {
    return Error(Errc::kNotFound, tensor_name(id) + " is not declared");
  }
  if (rank >= static_cast<uint32_t>(job.workers)) {
    return Error(Errc::kInvalidArgument, tensor_name(id) + ": worker " + std::to_string(rank) +
                                             " of " + std::to_string(job.workers) + " workers");
  }
  return part_of(job, job.tensors[known->second.value], static_cast<int>(rank));
}

Result<mercury_contributors> Context::contributors(Job& job, TensorId id) {
  Lock lock(mutex_);
  progress();
  wake_waiters();
  const auto known = job.index_of.find(id);
  if (known == job.index_of.end()) {
    return Error(Errc::kNotFound, tensor_name(id) + " is not declared");
  }
  Tensor& tensor = job.tensors[known->second.value];
  take_sum(lock, job, tensor);  // what is said to be complete can be read
  mercury_contributors out{};
  out.round = tensor.complete_round.value;
  out.workers = static_cast<uint32_t>(job.workers);
  if (tensor.complete_round == Round()) return out;
  const Absentees missing = tensor.missing ? tensor.missing->last : Absentees{};
  constexpr uint32_t kFirst = std::size(decltype(out.in_all){});
  for (uint32_t word = 0; word < kWorkerWords; ++word) {
    const uint64_t all = ranks_in_word(out.workers, word);
    const bool above = word >= kFirst;
    const uint32_t at = above ? word - kFirst : word;
    (above ? out.in_all_above : out.in_all)[at] = all & ~missing.in_some[word];
    (above ? out.in_any_above : out.in_any)[at] = all & ~missing.in_all[word];
  }
  return out;
}

void Context::set_callback(Job& job, mercury_callback callback, void* argument) {
  const Lock lock(mutex_);
  job.callback = callback;
  job.callback_argument = argument;
}

mercury_job_stats Context::stats(Job& job) {
  const Lock lock(mutex_);
  progress();
  wake_waiters();
  return job.stats;
}

// Readable when a doorbell rings (the rings stay armed from now on), when completions are queued,
// or when the host is lost.
Result<int> Context::event_fd(Job& job) {
  const Lock lock(mutex_);
  if (job.closing) return closing_error();
  if (job.epoll) return job.epoll.get();
  UniqueFd queued(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!queued || !epoll) return Error::system(errno, "cannot make an event descriptor");
  const auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  bool ok = watch(queued.get());
  if (!lost_) {
    const int lost_fd = backend_->lost_fd();
    ok = ok && (lost_fd < 0 || watch(lost_fd));
    for (const auto& channel : backend_->channels()) ok = ok && watch(channel->client_doorbell());
  }
  if (!ok) return Error::system(errno, "cannot watch the doorbells");
  job.epoll = std::move(epoll);
  job.queued = std::move(queued);
  job.queued_rung = false;
  ++armed_jobs_;
  signal_queue(job);
  rearm();
  return job.epoll.get();
}

}  // namespace mercury::client
