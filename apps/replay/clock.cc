#include "apps/replay/clock.h"

#include <time.h>

#include <cerrno>

namespace mercury {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

}  // namespace

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecondNs + static_cast<uint64_t>(now.tv_nsec);
}

void wait_until_ns(uint64_t deadline_ns) {
  if (monotonic_ns() + kSpinNs < deadline_ns) {
    const uint64_t wake_ns = deadline_ns - kSpinNs;
    timespec until{};
    until.tv_sec = static_cast<time_t>(wake_ns / kSecondNs);
    until.tv_nsec = static_cast<long>(wake_ns % kSecondNs);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
  while (monotonic_ns() < deadline_ns) {
  }
}

}  // namespace mercury
