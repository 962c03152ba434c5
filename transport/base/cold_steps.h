// What a pass may do of what is cold: walks over the chunks, tensors and ranges of jobs that end,
// replace a worker or follow another policy. Other jobs' frames wait meanwhile, so all these walks
// share one pass's part; each that is due has some of it, whatever the others take.
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
