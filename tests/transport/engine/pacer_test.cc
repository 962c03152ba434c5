// What an engine releases to a link: never faster than the link, at any rate, for any length of
// time.
#include "transport/engine/pacer.h"

#include <gtest/gtest.h>

namespace mercury {
namespace {

TEST(Pacer, ReleasesNeitherMoreNorLessThanTheLinkCarries) {
  // Bytes per second at which a frame takes a whole number of nanoseconds, and at which it does
  // not.
  for (const uint64_t rate :
       {125'000'000ULL, 1'250'000'000ULL, 12'500'000'000ULL, 12'345'678'901ULL}) {
    constexpr uint32_t kFrame = 1538;
    constexpr uint64_t kBound = 64 * 1024;
    Pacer pacer(rate, kBound);
    uint64_t now_ns = 1'000;
    uint64_t sent_bytes = 0;
    uint64_t most_ahead_bytes = 0;
    for (int frame = 0; frame < 1'000'000; ++frame) {
      if (!pacer.allows(now_ns)) now_ns = pacer.ready_at_ns();
      ASSERT_TRUE(pacer.allows(now_ns)) << rate;
      pacer.sent(kFrame, now_ns);
      sent_bytes += kFrame;
      const auto carried = static_cast<uint64_t>(static_cast<double>(now_ns - 1'000) * 1e-9 *
                                                 static_cast<double>(rate));
      ASSERT_GT(sent_bytes, carried) << "the link has run dry at " << rate;
      most_ahead_bytes = std::max(most_ahead_bytes, sent_bytes - carried);
    }
    EXPECT_LE(most_ahead_bytes, kBound + 2 * kFrame) << rate;
  }
}

// An eighth of 400 Gb/s with a bound of two frames, and other links and
// passes: what is released at the begin of each keeps the link busy until the next one.
TEST(Pacer, APassReleasesWhatTheLinkCarriesUntilTheNextOne) {
  constexpr uint32_t kFrame = 1538;
  struct Case {
    uint64_t rate;  // of one engine
    uint64_t bound;
    uint64_t pass_ns;
  };
  for (const Case& c :
       {Case{6'250'000'000, 2 * 9216, 10'000}, Case{12'500'000'000, 64 * 1024, 20'000},
        Case{50'000'000'000, 64 * 1024, 14'000}, Case{1'250'000'000, 64 * 1024, 500},
        Case{4'000'000, 64 * 1024, 90'000}}) {
    Pacer pacer(c.rate, c.bound);
    const double per_pass = static_cast<double>(c.rate) * 1e-9 * static_cast<double>(c.pass_ns);
    uint64_t sent = 0;
    uint64_t now_ns = 1'000;
    constexpr uint64_t kPasses = 10'000;
    for (uint64_t pass = 0; pass < kPasses; ++pass, now_ns += c.pass_ns) {
      const double carried = static_cast<double>(pass) * per_pass;
      const double ahead = static_cast<double>(sent) - carried;
      EXPECT_LE(ahead, static_cast<double>(c.bound + kFrame) + 1) << "found by pass " << pass;
      pacer.begin_pass(now_ns, pass > 0);
      for (; pacer.allows(now_ns); sent += kFrame) pacer.sent(kFrame, now_ns);
    }
    EXPECT_GE(static_cast<double>(sent), 0.999 * static_cast<double>(kPasses - 1) * per_pass)
        << c.rate << " bytes per second in passes of " << c.pass_ns << " ns";
  }
}

TEST(Pacer, ASleepAndALongPassReleaseNoMore) {
  constexpr uint32_t kFrame = 1000;
  constexpr uint64_t kBound = 10'000;
  Pacer pacer(1'000'000'000, kBound);  // a byte per nanosecond
  const auto released = [&](uint64_t now_ns, bool follows) {
    pacer.begin_pass(now_ns, follows);
    uint64_t bytes = 0;
    for (; pacer.allows(now_ns); bytes += kFrame) pacer.sent(kFrame, now_ns);
    return bytes;
  };
  EXPECT_EQ(released(1'000, false), kBound);
  EXPECT_EQ(released(1'000'000, false), kBound) << "it slept";
  EXPECT_EQ(released(2'000'000, true), kBound + 100'000) << "100 us are the longest pass";
  EXPECT_EQ(released(3'000'000, false), kBound + 100'000 / 8 * 7 + 500) << "by an eighth less";
  for (uint64_t pass = 4; pass < 200; ++pass) released(pass * 1'000'000, false);
  EXPECT_EQ(released(1'000'000'000, false), kBound) << "and forgotten";
}

TEST(Pacer, CountsHowOftenTheLinkHadNothingToSend) {
  Pacer pacer(1'000'000'000, 10'000);
  pacer.sent(1'000, 5'000);
  EXPECT_EQ(pacer.pauses(), 1U);
  pacer.sent(1'000, 5'500);  // the first takes until 6'000
  pacer.sent(1'000, 7'000);
  EXPECT_EQ(pacer.pauses(), 1U);
  pacer.sent(1'000, 8'001);
  EXPECT_EQ(pacer.pauses(), 2U);
  Pacer unknown(0, 10'000);
  unknown.sent(1'000, 5'000);
  EXPECT_EQ(unknown.pauses(), 0U);
}

TEST(Pacer, WhatIsAheadOfTheLinkStaysAheadWhenItsRateChanges) {
  Pacer pacer(0, 10'000);
  pacer.sent(1'000'000, 500);
  EXPECT_TRUE(pacer.allows(500));
  pacer.set_rate(1'000'000'000, 1'000);  // a byte per nanosecond; nothing is known to be ahead
  EXPECT_TRUE(pacer.allows(1'000));
  pacer.sent(12'000, 1'000);
  EXPECT_FALSE(pacer.allows(2'000));
  EXPECT_EQ(pacer.ready_at_ns(), 3'001U);
  pacer.set_rate(100'000'000, 2'000);  // 11,000 bytes are ahead, and take 110 us now
  EXPECT_FALSE(pacer.allows(11'000));
  EXPECT_EQ(pacer.ready_at_ns(), 12'001U);
  pacer.set_rate(0, 3'000);
  EXPECT_TRUE(pacer.allows(3'000));
  EXPECT_EQ(pacer.ready_at_ns(), 0U);
}

TEST(Pacer, CountsAFrameInItsAddressFamily) {
  const uint32_t v4 = link_overhead_bytes(*IpAddress::parse("10.0.0.1"));
  EXPECT_EQ(v4, 66U);
  EXPECT_EQ(link_overhead_bytes(*IpAddress::parse("fd00::1")), v4 + 20);
}

}  // namespace
}  // namespace mercury
