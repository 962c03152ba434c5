// What an engine releases to a link: never faster than the link, at any rate, for any length of
// time.
#include "transport/engine/pacer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mercury {
namespace {

constexpr uint32_t kFullFrame = 1538;

TEST(Pacer, ReleasesNeitherMoreNorLessThanTheLinkCarries) {
  // Bytes per second at which a frame takes a whole number of nanoseconds, and at which it does
  // not.
  for (const uint64_t rate :
       {125'000'000ULL, 1'250'000'000ULL, 12'500'000'000ULL, 12'345'678'901ULL}) {
    constexpr uint64_t kBound = 64 * 1024;
    Pacer pacer(rate, kBound);
    uint64_t now_ns = 1'000;
    uint64_t sent_bytes = 0;
    uint64_t most_ahead_bytes = 0;
    for (int frame = 0; frame < 1'000'000; ++frame) {
      if (!pacer.allows(now_ns)) now_ns = pacer.ready_at_ns();
      ASSERT_TRUE(pacer.allows(now_ns)) << rate;
      pacer.sent(kFullFrame, now_ns);
      sent_bytes += kFullFrame;
      const auto carried = static_cast<uint64_t>(static_cast<double>(now_ns - 1'000) * 1e-9 *
                                                 static_cast<double>(rate));
      ASSERT_GT(sent_bytes, carried) << "the link has run dry at " << rate;
      most_ahead_bytes = std::max(most_ahead_bytes, sent_bytes - carried);
    }
    EXPECT_LE(most_ahead_bytes, kBound + 2 * kFullFrame) << rate;
  }
}

// An eighth of 400 Gb/s with a bound of two frames, and other links and
// passes: what is released at the begin of each keeps the link busy until the next one.
TEST(Pacer, APassReleasesWhatTheLinkCarriesUntilTheNextOne) {
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
      EXPECT_LE(ahead, static_cast<double>(c.bound + kFullFrame) + 1) << "found by pass " << pass;
      pacer.begin_pass(now_ns, pass > 0);
      for (; pacer.allows(now_ns); sent += kFullFrame) pacer.sent(kFullFrame, now_ns);
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

// A thread that sleeps until there is something to do, and comes late; where a link carries the
// bound too fast for that, it does not sleep.
TEST(Pacer, WhatGathersGoesInBatchesAndTheLinkStaysBusy) {
  constexpr uint64_t kBound = 64 * 1024;
  struct Case {
    uint64_t rate;
    uint64_t late_ns;
    uint64_t least_frames;  // of a batch, but for the first
  };
  for (const Case& c : {Case{2'500'000, 60'000, 1}, Case{62'500'000, 60'000, 20},
                        Case{62'500'000, 300'000, 20}, Case{125'000'000, 60'000, 20},
                        Case{125'000'000, 200'000, 20}, Case{312'500'000, 60'000, 20},
                        Case{625'000'000, 60'000, 1}, Case{1'250'000'000, 10'000, 1}}) {
    Pacer pacer(c.rate, kBound, nullptr, true);
    uint64_t now_ns = 1'000, sent_bytes = 0;
    for (uint64_t pass = 0; pass < 10'000; ++pass) {
      const auto carried = static_cast<uint64_t>(static_cast<double>(now_ns - 1'000) * 1e-9 *
                                                 static_cast<double>(c.rate));
      ASSERT_GE(sent_bytes + (pass == 0), carried) << "the link has run dry at " << c.rate;
      pacer.begin_pass(now_ns, false);
      uint64_t frames = 0;
      for (; pacer.allows(now_ns); ++frames) pacer.sent(kFullFrame, now_ns);
      ASSERT_GE(frames, c.least_frames) << "pass " << pass << " at " << c.rate;
      sent_bytes += frames * kFullFrame;
      ASSERT_LE(sent_bytes - carried, kBound + kFullFrame) << "pass " << pass << " at " << c.rate;
      const uint64_t ready_ns = pacer.ready_at_ns();
      pacer.begin_pass(ready_ns - 3, false);  // rounded
      ASSERT_FALSE(pacer.allows(ready_ns - 3)) << "pass " << pass << " at " << c.rate;
      now_ns = ready_ns + c.late_ns;
    }
  }
}

// When a frame that is more urgent than all others, and comes at `comes_ns`, begins to leave by a
// full link of `rate`: the engine's thread comes `late_ns` after it may send again.
uint64_t leaves_at_ns(bool gathers, uint64_t rate, uint64_t comes_ns, uint64_t late_ns) {
  Pacer pacer(rate, 64 * 1024, nullptr, gathers);
  uint64_t now_ns = 1'000, free_at_ns = now_ns;
  while (true) {
    pacer.begin_pass(now_ns, false);
    while (pacer.allows(now_ns)) {
      if (now_ns >= comes_ns) return std::max(now_ns, free_at_ns);
      pacer.sent(kFullFrame, now_ns);
      free_at_ns = std::max(now_ns, free_at_ns) + uint64_t{kFullFrame} * 1'000'000'000 / rate;
    }
    now_ns = std::max(now_ns, pacer.ready_at_ns()) + late_ns;
  }
}

struct Waits {
  uint64_t longest_ns = 0, sum_ns = 0;
};
Waits waits_of_what_is_urgent(bool gathers, uint64_t rate, uint64_t late_ns) {
  Waits waits;
  for (uint64_t comes_ns = 3'000'000; comes_ns < 6'000'000; comes_ns += 7'919) {
    const uint64_t wait_ns = leaves_at_ns(gathers, rate, comes_ns, late_ns) - comes_ns;
    waits.longest_ns = std::max(waits.longest_ns, wait_ns);
    waits.sum_ns += wait_ns;
  }
  return waits;
}

// What waits for frames to gather waits no longer than it would behind them on the link.
TEST(Pacer, WhatIsUrgentLeavesNoLaterWhereFramesGather) {
  for (const uint64_t rate : {2'500'000U, 62'500'000U, 125'000'000U, 312'500'000U, 625'000'000U}) {
    const uint64_t frame_ns = uint64_t{kFullFrame} * 1'000'000'000 / rate;
    for (const uint64_t late_ns : {0U, 20'000U, 60'000U}) {
      const Waits gathered = waits_of_what_is_urgent(true, rate, late_ns);
      const Waits at_once = waits_of_what_is_urgent(false, rate, late_ns);
      const auto of = [&] {
        return testing::Message() << rate << " B/s, " << late_ns << " ns late";
      };
      EXPECT_LE(gathered.longest_ns, at_once.longest_ns + frame_ns) << of();
      EXPECT_LE(gathered.sum_ns, at_once.sum_ns) << of();
    }
  }
}

// Frames that come one by one, as grants do, to a link that is busy: what each waits is bounded,
// and an idle link has the first at once.
TEST(Pacer, WhatGathersWaitsNoLongerThanTheLinkIsBusy) {
  constexpr uint32_t kFrame = 1'000;
  Pacer pacer(100'000'000, 64 * 1024, nullptr, true);  // 10 us for a frame
  const auto sends = [&](uint64_t now_ns) {
    pacer.begin_pass(now_ns, false);
    const bool allowed = pacer.allows(now_ns);
    if (allowed) pacer.sent(kFrame, now_ns);
    return allowed;
  };
  EXPECT_TRUE(sends(1'000'000)) << "the link is idle";
  for (uint64_t now_ns = 1'000'500; now_ns <= 1'005'000; now_ns += 500) {
    EXPECT_TRUE(sends(now_ns)) << "it may be, before a thread that sleeps comes back";
  }
  EXPECT_FALSE(sends(1'005'500)) << "it has something for 104.5 us";
  EXPECT_EQ(pacer.ready_at_ns(), 1'010'000U);
  EXPECT_TRUE(sends(1'010'000));
  for (int frame = 0; frame < 100; ++frame) pacer.sent(kFrame, 1'010'000);
  EXPECT_EQ(pacer.ready_at_ns(), 1'510'000U) << "500 us, though the link has something for 1,100";
  EXPECT_FALSE(sends(1'509'999));
  EXPECT_TRUE(sends(1'510'000));
}

// For a while after a datagram that overtakes others, or is another job's, or bytes of streams.
TEST(Pacer, WhereSomethingIsInHasteFramesGatherForLess) {
  constexpr uint64_t kWhile = 10'000'000'000;
  Pacer pacer(100'000'000, 200'000, nullptr, true);
  const auto gathers_for = [&](uint64_t now_ns) {
    pacer.begin_pass(now_ns, false);
    for (int frame = 0; frame < 110; ++frame) pacer.sent(1'000, now_ns);
    return pacer.ready_at_ns() - now_ns;
  };
  pacer.note_datagram(7, JobSlot(0), 1'000'000);
  EXPECT_EQ(gathers_for(1'000'000), 500'000U);
  pacer.note_datagram(7, JobSlot(0), 2'000'000);
  pacer.note_datagram(9, JobSlot(0), 2'000'000);
  EXPECT_EQ(gathers_for(2'000'000), 500'000U) << "what is less urgent waits for its turn";
  pacer.note_datagram(8, JobSlot(0), 3'000'000);
  EXPECT_EQ(gathers_for(3'000'000), 100'000U) << "overtaken";
  EXPECT_EQ(gathers_for(3'000'000 + kWhile - 1), 100'000U);
  EXPECT_EQ(gathers_for(4'000'000 + kWhile), 500'000U);
  pacer.note_datagram(8, JobSlot(1), 2 * kWhile);
  EXPECT_EQ(gathers_for(2 * kWhile), 100'000U) << "another job";
  EXPECT_EQ(gathers_for(4 * kWhile), 500'000U);
  pacer.note_haste(5 * kWhile);
  EXPECT_EQ(gathers_for(5 * kWhile), 100'000U);
}

TEST(Pacer, OnALinkThatEnginesShareFramesGatherForLess) {
  const auto link = std::make_shared<SharedLink>();
  Pacer pacer(100'000'000, 200'000, link, true);
  Pacer other(100'000'000, 200'000, link, true);
  pacer.begin_pass(1'000'000, false);
  for (int frame = 0; frame < 110; ++frame) pacer.sent(1'000, 1'000'000);
  EXPECT_EQ(pacer.ready_at_ns(), 1'100'000U) << "the link has something for 1,100 us";
}

// A pass receives before it sends: what gathers in one leaves late in the next.
TEST(Pacer, LongPassesThatSendAtTheirEndKeepTheLinkBusy) {
  constexpr uint64_t kPassNs = 80'000, kReceivesNs = 60'000;
  Pacer pacer(1'000'000'000, 64 * 1024, nullptr, true);  // 66 us for the bound
  for (uint64_t pass = 0; pass < 1'000; ++pass) {
    const uint64_t begins_ns = 1'000'000 + pass * kPassNs;
    pacer.begin_pass(begins_ns, pass > 0);
    const uint64_t sends_ns = begins_ns + kReceivesNs;
    while (pacer.allows(sends_ns)) pacer.sent(1'538, sends_ns);
  }
  EXPECT_EQ(pacer.pauses(), 2U)
      << "the link is idle at first, and until a pass is known to be long";
}

// An engine sends acknowledgements at once, and more often than what gathers goes.
TEST(Pacer, WhatLeavesAtOncePutsOffWhatGathersByHalfOfItsTimeAtMost) {
  Pacer pacer(62'500'000, 64 * 1024, nullptr, true);
  pacer.begin_pass(1'000'000, false);
  while (pacer.allows(1'000'000)) pacer.sent(1'538, 1'000'000);
  for (uint64_t now_ns = 1'050'000; now_ns < 1'500'000; now_ns += 10'000) {
    pacer.begin_pass(now_ns, false);
    EXPECT_FALSE(pacer.allows(now_ns));
    pacer.sent(100, now_ns);
  }
  EXPECT_LT(pacer.ready_at_ns(), 1'520'000U) << "the link has carried the bound's excess by then";
}

TEST(Pacer, WhileEnginesWaitForTheSameLinkNothingGathers) {
  const auto link = std::make_shared<SharedLink>();
  Pacer pacer(1'000'000'000, 400'000, link, true);
  Pacer other(1'000'000'000, 400'000, link, true);
  pacer.begin_pass(1'001'000, false);
  for (int frame = 0; frame < 240; ++frame) pacer.sent(1'000, 1'001'000);
  pacer.begin_pass(1'002'000, false);
  EXPECT_FALSE(pacer.allows(1'002'000)) << "what it has gathers";
  other.begin_pass(1'002'000, false);
  EXPECT_TRUE(other.allows(1'002'000)) << "that has sent nothing, and holds nothing back";
  for (; other.allows(1'002'000);) other.sent(1'000, 1'002'000);
  other.note_waiting();
  pacer.begin_pass(1'005'000, false);
  EXPECT_TRUE(pacer.allows(1'005'000)) << "the other one would have what both have waited for";
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
