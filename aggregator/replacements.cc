#include "aggregator/replacements.h"

#include <utility>

namespace mercury::aggregation {

void Replacements::Walk::end_tensor() {
  if (!done.rounds.empty() && highest != done.rounds.back()) ahead.push_back(highest);
}

void Replacements::add(const TensorTable& tensors, Rank worker, uint32_t incarnation) {
  Walk& walk = walks_.emplace_back(Walk{ChunkWalk(tensors), {{}, worker, incarnation, {}}, {}, {}});
  walk.done.rounds.reserve(tensors.size());
  walk.ahead.reserve(tensors.size());
}

// The rounds of a tensor's chunks differ by little, so serial numbers compare.
bool Replacements::advance(TensorTable& tensors, uint32_t& looks, ReplacedWorker& out) {
  Walk& walk = walks_.front();
  std::vector<TensorRound>& rounds = walk.done.rounds;
  walk.chunks.advance(tensors, looks, [&](TensorSlots& slots, uint32_t index) {
    slots.take_out(index, walk.done.worker);
    const Round round = slots.round_of(index);
    if (index == 0) {
      walk.end_tensor();
      walk.highest = rounds.emplace_back(TensorRound{slots.id(), round});
    }
    if (round.since(rounds.back().round) < 0) rounds.back().round = round;
    if (round.since(walk.highest.round) > 0) walk.highest.round = round;
  });
  if (!walk.chunks.ended()) return false;
  walk.end_tensor();
  rounds.insert(rounds.end(), walk.ahead.begin(), walk.ahead.end());
  out = std::move(walk.done);
  walks_.pop_front();
  return true;
}

}  // namespace mercury::aggregation
