// The sessions of jobs that have ended on this host: a pass closes so many of them at most, as no
// frame is received meanwhile. Owner/thread: one engine. Allocates as a job ends.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "transport/base/result.h"

namespace mercury {

class JobEnds {
 public:
  static constexpr uint32_t kClosedInPass = 32;

  void begin_pass() noexcept { left_ = kClosedInPass; }
  // `numbers`: by which the sessions are found, if they have not ended by then.
  void add(Errc code, std::string_view text, std::deque<uint32_t> numbers) {
    if (numbers.empty()) return;
    waiting_ += numbers.size();
    jobs_.push_back({code, std::string(text), std::move(numbers)});
  }
  bool empty() const noexcept { return waiting_ == 0; }
  // `close(number, code, text)` for those that this pass may still close. How many.
  template <class F>
  uint32_t close_some(F close) {
    uint32_t closed = 0;
    for (; waiting_ > 0 && left_ > 0; --waiting_, --left_, ++closed) {
      EndedJob& job = jobs_.front();
      close(job.numbers.front(), job.code, std::string_view(job.text));
      job.numbers.pop_front();
      if (job.numbers.empty()) jobs_.pop_front();
    }
    return closed;
  }

 private:
  struct EndedJob {
    Errc code;
    std::string text;
    std::deque<uint32_t> numbers;
  };

  std::deque<EndedJob> jobs_;
  size_t waiting_ = 0;  // sessions of all
  uint32_t left_ = 0;
};

}  // namespace mercury
