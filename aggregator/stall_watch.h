// Finds the chunk of a job that has been open for longest, when that is too long.
//
// A push writes down when a round opens, and nothing more: no list is kept of what is open. From
// time to time all chunks are looked at, in steps: the next time is when the oldest that is open
// now would be too old, at least a sixteenth of the limit from now and at most one. What is too old
// is reported if it still is a sixteenth later, so that an engine that itself stood still first
// takes what has arrived. Together: reported an eighth of the limit after it, at the latest.
//
// Owner/thread: one engine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/aggregator.h"
#include "aggregator/tensor_slots.h"

namespace mercury::aggregation {

class StallWatch {
 public:
  StallWatch() = default;
  explicit StallWatch(uint64_t limit_ns) : limit_ns_(limit_ns) { restart(); }

  uint64_t due_ns() const noexcept { return due_ns_; }  // of the next look; kNever without a limit
  // What is open now counts as opened at the next look.
  void restart() noexcept {
    if (limit_ns_ == 0) return;
    restarted_ = true;
    due_ns_ = 0;
  }
  // When due. True: `out` (but for its job) names what is stalled.
  bool look(const TensorTable& tensors, const WorkerSet& live, uint64_t now_ns, uint32_t& looks,
            StalledChunk& out) noexcept;

 private:
  struct Found {
    uint64_t opened_ns = kNever;
    TensorIndex tensor;
    uint32_t chunk = 0;
    friend bool operator==(const Found&, const Found&) = default;
  };
  void begin(uint64_t now_ns) noexcept;
  void advance(const TensorTable& tensors, const WorkerSet& live, uint32_t& looks) noexcept;

  uint64_t limit_ns_ = 0;
  uint64_t due_ns_ = kNever;
  uint64_t not_before_ns_ = 0;  // no chunk counts as opened earlier
  bool restarted_ = false;
  // The pass: where it is, what it has found; and what the last one found too old.
  bool looking_ = false;
  uint64_t begun_ns_ = 0;
  TensorIndex tensor_;
  uint32_t chunk_ = 0;
  Found oldest_;
  Found suspect_;
};

}  // namespace mercury::aggregation
