// Takes what the last lives of a job's replaced workers have added out of its chunks, in steps, and
// finds meanwhile which round each tensor is in.
//
// A chunk that a step has not come to yet may still be complete with what the last life added, as
// if its worker had been replaced later. From when it has come to a chunk on, the open round needs
// the next life, so what it says of the rounds stays true.
//
// Owner/thread: one engine. Allocates where a worker is replaced.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "aggregator/aggregator.h"
#include "aggregator/chunk_walk.h"

namespace mercury::aggregation {

class Replacements {
 public:
  void add(const TensorTable& tensors, Rank worker, uint32_t incarnation);
  bool pending() const noexcept { return !walks_.empty(); }
  // True: the first is done, and `out` (but for its job) says whose; it is not pending any more.
  bool advance(TensorTable& tensors, uint32_t& looks, ReplacedWorker& out);

 private:
  struct Walk {
    ChunkWalk chunks;
    ReplacedWorker done;               // with the lowest rounds
    std::vector<TensorRound> highest;  // of the same tensors
  };
  std::deque<Walk> walks_;  // one after the other
};

}  // namespace mercury::aggregation
