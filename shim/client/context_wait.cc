// Waiting for one operation: spin a little, then sleep on the doorbells.
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>

#include "shim/client/context.h"

namespace mercury::client {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kLongestSpin = std::chrono::microseconds(20);
constexpr nanoseconds kShortestSpin = std::chrono::microseconds(1);
// A sleep ends after this even if no doorbell rings, so that a lost wake-up would cost time, not
// for ever; rescued_wakeups() counts those.
constexpr nanoseconds kLongestSleep = std::chrono::milliseconds(500);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

nanoseconds longest_spin() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  const bool several = ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) > 1;
  return several ? kLongestSpin : nanoseconds::zero();
}

void Context::wake_waiters() {
  if (!wake_due_) return;
  wake_due_ = false;
  changed_.notify_all();
  if (leader_sleeps_) ::eventfd_write(interrupt_.get(), 1);
}

bool Context::park_all() {
  const auto channels = backend_->channels();
  return std::all_of(channels.begin(), channels.end(),
                     [](const auto& channel) { return channel->park(); });
}

void Context::unpark_all() {
  for (const auto& channel : backend_->channels()) channel->unpark();
}

// While a program holds a descriptor from mercury_job_get_fd the rings are armed whenever no call
// is draining them.
void Context::rearm() {
  while (armed_jobs_ > 0 && !lost_ && !park_all()) progress();
}

bool Context::doorbells_readable() const {
  for (const auto& channel : backend_->channels()) {
    pollfd fd{channel->client_doorbell(), POLLIN, 0};
    if (::poll(&fd, 1, 0) > 0) return true;
  }
  return false;
}

// True if something came. The budget follows what spinning was worth: doubled when something came
// within it, halved when nothing did.
bool Context::spin(Lock& lock, Clock::time_point until) {
  if (spin_budget_ == nanoseconds::zero()) return false;
  const Clock::time_point end = std::min(until, Clock::now() + spin_budget_);
  while (Clock::now() < end) {
    lock.unlock();
    for (int i = 0; i < 32; ++i) relax();
    lock.lock();
    if (progress()) {
      spin_budget_ = std::min(kLongestSpin, spin_budget_ * 2);
      return true;
    }
  }
  spin_budget_ = std::max(kShortestSpin, spin_budget_ / 2);
  return false;
}

void Context::sleep_on_doorbells(Lock& lock, Clock::time_point until) {
  wake_waiters();
  if (!park_all()) return;  // something has come
  std::array<pollfd, attach::kMaxEngines + 2> fds;
  size_t count = 0;
  for (const auto& channel : backend_->channels()) {
    fds[count++] = {channel->client_doorbell(), POLLIN, 0};
  }
  const size_t interrupt = count++;
  fds[interrupt] = {interrupt_.get(), POLLIN, 0};
  fds[count++] = {backend_->lost_fd(), POLLIN, 0};
  const nanoseconds left =
      std::clamp<nanoseconds>(until - Clock::now(), nanoseconds::zero(), kLongestSleep);
  const timespec limit{static_cast<time_t>(left.count() / 1'000'000'000),
                       static_cast<long>(left.count() % 1'000'000'000)};
  leader_sleeps_ = true;
  lock.unlock();
  const int ready = ::ppoll(fds.data(), count, &limit, nullptr);
  lock.lock();
  leader_sleeps_ = false;
  if (fds[interrupt].revents != 0) {
    eventfd_t value;
    ::eventfd_read(interrupt_.get(), &value);
  }
  if (ready == 0 && !doorbells_readable() && drain_rings()) {
    rescued_.fetch_add(1, std::memory_order_relaxed);
  }
  unpark_all();
}

Context::Clock::time_point Context::deadline(int timeout_ms) {
  return timeout_ms < 0 ? Clock::time_point::max()
                        : Clock::now() + std::chrono::milliseconds(timeout_ms);
}

Status Context::wait(Job& job, mercury_handle handle, int timeout_ms) {
  const Clock::time_point until = deadline(timeout_ms);
  Lock lock(mutex_);
  Operation* operation = operations_.find(handle);
  if (!operation || operation->job != &job) {
    return Error(Errc::kNotFound, "no such operation, or somebody has collected it already");
  }
  if (operation->waited_for) {
    return Error(Errc::kBusy, "another thread waits for this operation");
  }
  return wait_for(lock, job, *operation, until);
}

Status Context::wait_all(Job& job, int timeout_ms) {
  const Clock::time_point until = deadline(timeout_ms);
  Lock lock(mutex_);
  if (job.closing) return closing_error();  // operations have gone whose sums never came
  std::vector<mercury_handle> handles;
  operations_.for_each([&](const Operation& operation) {
    if (operation.job == &job && !operation.internal) handles.push_back(operation.handle);
  });
  Status failed, late;
  for (const mercury_handle handle : handles) {
    Operation* const operation = operations_.find(handle);
    if (!operation || operation->waited_for) continue;  // another thread collects it, or has
    Status status = wait_for(lock, job, *operation, until);
    if (status.ok()) continue;
    Status& what = status.error().code == Errc::kTimedOut ? late : failed;
    if (what.ok()) what = std::move(status);
  }
  return failed.ok() ? late : failed;
}

// By the thread that collects it if it ends by then. The caller has looked that no other does.
Status Context::wait_for(Lock& lock, Job& job, Operation& operation, Clock::time_point until) {
  operation.waited_for = true;
  ++job.users;
  bool leads = false;
  const auto ended = [&] { return operation.state == Operation::State::kDone; };
  for (;;) {
    progress();
    wake_waiters();
    if (callback_due()) {
      // A callback may take long, or wait itself: meanwhile somebody else leads.
      if (leads) has_leader_ = leads = false;
      changed_.notify_all();
      rearm();
      run_callbacks(lock);
    }
    if (ended() || Clock::now() >= until) break;
    leads = leads || !has_leader_;
    if (!leads) {
      if (until == Clock::time_point::max()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, until);
      }
      continue;
    }
    has_leader_ = true;
    // Whatever came may be for other waiters or callbacks: look before sleeping.
    if (!spin(lock, until) && !ended()) sleep_on_doorbells(lock, until);
  }
  if (leads) {
    has_leader_ = false;
    changed_.notify_all();  // somebody else leads now
  }
  rearm();
  wake_waiters();
  Status status = collect(lock, job, operation);
  --job.users;
  if (job.closing) changed_.notify_all();
  return status;
}

// The outcome of an operation whose waiter returns; if it has ended, its handle is gone.
Status Context::collect(Lock& lock, Job& job, Operation& operation) {
  if (operation.state != Operation::State::kDone) {
    operation.waited_for = false;
    return Error(Errc::kTimedOut, "the operation is still in flight");
  }
  Tensor& tensor = job.tensors[operation.tensor.value];
  Status status;
  if (operation.status != Errc::kOk) {
    status = why_failed(lock, job, tensor.wire.id, operation.status);
  } else if (operation.op != SubmitOp::kPush) {
    take_sum(lock, job, tensor);
  }
  operation.waited_for = false;
  if (job.callback && operation.listed) {
    // Its callback is still to be called, and releases it.
  } else {
    if (operation.listed) operations_.unlink(job.done, operation);
    operations_.release(operation);
    signal_queue(job);
  }
  return status;
}

}  // namespace mercury::client
