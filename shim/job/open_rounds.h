// The rounds that a tensor's chunks are in, as servers tell of them when they replace a worker.
#pragma once

#include <unordered_map>

#include "scheduler/terms/chunk.h"

namespace mercury {

class OpenRounds {
 public:
  explicit OpenRounds(Round round) : lowest_(round), highest_(round) {}
  void add(Round round) {  // serial numbers
    if (round.since(lowest_) < 0) lowest_ = round;
    if (round.since(highest_) > 0) highest_ = round;
  }
  Round lowest() const { return lowest_; }
  Round highest() const { return highest_; }

  // That the worker's next life begins with: no chunk is in an earlier one, and each chunk's server
  // still has the sums from it on.
  //
  // Servers hear of the next life one after the other. Where a quorum does without the worker, one
  // that heard late was rounds ahead of where an early one was when it heard, and has no sum of
  // that round any more. But a chunk in round r says that somebody has all sums of r - 2: so all
  // are in r - 1 at least by now. And none goes beyond r + 1 (or 3, as the first two rounds
  // overwrite nothing) before the worker has pushed.
  Round first() const {
    const Round before_highest(highest_.value - 1);
    return lowest_.since(before_highest) < 0 ? before_highest : lowest_;
  }

 private:
  Round lowest_, highest_;
};

using OpenRoundsOf = std::unordered_map<TensorId, OpenRounds>;
inline void note(OpenRoundsOf& rounds, TensorId tensor, Round round) {
  rounds.try_emplace(tensor, round).first->second.add(round);
}

}  // namespace mercury
