// The operations in flight of one context, by handle. Bounded; memory is touched as it is needed.
//
// A handle is a serial number above the slot's number, so that no handle ever comes twice.
// Owner/thread: under the context's mutex; how many are held, anybody. No heap after creation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "shim/channel/channel.h"
#include "transport/base/result.h"

namespace mercury::client {

struct Job;

inline constexpr uint32_t kMaxOperations = 65536;
inline constexpr uint32_t kNoOperation = ~uint32_t{0};

struct Operation {
  enum class State : uint8_t { kFree, kInFlight, kDone };
  uint64_t handle = 0;
  uint64_t user_data = 0;
  Job* job = nullptr;
  TensorIndex tensor;  // in the job's tensors
  Round round;
  uint32_t parts_left = 0;  // engines that have not completed their part
  uint32_t previous = kNoOperation;
  uint32_t next = kNoOperation;
  Errc status = Errc::kOk;
  SubmitOp op = SubmitOp::kPushPull;
  uint8_t kind = 0;       // mercury_operation_kind, as it was asked for
  bool internal = false;  // a barrier's: nobody but its waiter hears of it
  State state = State::kFree;
  bool waited_for = false;
  bool listed = false;  // in its job's list, for mercury_poll or the callback
};

// Operations in the order in which they completed, linked through their slots.
struct OperationList {
  uint32_t head = kNoOperation;
  uint32_t tail = kNoOperation;
  bool empty() const { return head == kNoOperation; }
};

class OperationTable {
 public:
  // kNoMemory.
  static Result<OperationTable> create();
  // How many more can be acquired.
  uint32_t room() const noexcept { return kMaxOperations - held_->load(std::memory_order_relaxed); }
  // In flight, or completed and not collected. Any thread.
  std::shared_ptr<const std::atomic<uint32_t>> held() const { return held_; }
  // Null: all are in flight, or completed and not collected.
  Operation* acquire() noexcept;
  void release(Operation& operation) noexcept;
  // Null: never given out, or gone.
  Operation* find(uint64_t handle) noexcept;

  void append(OperationList& list, Operation& operation) noexcept;
  void unlink(OperationList& list, Operation& operation) noexcept;
  Operation& front(const OperationList& list) noexcept { return slots_[list.head]; }

  // Calls f(operation) for everything that is not free.
  template <class F>
  void for_each(F&& f) {
    for (uint32_t i = 0; i < used_; ++i) {
      if (slots_[i].state != Operation::State::kFree) f(slots_[i]);
    }
  }

 private:
  uint32_t index_of(const Operation& operation) const noexcept {
    return static_cast<uint32_t>(&operation - slots_.get());
  }
  struct Free {
    void operator()(Operation* slots) const noexcept;
  };
  using Slots = std::unique_ptr<Operation[], Free>;

  explicit OperationTable(Slots slots)
      : slots_(std::move(slots)), held_(std::make_shared<std::atomic<uint32_t>>(0)) {}

  Slots slots_;
  std::shared_ptr<std::atomic<uint32_t>> held_;  // acquired and not released
  uint32_t used_ = 0;                            // slots beyond were never given out
  uint32_t free_ = kNoOperation;
  uint64_t last_serial_ = 0;
};

}  // namespace mercury::client
