// The sessions of jobs that have ended on this host: a pass closes so many of them at most, as no
// frame is received meanwhile. Owner/thread: one engine. Allocates as a job ends.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "transport/base/result.h"

namespace mercury {

class JobEnds {
 public:
  static constexpr uint32_t kClosedInPass = 32;

  void begin_pass() noexcept { left_ = kClosedInPass; }
  // `numbers`: by which the sessions are found, if they have not ended by then.
  void add(Errc code, std::string_view text, std::vector<uint32_t> numbers) {
    if (!numbers.empty()) jobs_.push_back({code, std::string(text), std::move(numbers)});
  }
  bool empty() const noexcept { return jobs_.empty(); }
  // `close(number, code, text)` for those that this pass may still close. How many.
  template <class F>
  uint32_t close_some(F close) {
    uint32_t closed = 0;
    for (; left_ > 0 && !jobs_.empty(); --left_, ++closed) {
      EndedJob& job = jobs_.front();
      close(job.numbers[job.closed], job.code, std::string_view(job.text));
      if (++job.closed == job.numbers.size()) jobs_.pop_front();
    }
    return closed;
  }

 private:
  struct EndedJob {
    Errc code;
    std::string text;
    std::vector<uint32_t> numbers;
    size_t closed = 0;
  };

  std::deque<EndedJob> jobs_;
  uint32_t left_ = 0;
};

}  // namespace mercury
