// Taking completions out of the rings: what becomes of an operation that has ended.
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cstring>

#include "shim/client/context.h"
#include "shim/client/last_error.h"
#include "shim/client/options.h"

namespace mercury::client {
namespace {

// Errors of one operation; every other one means that the job has failed.
bool is_own_fault(Errc code) {
  return code == Errc::kInvalidArgument || code == Errc::kBusy || code == Errc::kNotFound ||
         code == Errc::kAgain;
}

mercury_completion describe(const Operation& operation, const Tensor& tensor, void* user) {
  return {sizeof(mercury_completion), operation.handle,      -errno_of(operation.status),
          tensor.wire.id.value,       operation.round.value, user};
}

}  // namespace

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
    operation->job->tensors[operation->tensor.value].absent.add(completion.absent);
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
  if (status == Errc::kOk) {
    const uint64_t bytes = job.tensors[operation.tensor.value].bytes;
    ++job.stats.operations;
    if (operation.op != SubmitOp::kPull) job.stats.bytes_pushed += bytes;
    if (operation.op != SubmitOp::kPush) job.stats.bytes_pulled += bytes;
  }
  // Callbacks run on a thread that waits or polls: one that sleeps must come and call.
  if (operation.waited_for || job.callback) wake_due_ = true;
  if (job.callback || !operation.waited_for) {
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
    tensor.last_absent = tensor.absent;
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
  const bool ring = !job.done.empty();
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

// Why an operation has failed, as text; of a failed job the host is asked, once. Without the mutex
// meanwhile, so the caller is one of the job's users.
Error Context::why_failed(Lock& lock, Job& job, TensorId tensor, Errc code) {
  if (code == Errc::kDaemonLost && job.failure_text.empty()) {
    job.failure_text = lost_error().message;
  }
  if (code == job.failed && job.failure_text.empty() && !lost_ && !job.closing) {
    lock.unlock();
    const Status why = backend_->job_status(job.slot);
    lock.lock();
    if (!why) job.failure_text = why.error().message;
  }
  return Error(code, "tensor " + std::to_string(tensor.value) + ": " +
                         (job.failure_text.empty() ? name_of(code) : job.failure_text));
}

// Without the mutex while a callback runs, so that it may submit and wait.
void Context::run_callbacks(Lock& lock) {
  while (Job* job = callback_due()) {
    Operation& operation = operations_.front(job->done);
    operations_.unlink(job->done, operation);
    Tensor& tensor = job->tensors[operation.tensor.value];
    const Errc status = operation.status;
    const bool pulled = operation.op != SubmitOp::kPush;
    const mercury_completion completion = describe(operation, tensor, job->callback_argument);
    if (!operation.waited_for) operations_.release(operation);
    const mercury_callback callback = job->callback;
    const Job* const outer = current_callback_;
    ++job->users;
    if (status == Errc::kOk) {
      if (pulled) take_sum(lock, *job, tensor);
    } else {
      (void)fail(why_failed(lock, *job, tensor.wire.id, status));
    }
    current_callback_ = job;
    lock.unlock();
    callback(&completion, completion.user);
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
    write_sized(describe(operation, job.tensors[operation.tensor.value], nullptr), &out[n++ * size],
                size);
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
