#include "aggregator/stall_watch.h"

#include <algorithm>
#include <utility>

namespace mercury::aggregation {

void StallWatch::begin(uint64_t now_ns) noexcept {
  if (std::exchange(restarted_, false)) {
    not_before_ns_ = now_ns;
    suspect_ = {};
  }
  looking_ = true;
  begun_ns_ = now_ns;
  tensor_ = {};
  chunk_ = 0;
  oldest_ = {};
}

void StallWatch::advance(const TensorTable& tensors, const WorkerSet& live,
                         uint32_t& looks) noexcept {
  for (; looks > 0 && tensors.has(tensor_); --looks) {
    const TensorSlots& slots = tensors.at(tensor_);
    if (chunk_ == slots.chunks()) {
      ++tensor_.value;
      chunk_ = 0;
      continue;
    }
    const uint64_t opened_ns = slots.opened_ns(chunk_);
    if (opened_ns < oldest_.opened_ns && slots.awaited(chunk_, live) != WorkerSet{}) {
      oldest_ = {opened_ns, tensor_, chunk_};
    }
    ++chunk_;
  }
}

bool StallWatch::look(const TensorTable& tensors, const WorkerSet& live, uint64_t now_ns,
                      uint32_t& looks, StalledChunk& out) noexcept {
  if (!looking_ || restarted_) begin(now_ns);
  advance(tensors, live, looks);
  if (tensors.has(tensor_)) return false;
  looking_ = false;
  due_ns_ = begun_ns_ + limit_ns_;
  const Found found = oldest_;
  const Found before = std::exchange(suspect_, {});
  if (found.opened_ns == kNever) return false;
  const uint64_t since_ns = std::max(found.opened_ns, not_before_ns_);
  const uint64_t soon_ns = now_ns + std::max<uint64_t>(1, limit_ns_ / 16);
  due_ns_ = std::min(due_ns_, std::max(since_ns + limit_ns_, soon_ns));
  // Pushes came between the steps of the pass.
  const TensorSlots& slots = tensors.at(found.tensor);
  if (now_ns < since_ns + limit_ns_ || slots.opened_ns(found.chunk) != found.opened_ns) {
    return false;
  }
  suspect_ = found;
  out.awaited = slots.awaited(found.chunk, live);
  if (found != before || out.awaited == WorkerSet{}) return false;
  out.at = {slots.id(), slots.round_of(found.chunk)};
  out.open_ns = now_ns - since_ns;
  return true;
}

}  // namespace mercury::aggregation
