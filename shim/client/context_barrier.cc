// Barriers: rounds of a tensor of one element that every worker pushes and nobody reads.
#include "shim/client/context.h"

namespace mercury::client {

// Once for the job. Without the mutex meanwhile; the barrier is marked, so no other thread does it.
Status Context::declare_barrier(Lock& lock, Job& job) {
  lock.unlock();
  Result<std::byte*> memory = memory_.allocate(sizeof(int32_t));
  Status status = memory ? Status() : Status(memory.error());
  if (status.ok()) {
    mercury_tensor_options options{};
    options.size = sizeof options;
    options.id = kBarrierTensor.value;
    options.numel = 1;
    options.dtype = MERCURY_DTYPE_I32;
    options.data = *memory;
    status = declare_tensors(job, {&options, 1});
    if (!status) (void)memory_.free(*memory);
  }
  lock.lock();
  if (status.ok()) job.barrier.memory = *memory;
  return status;
}

Status Context::barrier(Job& job, int timeout_ms) {
  const Clock::time_point until = deadline(timeout_ms);
  Lock lock(mutex_);
  Barrier& barrier = job.barrier;
  if (job.quorum) {
    return Error(Errc::kUnsupported, "a job with a quorum may go on without some of its workers");
  }
  if (job.closing) return closing_error();
  if (barrier.entered) return Error(Errc::kBusy, "another thread is in a barrier of this job");
  barrier.entered = true;
  ++job.users;
  Status status = barrier.memory ? Status() : declare_barrier(lock, job);
  if (status.ok() && barrier.handle == 0) {
    Request request{.tensor = kBarrierTensor, .priority = 0};
    status = make_ready(job, {&request, 1});
    if (status.ok()) {
      Operation& operation = start(job, request);
      operation.internal = true;
      barrier.handle = operation.handle;
      for (const auto& channel : backend_->channels()) channel->ring();
    }
  }
  if (status.ok()) {
    Operation& operation = *operations_.find(barrier.handle);
    status = wait_for(lock, job, operation, until);
    // Later calls go on with the same round.
    if (operation.handle != barrier.handle) barrier.handle = 0;
  }
  barrier.entered = false;
  --job.users;
  if (job.closing) changed_.notify_all();
  return status;
}

}  // namespace mercury::client
