// Times of layers and exchanges in Chrome's trace format, which Perfetto opens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/base/result.h"

namespace mercury {

class Timeline {
 public:
  enum class Kind : uint8_t { kForward, kBackward, kExchange };

  // Spans are kept from this call on, not before.
  void enable() { enabled_ = true; }
  // `name` must outlive the timeline. Times of CLOCK_MONOTONIC.
  void span(const std::string& name, Kind kind, uint64_t iteration, uint64_t begin_ns,
            uint64_t end_ns) {
    if (enabled_) spans_.push_back({&name, begin_ns, end_ns, iteration, kind});
  }
  // Compute spans lie in thread 0, exchanges in thread 1, microseconds. Error: kSystem.
  Status write(const std::string& path) const;

 private:
  struct Span {
    const std::string* name = nullptr;
    uint64_t begin_ns = 0, end_ns = 0, iteration = 0;
    Kind kind = Kind::kForward;
  };
  std::vector<Span> spans_;
  bool enabled_ = false;
};

}  // namespace mercury
