// Paths that carry some frames and not others: the session must not wait for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/transport/flow/pipe.h"
#include "transport/flow/delivery_watch.h"
#include "transport/flow/mtu_probe.h"
#include "transport/flow/sent_history.h"

namespace mercury::test {
namespace {

// Of which no acknowledgement will come.
void lose(DeliveryWatch& watch, uint32_t bytes, uint64_t sent_ns, uint64_t now_ns) {
  watch.on_lost(0, bytes, sent_ns, now_ns);
}

TEST(DeliveryWatch, IsHopelessOnlyAfterATimeOutOfNothingButLosses) {
  DeliveryWatch watch(kSecond);
  for (uint64_t ms = 0; ms < 1000; ms += 100) {
    lose(watch, 1000, ms * 1'000'000, ms * 1'000'000);
    EXPECT_FALSE(watch.hopeless());
  }
  watch.on_delivered(999);  // a smaller frame proves nothing
  lose(watch, 1000, kSecond, kSecond);
  EXPECT_TRUE(watch.hopeless());
  watch.on_delivered(1000);
  EXPECT_FALSE(watch.hopeless());
}

// What is sent again at once may be noticed much later.
TEST(DeliveryWatch, LossesFarApartDoNotAddUp) {
  DeliveryWatch watch(kSecond);
  for (uint64_t i = 0; i < 20; ++i) {
    lose(watch, 1000, i * 600'000'000, i * 600'000'000);
    EXPECT_FALSE(watch.hopeless());
    EXPECT_FALSE(watch.doubtful());
  }
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(watch.hopeless());
    lose(watch, 1000, (40 + i) * 600'000'000, (41 + i) * 600'000'000);
    EXPECT_EQ(watch.doubtful(), i > 0);
  }
  EXPECT_TRUE(watch.hopeless());
}

TEST(DeliveryWatch, LossesOfSmallerFramesDoNotProlongThoseOfLargeOnes) {
  DeliveryWatch watch(kSecond);
  lose(watch, 1400, 0, 0);  // it was not needed any more: no other follows
  for (uint64_t ms = 100; ms < 1300; ms += 100) {
    lose(watch, 100, ms * 1'000'000, ms * 1'000'000);
    watch.on_delivered(100);
    EXPECT_FALSE(watch.hopeless());
  }
}

// A service's frames are not all of one size: two of its tensors may be cut into others.
TEST(DeliveryWatch, LossesOfSeveralSizesAddUp) {
  DeliveryWatch watch(kSecond);
  for (uint64_t ms = 0; ms <= 1000; ms += 20) {
    EXPECT_FALSE(watch.hopeless());
    watch.on_delivered(32);
    lose(watch, ms % 700 == 100 ? 8888 : 8880, ms * 1'000'000, ms * 1'000'000);
  }
  EXPECT_TRUE(watch.hopeless());
  EXPECT_EQ(watch.bytes(), 8888U);
}

// Of several sizes the smallest is sent most, as its chunks are the most urgent: others are tried
// again now and then, and say no less of it.
TEST(DeliveryWatch, LargerFramesThatAreLostNowAndThenHideNoneOfTheSmaller) {
  for (const uint64_t larger_ms : {20, 100, 180, 400}) {
    SCOPED_TRACE(larger_ms);
    DeliveryWatch watch(kSecond);
    uint64_t doubtful_ms = 0;
    for (uint64_t ms = 0; ms <= 1000; ms += 20) {
      EXPECT_FALSE(watch.hopeless());
      watch.on_delivered(32);
      lose(watch, 1668, ms * 1'000'000, ms * 1'000'000);
      if (ms % larger_ms == 0) lose(watch, 3400, ms * 1'000'000, ms * 1'000'000);
      if (doubtful_ms == 0 && watch.doubtful()) doubtful_ms = ms;
    }
    EXPECT_TRUE(watch.hopeless());
    EXPECT_LE(doubtful_ms, 80U);
    watch.on_delivered(1668);
    EXPECT_EQ(watch.hopeless(), larger_ms <= 100) << "of the larger ones alone";
  }
}

// A frame of a size that is seldom sent was lost by chance long ago.
TEST(DeliveryWatch, WhatEndedLongAgoIsNotHeldAgainstWhatIsLostToday) {
  for (const uint64_t hours : {1U, 24U, 26U * 24, 40U * 24, 49U * 24, 51U * 24, 75U * 24}) {
    SCOPED_TRACE(std::to_string(hours) + " hours");
    DeliveryWatch watch(kSecond);
    for (uint64_t ms = 0; ms < 1000; ms += 100) {
      lose(watch, 8880, ms * 1'000'000, ms * 1'000'000);
    }
    EXPECT_TRUE(watch.doubtful());
    const uint64_t later_ns = hours * 3600 * kSecond;
    lose(watch, 600, later_ns, later_ns);
    EXPECT_FALSE(watch.doubtful());
    EXPECT_EQ(watch.bytes(), 600U);
    lose(watch, 8880, later_ns, later_ns);
    EXPECT_FALSE(watch.doubtful());
    EXPECT_FALSE(watch.hopeless());
  }
}

// An acknowledgement names a range of all that came since the session began, or as many as fit.
TEST(DeliveryWatch, ALossIsNoneOfThoseThatArrivedFarBelow) {
  constexpr uint64_t kMany = uint64_t{1} << 33;
  const NumberRange below[] = {{kMany - UINT32_MAX, kMany - 1}};
  const NumberRange with[] = {{kMany + 1, kMany + 1}, {kMany - UINT32_MAX, kMany - 1}};
  const NumberRange among[] = {{kMany - UINT32_MAX, kMany + 2}};
  DeliveryWatch watch(kSecond);
  for (uint64_t ms = 0; ms <= 1000; ms += 100) {
    watch.on_lost(kMany + ms % 3 * 100, 8880, ms * 1'000'000, ms * 1'000'000);
    watch.on_ack(below, ms * 1'000'000);
    watch.on_ack(with, ms * 1'000'000);
  }
  EXPECT_TRUE(watch.hopeless());
  watch.on_ack(among, kSecond);
  EXPECT_FALSE(watch.hopeless());
}

// A frame of that size is not sent again: nothing is looked for at each acknowledgement for ever.
TEST(DeliveryWatch, WhatEndedIsForgotten) {
  DeliveryWatch watch(kSecond);
  watch.on_lost(7, 8880, 0, 0);
  const NumberRange others[] = {{9, 9}};
  watch.on_ack(others, 8 * kSecond);
  EXPECT_EQ(watch.bytes(), 8880U);
  watch.on_ack(others, 9 * kSecond);
  EXPECT_EQ(watch.bytes(), 0U);
}

// What is carried is lost now and then, too.
TEST(DeliveryWatch, SmallerFramesThatMostlyArriveHideNoLargerOnesThatDoNot) {
  DeliveryWatch watch(kSecond);
  for (uint64_t ms = 0; ms <= 1000; ms += 20) {
    lose(watch, 8880, ms * 1'000'000, ms * 1'000'000);
    const uint32_t small = 100 + static_cast<uint32_t>(ms);
    lose(watch, small, ms * 1'000'000, ms * 1'000'000);  // before any as large has arrived
    EXPECT_EQ(watch.hopeless(), ms == 1000);
    watch.on_delivered(small);
  }
}

// The network reorders by more than a loss is waited for, and nothing is lost.
TEST(DeliveryWatch, WhatArrivesLateHasArrived) {
  DeliveryWatch watch(kSecond);
  const auto lose_and_hear_later = [&watch](uint64_t late) {
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t now_ns = (i + 1) * 5'000'000;
      watch.on_lost(2 * i, 8944, now_ns - 5'000'000, now_ns);
      watch.on_delivered(32);
      if (i < late) continue;
      const uint64_t arrived = 2 * (i - late);
      const NumberRange ranges[] = {{arrived, arrived}};
      watch.on_ack(ranges, now_ns);
      if (watch.hopeless()) return;
    }
  };
  lose_and_hear_later(8);
  EXPECT_FALSE(watch.hopeless());
  lose_and_hear_later(15);
  EXPECT_FALSE(watch.hopeless());
  lose_and_hear_later(100);
  EXPECT_TRUE(watch.hopeless()) << "longer than it can be of use";
  watch.forget();
  const NumberRange all[] = {{0, 2'000}};
  lose(watch, 100, 6 * kSecond, 6 * kSecond);
  watch.on_ack(all, 6 * kSecond);
  EXPECT_FALSE(watch.doubtful());
}

// In time for some tries in parts, however long a loss goes unnoticed.
TEST(DeliveryWatch, DoubtsThePathLongBeforeItIsHopeless) {
  for (const uint64_t apart_ms : {20, 100, 200, 300, 400, 500, 900}) {
    SCOPED_TRACE(apart_ms);
    DeliveryWatch watch(kSecond);
    uint64_t doubtful_ms = 0;
    uint64_t ms = apart_ms;
    for (; !watch.hopeless(); ms += apart_ms) {
      // Each is sent as the last one is noticed.
      lose(watch, 1000, (ms - apart_ms) * 1'000'000, ms * 1'000'000);
      if (doubtful_ms == 0 && watch.doubtful()) doubtful_ms = ms;
    }
    EXPECT_LE(doubtful_ms, apart_ms + std::max<uint64_t>(500, apart_ms));
    EXPECT_GT(doubtful_ms, apart_ms) << "one loss is nothing";
  }
}

// The path's MTU shrinks below the size of the chunks: acknowledgements and keepalives still pass.
TEST(SessionDelivery, ABlackHoleEndsTheSessionWithinTheTimeOut) {
  SessionConfig config;
  config.peer_timeout_ns = 2 * kSecond;
  Net net(5, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(100);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, kSecond));
  net.weather.largest_frame = 600;
  net.host[0].queue_chunks(3);
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, 3 * kSecond));
  EXPECT_EQ(net.host[0].closed_code, Errc::kPeerLost);
  EXPECT_NE(net.host[0].closed_text.find("MTU"), std::string::npos) << net.host[0].closed_text;
  ASSERT_TRUE(net.run([&] { return net.host[1].closed == 1; }, kSecond));
}

TEST(SessionDelivery, ABlackHoleThatEndsInTimeCostsNothingButTime) {
  SessionConfig config;
  config.peer_timeout_ns = 2 * kSecond;
  Net net(6, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.weather.largest_frame = 600;
  net.host[0].queue_chunks(50);
  net.run_for(kSecond);
  net.weather.largest_frame = 65535;
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, kSecond));
  net.run_for(5 * kSecond);
  EXPECT_EQ(net.host[0].closed, 0);
}

TEST(SessionDelivery, ControlMessagesThatNeverArriveEndTheSessionToo) {
  SessionConfig config;
  config.peer_timeout_ns = 2 * kSecond;
  Net net(7, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  net.weather.largest_frame = 600;
  ASSERT_TRUE(net.host[0].session->send_control(Bytes(1100)).ok());
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, 4 * kSecond));
  EXPECT_EQ(net.host[0].closed_code, Errc::kPeerLost);
}

TEST(SessionDelivery, HeavyLossAloneDoesNotEndIt) {
  SessionConfig config;
  config.peer_timeout_ns = 2 * kSecond;
  Net net(8, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.weather.loss = 0.4;
  net.host[0].queue_chunks(3000);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 600 * kSecond));
  EXPECT_EQ(net.host[0].closed, 0);
}

// Probes of what it carries now were lost three times each, as by chance.
TEST(SessionDelivery, APathThatWasFoundNarrowIsProbedAgain) {
  SessionConfig config;
  config.peer_timeout_ns = 2 * kSecond;
  config.max_udp_payload = 8900;
  for (const uint32_t later : {1400U, 4000U, 8900U}) {
    SCOPED_TRACE(later);
    Net net(9, config, config);
    net.weather.largest_frame = 1300;
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    net.run_for(kSecond);
    const Session& session = *net.host[0].session;
    ASSERT_LE(session.path_payload(), 1300);
    net.weather.largest_frame = later;
    net.run_for(2 * kSecond);  // nothing is sent but signs of life
    EXPECT_LE(session.path_payload(), later);
    EXPECT_GT(session.path_payload() + kProbeGranularityBytes, later);
    EXPECT_EQ(net.host[0].path_reports, 1) << "what a job was told stays";
    net.host[0].queue_chunks(100);
    ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, kSecond));
  }
}

// The release that brought parts took none that are sealed.
TEST(SessionDelivery, PartsAreToldOfWhereThePeerSurelyTakesThem) {
  const uint32_t parts = wire::kFeatureParts, seals = wire::kFeatureSeals;
  const uint32_t confirmation = wire::kFeatureConfirmation;
  SessionConfig config;
  config.max_udp_payload = 8900;
  const auto told = [&](uint32_t of_both, uint32_t of_one) {
    Net net(11, config, config);
    net.weather.largest_frame = 1400;
    net.features |= of_both | of_one;
    net.host[1].answer.features |= of_both;
    net.connect();
    EXPECT_TRUE(net.run([&] { return net.host[0].path_reports == 1; }, kSecond));
    EXPECT_LE(net.host[0].path, 1400);
    return net.host[0].path_in_parts > net.host[0].path;
  };
  EXPECT_TRUE(told(parts, 0));
  EXPECT_TRUE(told(parts | seals | confirmation, 0));
  EXPECT_FALSE(told(parts | seals, confirmation)) << "the peer may be of that release";
  EXPECT_FALSE(told(seals | confirmation, parts));
}

// One that stays as it is costs little: three frames of each size that is tried, every 64 time-outs
// at last.
TEST(SessionDelivery, APathThatStaysNarrowIsProbedLessAndLessOften) {
  SessionConfig config;
  config.peer_timeout_ns = 10 * kSecond;
  config.max_udp_payload = 8900;
  Net net(10, config, config);
  net.weather.largest_frame = 1400;
  uint64_t searches = 0;
  uint64_t large = 0;
  net.tap = [&](int from, std::span<const std::byte> frame) {
    searches += from == 0 && frame.size() == 8900;
    large += from == 0 && frame.size() > 1400;
  };
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  constexpr uint64_t kHour = 3600 * kSecond;
  net.run_for(kHour);
  const uint64_t waits = 6 + (kHour / kSecond - 630) / 640;  // 10 to 320 s, then 640
  EXPECT_EQ(searches, 3 * (1 + waits));
  EXPECT_LE(large, searches * 11) << "the largest, and ten halves between it and 1,232";
  EXPECT_EQ(net.host[0].closed, 0);
}

// Others' packets in flight, which leave a session nothing but what is in reserve for it.
class Neighbours {
 public:
  explicit Neighbours(SentPool& pool) {
    while (pool.may_grow(SentPart())) {
      others_.push_back(std::make_unique<SentHistory>(SentSource{pool}));
      for (uint64_t number = 0; others_.back()->has_room(SentKind::kData); ++number) {
        EXPECT_TRUE(others_.back()->append(SentKind::kData, number, {}, 1, 1));
      }
    }
  }

 private:
  std::vector<std::unique_ptr<SentHistory>> others_;
};

// Each PING keeps its record until something tells what became of it. However long the path is
// down, one goes out when it is back.
TEST(SessionDelivery, APathThatComesBackIsFoundSoonWhereNoRecordsAreLeft) {
  for (const bool crowded : {false, true}) {
    for (const uint64_t blackout_ms :
         {100, 1000, 2600, 4000, 6600, 10'000, 25'000, 38'000, 55'000}) {
      SCOPED_TRACE(std::to_string(blackout_ms) + (crowded ? " ms, crowded" : " ms"));
      SessionConfig config;
      config.peer_timeout_ns = 60 * kSecond;
      config.window_bytes = 16 * 1024;  // eight blocks at most
      Net net(11, config, config);
      net.connect();
      ASSERT_TRUE(net.run_until_open());
      net.run_for(kSecond);
      std::optional<Neighbours> others;
      if (crowded) others.emplace(net.host[0].pool);
      net.host[0].queue_chunks(200);
      net.run_for(200'000);
      net.weather.down = true;
      net.run_for(blackout_ms * 1'000'000);
      net.weather.down = false;
      ASSERT_EQ(net.host[0].closed, 0);
      ASSERT_FALSE(net.host[0].all_acked());
      ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 2 * kSecond));
      EXPECT_EQ(net.host[0].acked_twice, 0);
    }
  }
}

// Its answers are lost, but a peer that says HELLO again is alive.
TEST(SessionDelivery, AHelloThatIsSaidAgainIsASignOfLife) {
  SessionConfig config;
  config.peer_timeout_ns = kSecond;
  Net net(9, config, config);
  net.tap = [&net](int from, std::span<const std::byte>) { net.weather.loss = from == 1 ? 1 : 0; };
  net.connect();
  net.run_for(4 * kSecond);
  EXPECT_EQ(net.host[1].closed, 0);
  net.tap = nullptr;
  net.weather.loss = 0;
  EXPECT_TRUE(net.run_until_open(kSecond));
}

}  // namespace
}  // namespace mercury::test
