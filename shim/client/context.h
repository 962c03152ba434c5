// Gradient path: step 1/8, from the program's call, to the rings of every engine.
//
// One attachment: its jobs, their tensors, the operations in flight. An operation is submitted to
// every engine of the host and completes when all have completed their part; its status is the
// first error.
//
// Threads: any thread may call. One mutex serialises them; it is never held while a thread sleeps,
// copies a tensor or calls back. Who does so is one of its job's users, whom closing waits for.
// Of the threads that wait, one (the leader) sleeps on the doorbells and the others on a condition
// variable; whoever drains the rings wakes those whose operations have ended.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "shim/client/backend.h"
#include "shim/client/fork_guard.h"
#include "shim/client/job.h"
#include "shim/client/memory_map.h"
#include "shim/client/mercurystack/mercury.h"
#include "shim/client/operations.h"

namespace mercury::client {

inline constexpr int kLeastUrgent = 65535;

// The tensor of barriers, above all that programs may have.
inline constexpr TensorId kBarrierTensor{0x7fffffff};

// One operation of a batch.
struct Request {
  mercury_operation_kind kind = MERCURY_OPERATION_PUSH_PULL;
  TensorId tensor;
  int priority = MERCURY_DEFAULT_PRIORITY;
  uint32_t root = 0;  // of a broadcast
  uint64_t user_data = 0;
  mercury_handle handle = 0;  // filled
};

class Context {
 public:
  static Result<std::unique_ptr<Context>> create(std::unique_ptr<Backend> backend,
                                                 mercury_mode mode);
  ~Context();  // once no close() is under way

  // What a call on the context itself is under way in; close() awaits it.
  class Call {
   public:
    explicit Call(Context& context) : context_(context) {
      const Lock lock(context_.mutex_);
      ++context_.calls_;
    }
    ~Call() {
      const Lock lock(context_.mutex_);
      if (--context_.calls_ == 0) context_.changed_.notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Context& context_;
  };

  mercury_mode mode() const { return mode_; }
  static bool in_callback() { return current_callback_ != nullptr; }
  bool in_child() const noexcept { return fork_guard_.in_child(); }
  MemoryMap& memory() { return memory_; }

  // Closes the jobs, ends calls of other threads with kClosed, and awaits them. No job can be
  // opened any more. False: called from a callback.
  bool close();
  Result<Job*> open_job(attach::JobOpen& request);  // numbers it
  // False: called from a callback, whose caller may still need the job.
  bool close_job(Job* job);
  Status wait_job(Job& job, int timeout_ms);
  Status job_status(Job& job);
  Status set_policy(Job& job, std::string_view policy);
  Status declare(Job& job, std::span<const mercury_tensor_options> tensors);
  Result<Round> tensor_round(Job& job, TensorId tensor);  // of its next push
  Result<Part> part(Job& job, TensorId tensor, uint32_t rank);
  Result<mercury_contributors> contributors(Job& job, TensorId tensor);

  // All of them or none.
  Status submit(Job& job, std::span<Request> batch);
  Status barrier(Job& job, int timeout_ms);
  Status wait(Job& job, mercury_handle handle, int timeout_ms);
  Status wait_all(Job& job, int timeout_ms);
  // `size`: the caller's, of each element of `out`.
  int poll(Job& job, void* out, size_t count, size_t size);
  void set_callback(Job& job, mercury_callback callback, void* argument);
  Result<int> event_fd(Job& job);
  mercury_job_stats stats(Job& job);

  // Sleeps that a time limit ended although a completion was there: 0 unless a wake-up was lost.
  uint64_t rescued_wakeups() const { return rescued_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  Context(std::unique_ptr<Backend> backend, mercury_mode mode, UniqueFd interrupt,
          OperationTable operations);

  void leave_job(Lock& lock, Job& job);
  void end_job(Lock& lock, Job& job);
  void remove(Job& job);
  template <class Question>
  Status ask_about(Job& job, Question question);
  Result<Tensor> place(const mercury_tensor_options& options);
  void unplace(const Tensor& tensor);
  bool is_closing(const Job& job);
  Status declare_tensors(Job& job, std::span<const mercury_tensor_options> tensors);
  Status declare_barrier(Lock& lock, Job& job);
  Status check_parts(const Job& job, const Tensor& tensor, const Request& request) const;
  Status check_submission(Job& job, const Request& request);
  Status check_batch(Job& job, std::span<const Request> batch);
  bool has_room(uint32_t count);
  Status make_ready(Job& job, std::span<const Request> batch);
  bool copy_in(Lock& lock, Job& job, std::span<const Request> batch);
  Operation& start(Job& job, Request& request);
  void copy(Lock& lock, Job& job, Tensor& tensor, std::byte* to, const std::byte* from);
  void take_sum(Lock& lock, Job& job, Tensor& tensor);
  size_t take_done(Job& job, std::span<std::byte> out, size_t size, Operation& failed,
                   std::vector<TensorIndex>& pulled);
  void learn_reason(Lock& lock, Job& job);
  Error why_failed(Lock& lock, Job& job, TensorId tensor, Errc code);

  // Under the mutex: takes what has completed out of the rings; true if anything had.
  bool progress();
  bool drain_rings();
  void on_completion(const Completion& completion);
  void finish(Operation& operation, Errc status);
  void end_round(Tensor& tensor, const Operation& operation);
  void fail_everything(const Error& why);
  void signal_queue(Job& job);
  Job* callback_due();
  void run_callbacks(Lock& lock);
  void wake_waiters();
  // Lead: one thread at a time, until its operation ends or `until`.
  void sleep_on_doorbells(Lock& lock, Clock::time_point until);
  bool spin(Lock& lock, Clock::time_point until);
  static Clock::time_point deadline(int timeout_ms);
  Status wait_for(Lock& lock, Job& job, Operation& operation, Clock::time_point until);
  Status collect(Lock& lock, Job& job, Operation& operation);
  bool park_all();
  void unpark_all();
  void rearm();
  bool doorbells_readable() const;

  // Which job's callback this thread is in, if any.
  static thread_local const Job* current_callback_;

  const std::unique_ptr<Backend> backend_;
  const mercury_mode mode_;
  const ForkGuard fork_guard_;
  MemoryMap memory_;
  const UniqueFd interrupt_;  // wakes the leader for an operation that another thread ended

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::list<std::unique_ptr<Job>> jobs_;
  OperationTable operations_;
  uint32_t last_client_job_ = 0;
  bool closed_ = false;   // close() has begun
  uint32_t calls_ = 0;    // under way on the context itself
  uint32_t closers_ = 0;  // threads inside close()
  bool lost_ = false;     // backend_->lost() has been dealt with
  bool has_leader_ = false;
  bool leader_sleeps_ = false;
  bool wake_due_ = false;        // an operation with a waiter has ended
  const Job* polled_ = nullptr;  // poll() is about to take what completes of this job
  int armed_jobs_ = 0;           // with a descriptor from mercury_job_get_fd
  std::chrono::nanoseconds spin_budget_;
  std::atomic<uint64_t> rescued_{0};
};

inline Error closing_error() { return Error(Errc::kClosed, "the job is being closed"); }
inline std::string tensor_name(TensorId id) {
  return id == kBarrierTensor ? "barrier" : "tensor " + std::to_string(id.value);
}

// How long a waiter may spin on this machine before it sleeps: nothing with one processor.
std::chrono::nanoseconds longest_spin();

}  // namespace mercury::client
