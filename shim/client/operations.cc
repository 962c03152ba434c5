#include "shim/client/operations.h"

#include <cstdlib>
#include <new>
#include <type_traits>

namespace mercury::client {
namespace {
constexpr uint32_t kSlotBits = 16;
static_assert(kMaxOperations == 1U << kSlotBits);
static_assert(std::is_trivially_destructible_v<Operation>);
}  // namespace

void OperationTable::Free::operator()(Operation* slots) const noexcept { std::free(slots); }

// Allocated, not constructed: a slot is constructed when it is first given out.
Result<OperationTable> OperationTable::create() {
  Slots slots(static_cast<Operation*>(std::malloc(kMaxOperations * sizeof(Operation))));
  if (!slots) return Error(Errc::kNoMemory, "no memory for the table of operations");
  return OperationTable(std::move(slots));
}

Operation* OperationTable::acquire() noexcept {
  uint32_t index = free_;
  if (index != kNoOperation) {
    free_ = slots_[index].next;
  } else if (used_ < kMaxOperations) {
    index = used_++;
  } else {
    return nullptr;
  }
  held_->fetch_add(1, std::memory_order_relaxed);
  Operation* operation = new (&slots_[index]) Operation{};
  operation->handle = ++last_serial_ << kSlotBits | index;
  operation->state = Operation::State::kInFlight;
  return operation;
}

void OperationTable::release(Operation& operation) noexcept {
  held_->fetch_sub(1, std::memory_order_relaxed);
  operation.state = Operation::State::kFree;
  operation.handle = 0;
  operation.next = free_;
  free_ = index_of(operation);
}

Operation* OperationTable::find(uint64_t handle) noexcept {
  const auto index = static_cast<uint32_t>(handle & (kMaxOperations - 1));
  if (handle == 0 || index >= used_) return nullptr;
  Operation& operation = slots_[index];
  return operation.handle == handle ? &operation : nullptr;
}

void OperationTable::append(OperationList& list, Operation& operation) noexcept {
  operation.listed = true;
  operation.previous = list.tail;
  operation.next = kNoOperation;
  (list.empty() ? list.head : slots_[list.tail].next) = index_of(operation);
  list.tail = index_of(operation);
}

void OperationTable::unlink(OperationList& list, Operation& operation) noexcept {
  operation.listed = false;
  (operation.previous == kNoOperation ? list.head : slots_[operation.previous].next) =
      operation.next;
  (operation.next == kNoOperation ? list.tail : slots_[operation.next].previous) =
      operation.previous;
}

}  // namespace mercury::client
