#include "shim/host/bell.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace mercury {
namespace {

bool is_rung(const Bell& bell, int patience_ms = 0) {
  pollfd fd{bell.fd(), POLLIN, 0};
  return poll(&fd, 1, patience_ms) == 1;
}

TEST(Bell, RingsOnceUntilItIsHeard) {
  Bell bell;
  EXPECT_FALSE(is_rung(bell));
  for (int i = 0; i < 3; ++i) bell.ring();
  eventfd_t written = 0;
  ASSERT_EQ(eventfd_read(bell.fd(), &written), 0);
  EXPECT_EQ(written, 1U);
  bell.hear();
  EXPECT_FALSE(is_rung(bell));
  bell.ring();
  EXPECT_TRUE(is_rung(bell));
  bell.hear();
  EXPECT_FALSE(is_rung(bell));
}

// Whoever waits for what two others do sees all of it, and never has to look by the clock.
TEST(Bell, NobodyIsMissed) {
  constexpr uint64_t kEach = 200'000;
  constexpr int kPatienceMs = 20'000;
  Bell bell;
  std::atomic<uint64_t> done{0};
  const auto work = [&] {
    for (uint64_t i = 0; i < kEach; ++i) {
      done.fetch_add(1, std::memory_order_relaxed);
      bell.ring();
    }
  };
  std::thread one(work), other(work);
  uint64_t seen = 0;
  while (seen < 2 * kEach) {
    const bool rung = is_rung(bell, kPatienceMs);
    EXPECT_TRUE(rung) << seen;
    if (!rung) break;
    bell.hear();
    seen = done.load(std::memory_order_relaxed);
  }
  one.join();
  other.join();
}

}  // namespace
}  // namespace mercury
