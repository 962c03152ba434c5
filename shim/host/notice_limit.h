// How many lines of each kind a host's log takes in a time: strangers and programs cause them as
// fast as they like.
//
// Owner/thread: whoever writes the log; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "shim/job/job_manager.h"

namespace mercury {

class NoticeLimit {
 public:
  // Hands `line` to `write`, and before it how many were left out, or leaves it out.
  void pass(NoticeKind kind, const std::string& line, uint64_t now_ns,
            const std::function<void(const std::string& line)>& write) {
    Passed& passed = passed_[static_cast<size_t>(kind)];
    if (now_ns >= passed.until_ns) {
      if (passed.lines > kMostLines) {
        write(std::to_string(passed.lines - kMostLines) + " lines like the last not logged");
      }
      passed = {now_ns + kPeriodNs, 0};
    }
    if (++passed.lines <= kMostLines) write(line);
  }

 private:
  static constexpr uint64_t kMostLines = 20;
  static constexpr uint64_t kPeriodNs = 10'000'000'000;
  struct Passed {
    uint64_t until_ns = 0;
    uint64_t lines = 0;
  };
  std::array<Passed, kNoticeKinds> passed_;
};

}  // namespace mercury
