// Lost chunks that wait for room in the scheduler: those of a job in order, and jobs by turns, so
// that one that has lost many does not hold up one that has lost few.
//
// Owner/thread: one engine. Adding and taking one is O(1); nothing allocates while no more wait
// than there was room made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/scheduler.h"
#include "transport/base/types.h"

namespace mercury {

struct LostChunk {
  SessionSlot session;
  uint32_t life = 0;  // of those that have had the slot: a later one's is not sent this
  ChunkRange chunk;
};

class LostChunks {
 public:
  LostChunks(uint32_t max_jobs, uint32_t most) : lines_(max_jobs) {
    nodes_.reserve(most);
    waiting_jobs_.reserve(max_jobs);
  }

  uint32_t size() const noexcept { return size_; }
  bool has(JobSlot job) const noexcept { return lines_[job.value].first != kNone; }
  void add(JobSlot job, const LostChunk& lost) {
    uint32_t index = free_;
    if (index == kNone) {
      index = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({lost, kNone});
    } else {
      free_ = nodes_[index].next;
      nodes_[index] = {lost, kNone};
    }
    Line& line = lines_[job.value];
    if (line.first == kNone) waiting_jobs_.push_back(job.value);
    (line.first == kNone ? line.first : nodes_[line.last].next) = index;
    line.last = index;
    ++size_;
  }
  // Takes those that `fits(const LostChunk&)`: the first of each job that waits, again and again,
  // until none of these fits, or it has looked so often: `looks` is counted down. How many.
  template <class F>
  uint32_t take(uint32_t& looks, F fits) noexcept {
    uint32_t taken = 0;
    for (size_t refused = 0; looks > 0 && refused < waiting_jobs_.size(); --looks) {
      if (turn_ >= waiting_jobs_.size()) turn_ = 0;
      Line& line = lines_[waiting_jobs_[turn_]];
      if (!fits(nodes_[line.first].lost)) {
        ++refused;
        ++turn_;
        continue;
      }
      refused = 0;
      ++taken;
      pop(line);
    }
    return taken;
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Node {
    LostChunk lost;
    uint32_t next = kNone;
  };
  struct Line {
    uint32_t first = kNone;
    uint32_t last = kNone;
  };

  // The next turn is another job's.
  void pop(Line& line) noexcept {
    const uint32_t index = line.first;
    line.first = nodes_[index].next;
    nodes_[index].next = free_;
    free_ = index;
    --size_;
    if (line.first != kNone) {
      ++turn_;
    } else {
      waiting_jobs_[turn_] = waiting_jobs_.back();
      waiting_jobs_.pop_back();
    }
  }

  std::vector<Node> nodes_;
  uint32_t free_ = kNone;
  uint32_t size_ = 0;
  std::vector<Line> lines_;             // by job slot
  std::vector<uint16_t> waiting_jobs_;  // slots of those whose line is not empty
  size_t turn_ = 0;                     // in waiting_jobs_
};

}  // namespace mercury
