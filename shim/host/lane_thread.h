// The thread of one engine: polls while there is work, and sleeps when there is none, so that a
// daemon with more engines than cores works and an idle one costs next to nothing.
//
// Adaptive: without work it offers its core to whoever waits for one, and after `spin_ns` (spin.h)
// it arms all that can wake it (programs' channels and sockets, commands, the port), looks once
// more, and sleeps on their descriptors until the engine's next deadline. A port without a
// descriptor (memif, ring) is napped on, from 5 us growing to 1 ms, with one look between two naps.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "shim/host/bell.h"
#include "shim/host/clock.h"
#include "shim/host/lane.h"
#include "shim/host/scheduling.h"
#include "shim/host/spin.h"
#include "shim/host/thread.h"

namespace mercury {

enum class Polling : uint8_t { kAdaptive, kBusy, kInterrupt };

struct ThreadConfig {
  Polling polling = Polling::kAdaptive;
  uint64_t spin_ns = 20'000;
  Scheduling scheduling = Scheduling::kNormal;  // as far as it is permitted
  int core = -1;                                // -1: not pinned
  std::string name = "mercury-engine";
};

inline constexpr uint64_t kFirstNapNs = 5'000;
inline constexpr uint64_t kLongestNapNs = 1'000'000;
// No sleep is longer: a lost wake-up would cost time, not the exchange. None is known, and an
// engine without sessions wakes for this alone.
inline constexpr uint64_t kLongestSleepNs = 1'000'000'000;
// A thread that has begun no pass for so long stands still: in the kernel, in a pass without end,
// on a page of a program's that does not come. (On a busy machine others may run for a second.)
inline constexpr uint64_t kStandstillNs = 3 * kLongestSleepNs;

template <Port P>
class LaneThread {
 public:
  // `control` is rung when the control plane is to look at the engine's rings.
  LaneThread(Lane<P>& lane, const ThreadConfig& config, Bell& control)
      : lane_(lane),
        config_(config),
        control_(control),
        spin_(config.polling == Polling::kAdaptive ? config.spin_ns : 0) {}
  ~LaneThread() { join(); }

  Status start() {
    Result<std::thread> thread = start_thread([this] { run(); });
    if (!thread) return thread.error();
    thread_ = std::move(*thread);
    return {};
  }
  // The engine ends by command::Stop; `abandon` ends the loop at its next pass whatever it does.
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  // Any thread.
  bool stands_still(uint64_t now_ns) const noexcept {
    const uint64_t began_ns = began_ns_.load(std::memory_order_relaxed);
    return began_ns != 0 && now_ns > began_ns + kStandstillNs;
  }
  void abandon() {
    abandoned_.store(true, std::memory_order_relaxed);
    eventfd_write(lane_.doorbell(), 1);
    join();
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), config_.name.substr(0, 15).c_str());
    prctl(PR_SET_TIMERSLACK, 1000);            // paced frames are due within microseconds
    (void)set_scheduling(config_.scheduling);  // whoever asks for more has checked it
    if (config_.core >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(config_.core), &set);
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    uint64_t idle_since_ns = monotonic_ns();
    uint64_t worked_since_ns =
        0;  // the last pass, if it found work; its end is the next one's begin
    while (!lane_.engine().stopped() && !abandoned_.load(std::memory_order_relaxed)) {
      const uint64_t now_ns = monotonic_ns();
      began_ns_.store(now_ns, std::memory_order_relaxed);
      if (worked_since_ns != 0) lane_.passes().add(now_ns - worked_since_ns);
      const uint32_t work = lane_.poll(now_ns, monotonic_ns);
      worked_since_ns = work > 0 ? now_ns : 0;
      if (lane_.take_wake()) control_.ring();
      if (work > 0) {
        idle_since_ns = now_ns;
        nap_ns_ = kFirstNapNs;
        spin_.found();
        continue;
      }
      if (config_.polling == Polling::kBusy) continue;
      if (nap_ns_ == kFirstNapNs &&
          spin_.looks_on(now_ns - idle_since_ns, now_ns - lane_.relay().carried_ns())) {
        sched_yield();
        continue;
      }
      spin_.gave_up();
      sleep();
      idle_since_ns = monotonic_ns();
    }
    if (lane_.take_wake()) control_.ring();
  }

  void sleep() {
    const bool quiet = lane_.exchange().park() && lane_.park() && lane_.port().prepare_sleep();
    if (quiet) {
      const uint64_t now_ns = monotonic_ns();
      const uint64_t deadline_ns = lane_.engine().next_deadline_ns();
      uint64_t wait_ns =
          deadline_ns <= now_ns ? 0 : std::min(deadline_ns - now_ns, kLongestSleepNs);
      const int port_fd = lane_.port().wait_fd();
      if (port_fd < 0) {
        wait_ns = std::min(wait_ns, nap_ns_);
        nap_ns_ = std::min(2 * nap_ns_, kLongestNapNs);
      }
      if (wait_ns > 0) wait(port_fd, wait_ns);
    }
    lane_.unpark();
    lane_.exchange().unpark();
  }

  void wait(int port_fd, uint64_t wait_ns) {
    fds_.clear();
    fds_.push_back({lane_.doorbell(), POLLIN, 0});
    if (port_fd >= 0) fds_.push_back({port_fd, POLLIN, 0});
    for (size_t i = 0; i < lane_.exchange().channel_count(); ++i) {
      fds_.push_back({lane_.exchange().doorbell(i), POLLIN, 0});
    }
    if (const int fd = lane_.relay().wake_fd(); fd >= 0) fds_.push_back({fd, POLLIN, 0});
    timespec timeout{static_cast<time_t>(wait_ns / 1'000'000'000),
                     static_cast<long>(wait_ns % 1'000'000'000)};
    lane_.counters().add(Counter::kSleeps);
    ppoll(fds_.data(), fds_.size(), &timeout, nullptr);
    if ((fds_[0].revents & POLLIN) != 0) {
      eventfd_t value;
      eventfd_read(lane_.doorbell(), &value);
    }
  }

  Lane<P>& lane_;
  const ThreadConfig config_;
  Bell& control_;
  std::atomic<bool> abandoned_{false};
  std::atomic<uint64_t> began_ns_{0};  // the last pass; 0: none yet
  std::vector<pollfd> fds_;
  uint64_t nap_ns_ = kFirstNapNs;
  Spin spin_;
  std::thread thread_;
};

}  // namespace mercury
