// Submitting operations: a batch is admitted whole or not at all.
#include <algorithm>
#include <cstring>

#include "shim/client/context.h"

namespace mercury::client {

// Whether a tensor can take an operation behind what the same batch has planned for it already.
Status Context::check_submission(Job& job, SubmitOp op, TensorId id) {
  if (job.closing) return closing_error();
  const auto known = job.index_of.find(id);
  const Tensor* const tensor =
      known == job.index_of.end() ? nullptr : &job.tensors[known->second.value];
  const bool pull_due =
      tensor && (tensor->planned ? *tensor->planned == SubmitOp::kPush : tensor->pull_due);
  // What was pushed before a peer left is complete, or will be: its sum can be had.
  const bool owed = op == SubmitOp::kPull && job.failed == Errc::kPeerLeft && pull_due;
  if (job.failed != Errc::kOk && !owed) {
    return Error(job.failed, std::string("the job has failed: ") + reason_of(job, job.failed));
  }
  if (!tensor) return Error(Errc::kNotFound, tensor_name(id) + " is not declared");
  if (op == SubmitOp::kPull) {
    if (pull_due) return {};
    return Error(Errc::kInvalidArgument,
                 tensor_name(id) + ": a pull must follow a push of its own");
  }
  if (tensor->copying || tensor->sum_due) {
    return Error(Errc::kBusy,
                 tensor_name(id) + (tensor->sum_due ? ": its last sum has not been collected"
                                                    : ": another thread pushes it"));
  }
  const bool idle = tensor->round_over && !tensor->push_in_flight && !tensor->pull_in_flight;
  if (idle && !tensor->planned) return {};
  return Error(Errc::kBusy, tensor_name(id) + (pull_due ? ": its last round has not been pulled"
                                                        : ": its last round is not over"));
}

// The first that cannot be submitted behind those before it, and why.
Status Context::check_batch(Job& job, std::span<const Request> batch) {
  Status status;
  size_t planned = 0;
  for (; planned < batch.size(); ++planned) {
    const Request& request = batch[planned];
    status = check_submission(job, request.op, request.tensor);
    if (!status) break;
    job.tensors[job.index_of.find(request.tensor)->second.value].planned = request.op;
  }
  for (const Request& request : batch.first(planned)) {
    job.tensors[job.index_of.find(request.tensor)->second.value].planned.reset();
  }
  if (status.ok() || batch.size() == 1) return status;
  return Error(status.error().code,
               "operation " + std::to_string(planned) + ": " + status.error().message);
}

bool Context::has_room(uint32_t count) {
  const auto channels = backend_->channels();
  return operations_.room() >= count &&
         std::all_of(channels.begin(), channels.end(),
                     [&](const auto& channel) { return channel->has_room(count); });
}

// Whether the batch can be submitted now. That stays so while the mutex is held.
Status Context::make_ready(Job& job, std::span<const Request> batch) {
  for (const auto& channel : backend_->channels()) {
    if (batch.size() <= channel->slots()) continue;
    return Error(Errc::kInvalidArgument, std::to_string(batch.size()) +
                                             " operations in one call; at most " +
                                             std::to_string(channel->slots()));
  }
  const auto count = static_cast<uint32_t>(batch.size());
  Status status = check_batch(job, batch);
  // What has completed meanwhile may make the answer another one.
  if (!status || !has_room(count)) {
    progress();
    wake_waiters();
    status = check_batch(job, batch);
  }
  if (!status) return status;
  if (lost_ || backend_->lost()) return lost_error();
  if (!has_room(count)) {
    return Error(Errc::kAgain, "too many operations in flight; collect completions and try again");
  }
  return {};
}

// Without the mutex: other threads go on meanwhile. The memory stays, because it is pinned while
// its tensor is declared; the tensor is nobody else's, because it is marked; and the job is not
// closed before its users have gone.
void Context::copy(Lock& lock, Job& job, Tensor& tensor, std::byte* to, const std::byte* from) {
  tensor.copying = true;
  ++job.users;
  lock.unlock();
  std::memcpy(to, from, tensor.bytes);
  lock.lock();
  --job.users;
  tensor.copying = false;
  changed_.notify_all();
}

// Of a tensor whose operation has completed: its sum lies in the program's memory after this.
void Context::take_sum(Lock& lock, Job& job, Tensor& tensor) {
  ++job.users;
  while (tensor.sum_due && tensor.copying) changed_.wait(lock);  // another thread takes it
  if (tensor.sum_due) {
    copy(lock, job, tensor, tensor.user, tensor.shadow);
    tensor.sum_due = false;
    tensor.round_over = true;
  }
  --job.users;
  if (job.closing) changed_.notify_all();
}

// What the engine cannot see is copied to where it can, before any of the batch is submitted. What
// is marked is nobody else's until all has been copied; true: it took the mutex off.
bool Context::copy_in(Lock& lock, Job& job, std::span<const Request> batch) {
  std::vector<Tensor*> copied;
  for (const Request& request : batch) {
    Tensor& tensor = job.tensors[job.index_of.find(request.tensor)->second.value];
    if (!tensor.shadow || request.op == SubmitOp::kPull) continue;
    tensor.copying = true;
    copied.push_back(&tensor);
  }
  if (copied.empty()) return false;
  ++job.users;
  lock.unlock();
  for (const Tensor* tensor : copied) std::memcpy(tensor->shadow, tensor->user, tensor->bytes);
  lock.lock();
  --job.users;
  for (Tensor* tensor : copied) tensor->copying = false;
  changed_.notify_all();
  return true;
}

// Cannot fail: make_ready, and the mutex.
void Context::start(Job& job, Request& request) {
  const TensorIndex index = job.index_of.find(request.tensor)->second;
  Tensor& tensor = job.tensors[index.value];
  Operation* operation = operations_.acquire();
  operation->job = &job;
  operation->tensor = index;
  operation->op = request.op;
  operation->user_data = request.user_data;
  operation->parts_left = static_cast<uint32_t>(backend_->channels().size());
  tensor.pull_due = request.op == SubmitOp::kPush;
  if (request.op == SubmitOp::kPull) {
    tensor.pull_in_flight = true;
  } else {
    tensor.push_in_flight = true;
    tensor.round_over = false;
    tensor.next_round = tensor.next_round.next();
    tensor.absent = job.quorum ? Absentees::of_no_chunk() : Absentees{};
  }
  const uint16_t priority = request.priority == MERCURY_DEFAULT_PRIORITY
                                ? tensor.wire.priority
                                : static_cast<uint16_t>(request.priority);
  const Submission submission{request.op, priority, job.client_job, request.tensor,
                              operation->handle};
  for (const auto& channel : backend_->channels()) (void)channel->submit(submission);
  request.handle = operation->handle;
}

Status Context::submit(Job& job, std::span<Request> batch) {
  for (const Request& request : batch) {
    const int priority = request.priority;
    if (priority == MERCURY_DEFAULT_PRIORITY || (priority >= 0 && priority <= kLeastUrgent)) {
      continue;
    }
    return Error(Errc::kInvalidArgument,
                 "priority " + std::to_string(priority) + " must be 0 to 65535 or the default");
  }
  Lock lock(mutex_);
  Status status = make_ready(job, batch);
  if (status.ok() && copy_in(lock, job, batch)) status = make_ready(job, batch);  // what holds now
  if (!status) return status;
  for (Request& request : batch) start(job, request);
  for (const auto& channel : backend_->channels()) channel->ring();
  return {};
}

}  // namespace mercury::client
