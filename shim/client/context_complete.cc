// Taking completions out of the rings: what becomes of an operation that has ended.
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cstring>

#include "shim/client/context.h"
#include "shim/client/last_error.h"
#include "shim/client/options.h"

namespace mercury::client {
namespace {

void note_bytes(Job& job, const Tensor& tensor, SubmitOp op) {
  const uint64_t part_bytes = part_of(job, tensor, job.rank).numel * size_of(tensor.wire.dtype);
  ++job.stats.operations;
  if (op == SubmitOp::kGather) {
    job.stats.bytes_pushed += part_bytes;
  } else if (op != SubmitOp::kPull && op != SubmitOp::kReceive) {
    job.stats.bytes_pushed += tensor.bytes;
  }
  if (op != SubmitOp::kPush) {
    job.stats.bytes_pulled += op == SubmitOp::kScatter ? part_bytes : tensor.bytes;
  }
}

// Errors of one operation; every other one means that the job has failed.
bool is_own_fault(Errc code) {
  return code == Errc::kInvalidArgument || code == Errc::kBusy || code == Errc::kNotFound ||
         code == Errc::kAgain;
}

mercury_completion describe(const Operation& operation, const Job& job) {
  return {sizeof(mercury_completion),
          operation.handle,
          operation.user_data,
          -errno_of(operation.status),
          job.tensors[operation.tensor.value].wire.id.value,
          operation.round.value,
          operation.kind,
          reason_of(job, operation.status)};
}

}  // namespace

const char* reason_of(const Job& job, Errc code) {
  if (code == Errc::kOk) return nullptr;
  if (is_own_fault(code) || job.failure_text.empty()) return meaning_of(-errno_of(code));
  return job.failure_text.c_str();
}

thread_local const Job* Context::current_callback_ = nullptr;

bool Context::progress() {
  const bool lost = backend_->lost();
  const bool any = drain_rings();
  if (lost && !lost_) {
    lost_ = true;
    fail_everything(lost_error());
    return true;
  }
  return any;
}

bool Context::drain_rings() {
  bool any = false;
  Completion completion;
  for (const auto& channel : backend_->channels()) {
    while (channel->pop(completion)) {
      any = true;
      on_completion(completion);
    }
  }
  return any;
}

void Context::on_completion(const Completion& completion) {
  Operation* operation = operations_.find(completion.cookie);
  // Ended already: its job was closed meanwhile.
  if (!operation || operation->state != Operation::State::kInFlight) return;
  if (operation->status == Errc::kOk) operation->status = completion.status;
  if (completion.absent_words > 0) {
    Tensor& tensor = operation->job->tensors[operation->tensor.value];
    if (tensor.missing) tensor.missing->now.add(completion.absent);
  }
  // Only the program closes its jobs. A daemon that does so lets go of the program: it is ending.
  if (operation->status == Errc::kClosed && !operation->job->closing) {
    operation->status = Errc::kDaemonLost;
  }
  operation->round = completion.round;
  if (--operation->parts_left == 0) finish(*operation, operation->status);
}

void Context::finish(Operation& operation, Errc status) {
  Job& job = *operation.job;
  operation.status = status;
  operation.state = Operation::State::kDone;
  end_round(job.tensors[operation.tensor.value], operation);
  if (status != Errc::kOk && !is_own_fault(status) && job.failed == Errc::kOk) job.failed = status;
  if (status == Errc::kOk && !operation.internal) {
    note_bytes(job, job.tensors[operation.tensor.value], operation.op);
  }
  // Callbacks run on a thread that waits or polls: one that sleeps must come and call.
  if (operation.waited_for || job.callback) wake_due_ = true;
  if ((job.callback || !operation.waited_for) && !operation.internal) {
    operations_.append(job.done, operation);
    signal_queue(job);
  }
}

void Context::end_round(Tensor& tensor, const Operation& operation) {
  if (operation.op == SubmitOp::kPull) {
    tensor.pull_in_flight = false;
  } else {
    tensor.push_in_flight = false;
  }
  if (operation.status != Errc::kOk) {
    tensor.round_over = !tensor.push_in_flight && !tensor.pull_in_flight;
  } else if (operation.op != SubmitOp::kPush) {
    tensor.sum_due = tensor.shadow != nullptr;
    tensor.round_over = !tensor.sum_due;
    tensor.complete_round = operation.round;
    if (tensor.missing) tensor.missing->last = tensor.missing->now;
  }
}

// The host has gone: whatever it had not completed has failed, and its doorbells, which hang up,
// must not keep anybody's event loop busy.
void Context::fail_everything(const Error& why) {
  operations_.for_each([&](Operation& operation) {
    if (operation.state == Operation::State::kInFlight) finish(operation, why.code);
  });
  for (const auto& job : jobs_) {
    if (job->failed == Errc::kOk) job->failed = why.code;
    if (job->failure_text.empty()) job->failure_text = why.message;
    if (!job->epoll) continue;
    ::epoll_ctl(job->epoll.get(), EPOLL_CTL_DEL, backend_->lost_fd(), nullptr);
    for (const auto& channel : backend_->channels()) {
      ::epoll_ctl(job->epoll.get(), EPOLL_CTL_DEL, channel->client_doorbell(), nullptr);
    }
  }
}

void Context::signal_queue(Job& job) {
  const bool ring = job.ended || !job.done.empty();
  if (!job.queued || ring == job.queued_rung || &job == polled_) return;
  eventfd_t value;
  if (ring) {
    ::eventfd_write(job.queued.get(), 1);
  } else {
    ::eventfd_read(job.queued.get(), &value);
  }
  job.queued_rung = ring;
}

// A job whose callback is to be called; null: none.
Job* Context::callback_due() {
  for (const auto& job : jobs_) {
    if (job->callback && !job->done.empty()) return job.get();
  }
  return nullptr;
}

// Of a failed job the host is asked why, once. Without the mutex meanwhile, so the caller is one of
// the job's users.
void Context::learn_reason(Lock& lock, Job& job) {
  if (job.failed == Errc::kOk || !job.failure_text.empty() || job.closing) return;
  std::string text = lost_error().message;
  if (!lost_ && job.failed != Errc::kDaemonLost) {
    lock.unlock();
    const Status why = backend_->job_status(job.host);
    lock.lock();
    text = why ? std::string() : why.error().message;
  }
  // Completions point to it: it never changes.
  if (job.failure_text.empty()) job.failure_text = std::move(text);
}

Error Context::why_failed(Lock& lock, Job& job, TensorId tensor, Errc code) {
  if (!is_own_fault(code)) learn_reason(lock, job);
  return Error(code, tensor_name(tensor) + ": " + reason_of(job, code));
}

// Without the mutex while a callback runs, so that it may submit and wait.
void Context::run_callbacks(Lock& lock) {
  while (Job* job = callback_due()) {
    Operation& operation = operations_.front(job->done);
    operations_.unlink(job->done, operation);
    Tensor& tensor = job->tensors[operation.tensor.value];
    const Errc status = operation.status;
    const bool pulled = operation.op != SubmitOp::kPush;
    mercury_completion completion = describe(operation, *job);
    if (!operation.waited_for) operations_.release(operation);
    const mercury_callback callback = job->callback;
    void* const argument = job->callback_argument;
    const Job* const outer = current_callback_;
    ++job->users;
    if (status == Errc::kOk) {
      if (pulled) take_sum(lock, *job, tensor);
    } else {
      (void)fail(why_failed(lock, *job, tensor.wire.id, status));
      completion.message = reason_of(*job, status);
    }
    current_callback_ = job;
    lock.unlock();
    callback(&completion, argument);
    lock.lock();
    current_callback_ = outer;
    --job->users;
    signal_queue(*job);
    if (job->closing) changed_.notify_all();
  }
}

// Fills `out` with what nobody waits for. `failed`: the last operation there that has failed.
// `pulled`: the tensors whose sums are there.
size_t Context::take_done(Job& job, std::span<std::byte> out, size_t size, Operation& failed,
                          std::vector<TensorIndex>& pulled) {
  size_t n = 0;
  while ((n + 1) * size <= out.size() && !job.done.empty()) {
    Operation& operation = operations_.front(job.done);
    operations_.unlink(job.done, operation);
    // Listed for a callback that has been taken away since; its waiter collects it.
    if (operation.waited_for) continue;
    write_sized(describe(operation, job), &out[n++ * size], size);
    if (operation.status != Errc::kOk) failed = operation;
    if (operation.status == Errc::kOk && operation.op != SubmitOp::kPush) {
      pulled.push_back(operation.tensor);
    }
    operations_.release(operation);
  }
  return n;
}

int Context::poll(Job& job, void* out, size_t count, size_t size) {
  Lock lock(mutex_);
  if (job.ended) return fail(closing_error());
  // Doorbells are cleared before the rings are drained, and armed again after.
  if (armed_jobs_ > 0) unpark_all();
  polled_ = &job;
  progress();
  polled_ = nullptr;
  ++job.users;
  if (callback_due()) {  // others may poll while it runs
    signal_queue(job);
    rearm();
    run_callbacks(lock);
  }
  if (!job.done.empty()) learn_reason(lock, job);  // before completions point to it
  Operation failed;
  const size_t most = std::min<size_t>(count, kMaxOperations) * size;
  std::vector<TensorIndex> pulled;
  const size_t n = take_done(job, {static_cast<std::byte*>(out), most}, size, failed, pulled);
  signal_queue(job);
  rearm();
  wake_waiters();
  // Last, because others may poll while it takes its time.
  for (const TensorIndex tensor : pulled) take_sum(lock, job, job.tensors[tensor.value]);
  if (failed.status != Errc::kOk) {
    (void)fail(why_failed(lock, job, job.tensors[failed.tensor.value].wire.id, failed.status));
  }
  --job.users;
  if (job.closing) changed_.notify_all();
  return static_cast<int>(n);
}

}  // namespace mercury::client
