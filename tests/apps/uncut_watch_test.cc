#include "apps/stackd/uncut_watch.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Looks ten times a second, as the daemon does, while so many frames are dropped in each; how often
// it had something to say.
int lines(UncutWatch& watch, uint64_t& now_ns, uint64_t& dropped, uint64_t each_second,
          int seconds) {
  int said = 0;
  for (int i = 0; i < seconds * 10; ++i) {
    now_ns += kSecond / 10;
    dropped += each_second / 10;
    said += watch.look(now_ns, dropped) ? 1 : 0;
  }
  return said;
}

TEST(UncutWatch, SaysOnceInTenMinutesWhatMendsIt) {
  UncutWatch watch("eth1", false);
  uint64_t now_ns = 1000 * kSecond, dropped = 1'000'000;  // of before it looked
  EXPECT_EQ(lines(watch, now_ns, dropped, 1000, 599), 1);
  EXPECT_EQ(lines(watch, now_ns, dropped, 1000, 599), 1);
}

TEST(UncutWatch, IsSilentOfStrayFrames) {
  UncutWatch watch("eth1", false);
  uint64_t now_ns = 1000 * kSecond, dropped = 0;
  for (int i = 0; i < 100; ++i) {
    dropped += 90;
    EXPECT_EQ(lines(watch, now_ns, dropped, 0, 11), 0);
  }
}

TEST(UncutWatch, NamesTheCommandForWhatItIs) {
  for (bool merges : {true, false}) {
    UncutWatch watch("eth1", merges);
    EXPECT_FALSE(watch.look(1000 * kSecond, 50));
    const auto line = watch.look(1001 * kSecond, 50 + 123);
    ASSERT_TRUE(line);
    EXPECT_TRUE(line->starts_with("123 frames within 10 s were dropped")) << *line;
    EXPECT_NE(line->find(merges ? "ethtool -K eth1 rx-gro-list off"
                                : "ethtool -K INTERFACE tx-udp-segmentation off"),
              std::string::npos)
        << *line;
  }
}

}  // namespace
}  // namespace mercury
