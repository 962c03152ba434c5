#include "apps/replay/payload_work.h"

#include <algorithm>
#include <utility>

namespace mercury {

PayloadWork::PayloadWork(const Trace& trace, std::vector<std::span<std::byte>> memory,
                         uint32_t workers, uint32_t rank, bool verify)
    : trace_(trace), memory_(std::move(memory)), verify_(verify) {
  for (const TraceTensor& tensor : trace.tensors) {
    auto& payload = payloads_[static_cast<size_t>(tensor.dtype)];
    if (!payload) payload.emplace(tensor.dtype, workers, rank);
  }
  tasks_.reserve(trace.tensors.size());
}

const Payload& PayloadWork::payload_of(uint32_t tensor) const {
  return *payloads_[static_cast<size_t>(trace_.tensors[tensor].dtype)];
}

void PayloadWork::fill_all(uint64_t round) {
  for (uint32_t tensor = 0; tensor < trace_.tensors.size(); ++tensor) {
    payload_of(tensor).fill(tensor, round, 0, memory_[tensor]);
  }
}

void PayloadWork::add(uint32_t tensor, uint64_t round, bool last) {
  tasks_.push_back({tensor, last, round, 0});
}

void PayloadWork::slice() {
  if (!tasks_.empty() && advance(tasks_.back(), kSliceElements)) tasks_.pop_back();
}

bool PayloadWork::finish(uint32_t tensor) {
  const auto task = std::find_if(tasks_.rbegin(), tasks_.rend(),
                                 [tensor](const Task& each) { return each.tensor == tensor; });
  if (task == tasks_.rend()) return false;
  advance(*task, trace_.tensors[tensor].numel);
  tasks_.erase(std::next(task).base());
  return true;
}

void PayloadWork::finish_all() {
  while (pending()) slice();
}

bool PayloadWork::advance(Task& task, uint64_t elements) {
  const TraceTensor& tensor = trace_.tensors[task.tensor];
  const size_t element_bytes = size_of(tensor.dtype);
  const Payload& payload = payload_of(task.tensor);
  const uint64_t end = std::min(tensor.numel, task.done_elements + elements);
  while (task.done_elements < end) {
    const uint64_t count = std::min<uint64_t>(Payload::kBlock, end - task.done_elements);
    const auto block =
        memory_[task.tensor].subspan(task.done_elements * element_bytes, count * element_bytes);
    if (verify_) {
      note(task, payload.verify(task.tensor, task.round, task.done_elements, block));
      found_.verified_elements += count;
    }
    if (!task.last) payload.fill(task.tensor, task.round + 1, task.done_elements, block);
    task.done_elements += count;
  }
  return task.done_elements == tensor.numel;
}

void PayloadWork::note(const Task& task, const Payload::Verdict& verdict) {
  if (verdict.mismatches == 0) return;
  if (found_.mismatches == 0) {
    found_.first = "tensor " + trace_.tensors[task.tensor].name + ", iteration " +
                   std::to_string(task.round) + ", element " +
                   std::to_string(verdict.first->element) + ": got " + verdict.first->got +
                   ", expected " + verdict.first->expected;
  }
  found_.mismatches += verdict.mismatches;
}

}  // namespace mercury
