// When a job has sent as much as it may, and when it may go on: the generic cell rate algorithm.
// What a job has sent takes as long as its rate says; while that reaches further than kAheadNs
// beyond now, the job waits. So it never sends more than its rate and what that is in kAheadNs, and
// one chunk.
//
// Owner/thread: one engine. Pure: time is what poll() was told last. Allocates at construction.
// Paper: ITU-T I.371, "Traffic control and congestion control in B-ISDN", 2004, section 5.4.1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "transport/base/deadlines.h"
#include "transport/base/types.h"

namespace mercury {

class RateLimits {
 public:
  static constexpr uint64_t kAheadNs = 1'000'000;

  explicit RateLimits(uint32_t max_jobs) : jobs_(max_jobs), ready_(max_jobs) {}

  // 0: none, as before it is called. The job is not waiting after it.
  void set(JobSlot job, uint64_t bytes_per_second) noexcept {
    if (job.value >= jobs_.size()) return;
    limited_ += (bytes_per_second != 0) - (jobs_[job.value].rate != 0);
    jobs_[job.value] = {bytes_per_second, 0, 0};
    wait_until(job, kNever);
  }
  bool any() const noexcept { return limited_ != 0; }
  // The job has sent so much. True: it is to wait, until poll() names it.
  bool charge(JobSlot job, uint32_t bytes) noexcept {
    LimitedJob& limited = jobs_[job.value];
    if (limited.rate == 0) return false;
    const uint64_t parts = uint64_t{bytes} * kSecond + limited.left;  // of a ns, `rate` in each
    limited.left = parts % limited.rate;
    limited.until_ns = std::max(limited.until_ns, now_ns_) + parts / limited.rate;
    if (limited.until_ns <= now_ns_ + kAheadNs) return false;
    wait_until(job, limited.until_ns - kAheadNs / 2);
    return true;
  }
  // `go_on(job)` for those that need not wait any more. How many.
  template <class F>
  uint32_t poll(uint64_t now_ns, F go_on) {
    uint32_t count = 0;
    now_ns_ = now_ns;
    ready_.take_due(now_ns, [&](size_t job) {
      go_on(JobSlot(static_cast<uint16_t>(job)));
      ++count;
    });
    next_ns_ = ready_.earliest_ns();
    return count;
  }
  uint64_t next_deadline_ns() const noexcept { return next_ns_; }

 private:
  static constexpr uint64_t kSecond = 1'000'000'000;

  void wait_until(JobSlot job, uint64_t ns) noexcept {
    ready_.set(job.value, ns);
    next_ns_ = ready_.earliest_ns();
  }

  struct LimitedJob {
    uint64_t rate = 0;      // bytes in a second; 0 = no limit
    uint64_t until_ns = 0;  // what it has sent takes
    uint64_t left = 0;      // of a ns
  };

  std::vector<LimitedJob> jobs_;  // by slot
  Deadlines ready_;               // of those that wait
  uint64_t next_ns_ = kNever;     // the earliest of these: asked for before each sleep
  uint64_t now_ns_ = 0;
  int limited_ = 0;
};

}  // namespace mercury
