// Submitting operations: a batch is admitted whole or not at all.
#include <algorithm>
#include <cstring>

#include "shim/client/context.h"

namespace mercury::client {
namespace {

// No chunk is longer: what lies farther from a part is in none of its chunks.
constexpr uint64_t kLongestChunkBytes = 65536;

// What the engine is asked for.
SubmitOp op_of(const Job& job, const Request& request) {
  switch (request.kind) {
    case MERCURY_OPERATION_PUSH:
      return SubmitOp::kPush;
    case MERCURY_OPERATION_PULL:
      return SubmitOp::kPull;
    case MERCURY_OPERATION_BROADCAST:
      return static_cast<uint32_t>(job.rank) == request.root ? SubmitOp::kPushPull
                                                             : SubmitOp::kReceive;
    case MERCURY_OPERATION_ALL_GATHER:
      return SubmitOp::kGather;
    case MERCURY_OPERATION_REDUCE_SCATTER:
      return SubmitOp::kScatter;
    case MERCURY_OPERATION_PUSH_PULL:
      break;
  }
  return SubmitOp::kPushPull;
}

// Zeros to either side of this worker's part, as far as its first and last chunk may go: they are
// added to the others' parts.
void clear_beside_part(const Job& job, const Tensor& tensor) {
  std::byte* const data = tensor.shadow ? tensor.shadow : tensor.user;
  const uint64_t width = size_of(tensor.wire.dtype);
  const Part part = part_of(job, tensor, job.rank);
  const uint64_t begin = part.begin * width, end = part.end() * width;
  const uint64_t before = std::min(begin, kLongestChunkBytes);
  std::memset(data + begin - before, 0, before);
  std::memset(data + end, 0, std::min(tensor.bytes - end, kLongestChunkBytes));
}

}  // namespace

// What only operations of which workers contribute or get parts ask for.
Status Context::check_parts(const Job& job, const Tensor& tensor, const Request& request) const {
  const std::string name = tensor_name(tensor.wire.id);
  const auto workers = static_cast<uint64_t>(job.workers);
  if (job.quorum) {
    return Error(Errc::kUnsupported,
                 name + ": a job with a quorum may do without the worker that has the elements");
  }
  const bool scatter = request.kind == MERCURY_OPERATION_REDUCE_SCATTER;
  if ((job.features & (scatter ? kKnowsScatters : kKnowsParts)) == 0) {
    return Error(Errc::kVersionMismatch,
                 name + ": this host's daemon or a server of the job is of a version without " +
                     (scatter ? "reduce-scatter" : "broadcast and all-gather"));
  }
  if (scatter) return {};
  if (request.kind == MERCURY_OPERATION_BROADCAST) {
    if (request.root < workers) return {};
    return Error(Errc::kInvalidArgument, name + ": root " + std::to_string(request.root) + " of " +
                                             std::to_string(workers) + " workers");
  }
  if (!is_integer(tensor.wire.dtype) || tensor.wire.op != ReduceOp::kSum) {
    return Error(Errc::kInvalidArgument,
                 name + ": to be gathered it is declared as a sum of integers, whatever its bytes");
  }
  if (tensor.wire.numel % workers == 0) return {};
  return Error(Errc::kInvalidArgument, name + ": " + std::to_string(tensor.wire.numel) +
                                           " elements are not a multiple of " +
                                           std::to_string(workers) + " workers");
}

// Whether a tensor can take an operation behind what the same batch has planned for it already.
Status Context::check_submission(Job& job, const Request& request) {
  const TensorId id = request.tensor;
  const SubmitOp op = op_of(job, request);
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
  if (request.kind > MERCURY_OPERATION_PULL) {
    if (Status parts = check_parts(job, *tensor, request); !parts) return parts;
  }
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
    status = check_submission(job, request);
    if (!status) break;
    job.tensors[job.index_of.find(request.tensor)->second.value].planned = op_of(job, request);
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
    const SubmitOp op = op_of(job, request);
    if (!tensor.shadow || op == SubmitOp::kPull || op == SubmitOp::kReceive) continue;
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
Operation& Context::start(Job& job, Request& request) {
  const SubmitOp op = op_of(job, request);
  const TensorIndex index = job.index_of.find(request.tensor)->second;
  Tensor& tensor = job.tensors[index.value];
  Operation* operation = operations_.acquire();
  operation->job = &job;
  operation->tensor = index;
  operation->op = op;
  operation->kind = static_cast<uint8_t>(request.kind);
  operation->user_data = request.user_data;
  operation->parts_left = static_cast<uint32_t>(backend_->channels().size());
  tensor.pull_due = op == SubmitOp::kPush;
  if (op == SubmitOp::kGather) clear_beside_part(job, tensor);
  if (op == SubmitOp::kPull) {
    tensor.pull_in_flight = true;
  } else {
    tensor.push_in_flight = true;
    tensor.round_over = false;
    tensor.next_round = tensor.next_round.next();
    if (tensor.missing) tensor.missing->now = Absentees::of_no_chunk();
  }
  const uint16_t priority = request.priority == MERCURY_DEFAULT_PRIORITY
                                ? tensor.wire.priority
                                : static_cast<uint16_t>(request.priority);
  const Submission submission{op, priority, job.host.number, request.tensor, operation->handle};
  for (const auto& channel : backend_->channels()) (void)channel->submit(submission);
  request.handle = operation->handle;
  return *operation;
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
  for (Request& request : batch) (void)start(job, request);
  for (const auto& channel : backend_->channels()) channel->ring();
  return {};
}

}  // namespace mercury::client
