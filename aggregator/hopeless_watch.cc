#include "aggregator/hopeless_watch.h"

#include <utility>

namespace mercury::aggregation {

void HopelessWatch::note(TensorSlots& slots, uint32_t index, const WorkerSet& live) noexcept {
  if (slots.missing_for_good(index, live) == WorkerSet{}) return;
  TensorSlots::Hopeless& state = slots.hopeless;
  const Round round = slots.round_of(index);
  if (state.known && round.since(state.round) >= 0) return;
  state.known = true;
  state.round = round;
  state.index = index;
  if (std::exchange(state.listed, true)) return;
  state.next = std::exchange(first_, &slots);
}

bool HopelessWatch::take(TensorTable& tensors, const WorkerSet& live, uint32_t& looks,
                         HopelessRound& out) noexcept {
  for (; looking_ && first_ == nullptr && looks > 0; --looks) {
    if (!tensors.has(tensor_)) {
      looking_ = false;
    } else if (chunk_ == tensors.at(tensor_).chunks()) {
      ++tensor_.value;
      chunk_ = 0;
    } else {
      note(tensors.at(tensor_), chunk_++, live);
    }
  }
  if (first_ == nullptr) return false;
  TensorSlots& slots = *first_;
  first_ = std::exchange(slots.hopeless.next, nullptr);
  slots.hopeless.listed = false;
  out.at = {slots.id(), slots.hopeless.round};
  out.missing = slots.missing_for_good(slots.hopeless.index, live);
  return true;
}

}  // namespace mercury::aggregation
