// A thread that waits, for tests of what wakes it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "tests/shim/socket/api/counted_libc.h"

namespace mercury {

class Waiter {
 public:
  // `wait`: calls of the counted kind.
  explicit Waiter(const std::function<void()>& wait)
      : before_(kernel_waits()), thread_([this, wait] {
          id_ = ::gettid();
          wait();
        }) {}
  ~Waiter() { thread_.join(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // It has asked the kernel, has been told what there was, and sleeps until there is more.
  void until_asleep() const {
    while (kernel_waits() == before_ || state() != 'S') std::this_thread::yield();
  }
  // It has asked again, after it had done so `before` times, and sleeps. False: it asks on and on.
  bool until_asleep_again(uint64_t before) const {
    constexpr uint64_t kMost = 1000;
    while (kernel_waits() == before || state() != 'S') {
      if (kernel_waits() - before > kMost) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // It is `done`, or sleeps, as for a lock that the caller holds.
  void until_asleep_or(const std::atomic<bool>& done) const {
    while (!done && state() != 'S') std::this_thread::yield();
  }

 private:
  char state() const {
    std::ifstream file("/proc/self/task/" + std::to_string(id_) + "/stat");
    std::string stat;
    std::getline(file, stat);
    const size_t name_end = stat.rfind(") ");
    return name_end + 2 < stat.size() ? stat[name_end + 2] : ' ';
  }

  const uint64_t before_;
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

}  // namespace mercury
