// The time-ordered queue of the simulated network: a 4-ary heap of frames by time, and by order of
// entry among equal times, so that runs repeat exactly.
//
// Owner/thread: the SimNetwork's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/port/sim/frame_pool.h"

namespace mercury::sim {

struct Event {
  uint64_t time_ps = 0;
  uint64_t order = 0;
  Frame* frame = nullptr;

  bool before(const Event& other) const noexcept {
    return time_ps != other.time_ps ? time_ps < other.time_ps : order < other.order;
  }
};

class EventQueue {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  const Event& top() const noexcept { return heap_.front(); }
  std::span<const Event> all() const noexcept { return heap_; }  // in no particular order

  void push(uint64_t time_ps, Frame* frame) {
    const Event event{time_ps, next_order_++, frame};
    heap_.push_back(event);
    size_t at = heap_.size() - 1;
    while (at > 0) {
      const size_t parent = (at - 1) / kArity;
      if (!event.before(heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }

  // Gives every event a new time, `at(event)`; the order of entry still decides among equals.
  template <class F>
  void retime(F at) {
    for (Event& event : heap_) event.time_ps = at(event);
    std::sort(heap_.begin(), heap_.end(),
              [](const Event& a, const Event& b) { return a.before(b); });  // sorted is a heap
  }

  void pop() noexcept {
    const Event event = heap_.back();
    heap_.pop_back();
    const size_t count = heap_.size();
    if (count == 0) return;
    size_t at = 0;
    for (;;) {
      const size_t first = at * kArity + 1;
      if (first >= count) break;
      size_t least = first;
      for (size_t i = first + 1; i < std::min(first + kArity, count); ++i) {
        if (heap_[i].before(heap_[least])) least = i;
      }
      if (!heap_[least].before(event)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = event;
  }

 private:
  static constexpr size_t kArity =
      4;  // half the levels of a binary heap, children in two cache lines
  std::vector<Event> heap_;
  uint64_t next_order_ = 0;
};

}  // namespace mercury::sim
