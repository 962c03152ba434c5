// What a pass may do of what is cold: walks over the chunks, tensors and ranges of jobs that end,
// lose or replace a worker, or follow another policy, and over lost chunks without room. Frames
// wait meanwhile, so these walks share kAll steps; each that finds fewer than kLeast left has
// kLeast.
//
// Owner/thread: one engine, for one pass.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class ColdSteps {
 public:
  static constexpr uint32_t kAll = 1024;
  static constexpr uint32_t kLeast = 64;  // of each walk

  // That a walk may take now.
  uint32_t part() const noexcept { return std::max(left_, kLeast); }
  void took(uint32_t steps) noexcept { left_ -= std::min(left_, steps); }

 private:
  uint32_t left_ = kAll;
};

}  // namespace mercury
