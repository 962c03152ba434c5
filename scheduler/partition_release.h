// When the partitions of a job's tensors may go, for policies that release partitions under a
// credit (Policy::Release::kPartition): before the scheduler, which then knows them as ranges of
// chunks like any other.
//
// One partition after another takes its start-up time; then it is released, if what was released
// and is not acknowledged leaves room for it in the credit, or is nothing. The most urgent tensor's
// comes first, first-in first-out inside a priority; what has begun its start-up is not overtaken.
//
// Units: bytes are nominal, whole partitions as the policy has them, although this engine may hold
// a part of each. Owner/thread: one engine. Pure: no clock. Allocates in add_tensor only,
// and nothing else takes longer the more tensors there are but by the logarithm of those that wait.
// Paper: ByteScheduler, SOSP 2019, section 4.2 (credit); Mercury, TPDS 2023, section III.A
// (start-up).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/policy.h"
#include "scheduler/terms/chunk.h"
#include "transport/base/types.h"

namespace mercury {

class PartitionRelease {
 public:
  struct Released {
    TensorIndex tensor;
    uint32_t partition = 0;
  };

  // With room for tensors with indices below `tensors`; for more it is made as they come.
  PartitionRelease(const Policy& policy, size_t tensors);

  // Before it is submitted first; in any order, and not all of a job's need come. `last_bytes` is
  // the last partition's, the others have policy.partition_bytes.
  void add_tensor(TensorIndex tensor, uint32_t partitions, uint64_t last_bytes);
  bool has(TensorIndex tensor) const noexcept {
    return tensor.value < tensors_.size() && tensors_[tensor.value] != nullptr;
  }

  // All partitions of a tensor that was added wait from now on; none of it did.
  void submit(TensorIndex tensor, uint16_t priority) noexcept;
  // No partition of a tensor waits any more, nor is one waited for that was released.
  void withdraw(TensorIndex tensor) noexcept;
  // Whether a partition is released now. Its acknowledgement will be that of `chunks` chunks, which
  // the caller says by expect() at once.
  bool next(uint64_t now_ns, Released& out) noexcept;
  void expect(const Released& released, uint32_t chunks) noexcept;
  // One chunk of a partition is acknowledged; of one that was not released this means nothing.
  void acknowledged(TensorIndex tensor, uint32_t partition) noexcept;
  // When next() is worth a call: 0 at once, kNever not before submit(), acknowledged(), withdraw().
  uint64_t due_ns() const noexcept { return due_ns_; }

  // Gives the credit up: nothing is released any more, and nothing but these is asked.
  void stop() noexcept;
  // After stop(): the first partition that waited, and all behind it did.
  std::optional<uint32_t> waited_from(TensorIndex tensor) const noexcept;
  // Gives its memory back, in steps: `looks` counts them down, four for a tensor. True: of all.
  bool drop(uint32_t& looks) noexcept;

 private:
  struct TensorPartitions {
    uint32_t next = 0;              // partitions from here on wait
    uint32_t place = 0;             // in waiting_, if some do
    std::vector<uint32_t> missing;  // chunks to be acknowledged, by partition
    uint64_t last_bytes = 0;
  };
  struct Waiting {
    uint64_t rank = 0;  // priority, then arrival
    TensorIndex tensor;
  };
  uint64_t bytes_of(TensorIndex tensor, uint32_t partition) const noexcept;
  bool fits() const noexcept;
  void start(uint64_t now_ns) noexcept;
  void settle(size_t place, const Waiting& one) noexcept;
  void put(size_t place, const Waiting& one) noexcept;
  void take_out(size_t place) noexcept;
  TensorPartitions& at(TensorIndex tensor) noexcept { return *tensors_[tensor.value]; }

  const uint64_t partition_bytes_;
  const uint64_t credit_bytes_;
  const uint64_t startup_ns_;
  const bool by_priority_;
  std::vector<std::unique_ptr<TensorPartitions>> tensors_;  // null: it was not added
  std::vector<Waiting> waiting_;                            // a heap: the lowest rank is the first
  uint64_t arrivals_ = 0;
  uint64_t unacknowledged_bytes_ = 0;  // released or starting
  uint64_t due_ns_ = kNever;
  uint64_t ready_ns_ = 0;  // when the start-up that runs is over
  Released start_;
  bool starting_ = false;
};

}  // namespace mercury
