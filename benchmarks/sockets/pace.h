// Blocks at a rate: who sends faster waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>

namespace mercury::bench {

class Pace {
 public:
  // Megabits a second of blocks of so many bytes; 0: as fast as they go.
  Pace(double mbit, size_t bytes)
      : each_(mbit > 0 ? 8e-6 * static_cast<double>(bytes) / mbit : 0), due_(Clock::now()) {}

  bool waits() const { return each_.count() > 0; }
  // Until the next block may go. What was late is made up for.
  void wait() {
    if (!waits()) return;
    due_ += std::chrono::duration_cast<Clock::duration>(each_);
    std::this_thread::sleep_until(due_);
  }
  // The same where what was late stays so: two follow each other no sooner than at the rate.
  void wait_since_last() {
    due_ = std::max(due_, Clock::now() - std::chrono::duration_cast<Clock::duration>(each_));
    wait();
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> each_;
  Clock::time_point due_;
};

}  // namespace mercury::bench
