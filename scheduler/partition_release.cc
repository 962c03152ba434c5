#include "scheduler/partition_release.h"

#include <algorithm>
#include <utility>

namespace mercury {

PartitionRelease::PartitionRelease(const Policy& policy, size_t tensors)
    : partition_bytes_(policy.partition_bytes),
      credit_bytes_(policy.credit_bytes),
      startup_ns_(policy.startup_ns),
      by_priority_(policy.order == Policy::Order::kPriority) {
  tensors_.reserve(tensors);
  waiting_.reserve(tensors);
}

void PartitionRelease::add_tensor(TensorIndex index, uint32_t partitions, uint64_t last_bytes) {
  if (tensors_.size() <= index.value) tensors_.resize(index.value + 1);
  auto& tensor = tensors_[index.value];
  tensor = std::make_unique<TensorPartitions>();
  tensor->next = partitions;
  tensor->missing.resize(partitions);
  tensor->last_bytes = std::min(last_bytes, partition_bytes_);
  if (waiting_.capacity() < tensors_.size()) waiting_.reserve(2 * tensors_.size());
}

uint64_t PartitionRelease::bytes_of(TensorIndex tensor, uint32_t partition) const noexcept {
  const TensorPartitions& t = *tensors_[tensor.value];
  return partition + 1 == t.missing.size() ? t.last_bytes : partition_bytes_;
}

void PartitionRelease::submit(TensorIndex tensor, uint16_t priority) noexcept {
  TensorPartitions& t = at(tensor);
  if (t.missing.empty()) return;
  t.next = 0;
  // 2^48 submissions would take longer than the machine lives.
  const uint64_t rank = uint64_t{by_priority_ ? priority : uint16_t{0}} << 48 | arrivals_++;
  waiting_.emplace_back();
  settle(waiting_.size() - 1, {rank, tensor});
  if (!starting_) due_ns_ = 0;
}

void PartitionRelease::withdraw(TensorIndex tensor) noexcept {
  TensorPartitions& t = at(tensor);
  if (starting_ && start_.tensor == tensor) {
    unacknowledged_bytes_ -= bytes_of(tensor, start_.partition);
    starting_ = false;
  }
  if (t.next < t.missing.size()) {
    take_out(t.place);
    t.next = static_cast<uint32_t>(t.missing.size());
  }
  for (uint32_t partition = 0; partition < t.missing.size(); ++partition) {
    if (std::exchange(t.missing[partition], 0) > 0) {
      unacknowledged_bytes_ -= bytes_of(tensor, partition);
    }
  }
  if (!starting_) due_ns_ = waiting_.empty() ? kNever : 0;
}

// To where it belongs, by way of `place`, whose own is elsewhere.
void PartitionRelease::settle(size_t place, const Waiting& one) noexcept {
  for (size_t parent = 0; place > 0; place = parent) {
    parent = (place - 1) / 2;
    if (waiting_[parent].rank <= one.rank) break;
    put(place, waiting_[parent]);
  }
  for (size_t child = 0; (child = 2 * place + 1) < waiting_.size(); place = child) {
    if (child + 1 < waiting_.size() && waiting_[child + 1].rank < waiting_[child].rank) ++child;
    if (one.rank <= waiting_[child].rank) break;
    put(place, waiting_[child]);
  }
  put(place, one);
}

void PartitionRelease::put(size_t place, const Waiting& one) noexcept {
  waiting_[place] = one;
  at(one.tensor).place = static_cast<uint32_t>(place);
}

void PartitionRelease::take_out(size_t place) noexcept {
  const Waiting last = waiting_.back();
  waiting_.pop_back();
  if (place < waiting_.size()) settle(place, last);
}

bool PartitionRelease::fits() const noexcept {
  const TensorIndex tensor = waiting_.front().tensor;
  const uint64_t bytes = bytes_of(tensor, tensors_[tensor.value]->next);
  return unacknowledged_bytes_ == 0 || unacknowledged_bytes_ + bytes <= credit_bytes_;
}

void PartitionRelease::start(uint64_t now_ns) noexcept {
  const TensorIndex tensor = waiting_.front().tensor;
  TensorPartitions& t = at(tensor);
  start_ = {tensor, t.next++};
  if (t.next == t.missing.size()) {
    take_out(t.place);
  }
  unacknowledged_bytes_ += bytes_of(tensor, start_.partition);
  ready_ns_ = now_ns + startup_ns_;
  starting_ = true;
}

bool PartitionRelease::next(uint64_t now_ns, Released& out) noexcept {
  if (!starting_) {
    if (waiting_.empty() || !fits()) {
      due_ns_ = kNever;
      return false;
    }
    start(now_ns);
  }
  if (now_ns < ready_ns_) {
    due_ns_ = ready_ns_;
    return false;
  }
  starting_ = false;
  due_ns_ = 0;
  out = start_;
  return true;
}

void PartitionRelease::expect(const Released& released, uint32_t chunks) noexcept {
  at(released.tensor).missing[released.partition] = chunks;
  if (chunks == 0) unacknowledged_bytes_ -= bytes_of(released.tensor, released.partition);
}

void PartitionRelease::acknowledged(TensorIndex tensor, uint32_t partition) noexcept {
  uint32_t& missing = at(tensor).missing[partition];
  if (missing == 0 || --missing > 0) return;
  unacknowledged_bytes_ -= bytes_of(tensor, partition);
  if (!starting_) due_ns_ = 0;
}

void PartitionRelease::stop() noexcept {
  if (starting_) --at(start_.tensor).next;
  starting_ = false;
  due_ns_ = kNever;
}

std::optional<uint32_t> PartitionRelease::waited_from(TensorIndex tensor) const noexcept {
  if (!has(tensor)) return std::nullopt;
  const TensorPartitions& t = *tensors_[tensor.value];
  return t.next < t.missing.size() ? std::optional(t.next) : std::nullopt;
}

bool PartitionRelease::drop(uint32_t& looks) noexcept {
  constexpr uint32_t kLooksToFree = 4;
  for (; looks > 0 && !tensors_.empty(); looks -= std::min(looks, kLooksToFree)) {
    tensors_.pop_back();
  }
  return tensors_.empty();
}

}  // namespace mercury
