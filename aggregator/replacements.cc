#include "aggregator/replacements.h"

#include <utility>

namespace mercury::aggregation {

void Replacements::add(const TensorTable& tensors, Rank worker, uint32_t incarnation) {
  ReplacedWorker done{{}, worker, incarnation, {}};
  done.rounds.reserve(tensors.size());
  walks_.push_back({ChunkWalk(tensors), std::move(done), {}});
  walks_.back().highest.reserve(tensors.size());
}

// The rounds of a tensor's chunks differ by little, so serial numbers compare.
bool Replacements::advance(TensorTable& tensors, uint32_t& looks, ReplacedWorker& out) {
  Walk& walk = walks_.front();
  std::vector<TensorRound>& rounds = walk.done.rounds;
  walk.chunks.advance(tensors, looks, [&](TensorSlots& slots, uint32_t index) {
    slots.take_out(index, walk.done.worker);
    const Round round = slots.round_of(index);
    if (index == 0) {
      rounds.push_back({slots.id(), round});
      walk.highest.push_back({slots.id(), round});
    }
    if (round.since(rounds.back().round) < 0) rounds.back().round = round;
    if (round.since(walk.highest.back().round) > 0) walk.highest.back().round = round;
  });
  if (!walk.chunks.ended()) return false;
  const size_t tensors_here = rounds.size();
  for (size_t i = 0; i < tensors_here; ++i) {
    if (walk.highest[i] != rounds[i]) rounds.push_back(walk.highest[i]);
  }
  out = std::move(walk.done);
  walks_.pop_front();
  return true;
}

}  // namespace mercury::aggregation
