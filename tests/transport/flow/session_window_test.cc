// What a session may have in flight: congestion marks, the peer's grants, pacing below one frame.
#include <gtest/gtest.h>

#include "tests/transport/flow/pipe.h"

namespace mercury::test {
namespace {

constexpr uint32_t kChunkFrame = sizeof(wire::DatagramHeader) + kChunkPayload;

uint16_t units(uint64_t bytes) { return static_cast<uint16_t>(bytes / wire::kGrantUnitBytes); }

TEST(SessionWindow, AGrantBoundsWhatIsInFlight) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[1].session->set_grant(units(6 * 1024), units(3 * 1024));
  net.run_for(kSecond);
  net.host[0].queue_chunks(500);
  uint64_t most = 0;
  ASSERT_TRUE(net.run(
      [&] {
        most = std::max(most, net.host[0].session->bytes_in_flight());
        return net.host[0].all_acked();
      },
      10 * kSecond));
  EXPECT_LE(most, 17 * 1024U) << "the first window, until the grant has come";
  net.run_for(kSecond);
  net.host[0].queue_chunks(500);
  most = 0;
  ASSERT_TRUE(net.run(
      [&] {
        most = std::max(most, net.host[0].session->bytes_in_flight());
        return net.host[0].all_acked();
      },
      10 * kSecond));
  EXPECT_LE(most, 6 * 1024U);
  EXPECT_EQ(net.host[0].session->window_bytes(), units(6 * 1024) * wire::kGrantUnitBytes);
}

TEST(SessionWindow, AfterAPauseTheIdleGrantCountsUntilTheNextAcknowledgement) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[1].session->set_grant(units(64 * 1024), units(2560));
  net.host[0].queue_chunks(200);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 10 * kSecond));
  Session& session = *net.host[0].session;
  EXPECT_GT(session.window_bytes(), 2560U);
  net.run_for(100'000'000);
  EXPECT_TRUE(session.can_send(kChunkFrame, net.now_ns));
  EXPECT_EQ(session.window_bytes(), 2560U);
  net.host[0].queue_chunks(1);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, kSecond));
  EXPECT_GT(session.window_bytes(), 2560U);
}

// It was on the way for longer than those that say more.
TEST(SessionWindow, AnAcknowledgementThatWasOvertakenBringsBackNoGrant) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  Bytes late;
  net.tap = [&](int from, std::span<const std::byte> frame) {
    const bool ack = from == 1 && frame[3] == static_cast<std::byte>(wire::FrameType::kAck);
    net.weather.down = ack && late.empty();
    if (net.weather.down) late.assign(frame.begin(), frame.end());
  };
  net.host[1].session->set_grant(units(64 * 1024), units(64 * 1024));
  net.host[0].queue_chunks(8);
  ASSERT_TRUE(net.run([&] { return !late.empty(); }, kSecond));
  net.host[1].session->set_grant(units(4096), units(4096));
  net.host[0].queue_chunks(8);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, kSecond));
  ASSERT_EQ(net.host[0].session->window_bytes(), 4096U);
  net.host[0].receive(late);
  EXPECT_EQ(net.host[0].session->window_bytes(), 4096U);
}

// A grant of a quarter of a frame is a frame in four round trips; however many acknowledgements are
// lost, frames go on.
TEST(SessionWindow, AGrantBelowOneFrameIsARateAndNothingStalls) {
  for (const double loss : {0.0, 0.3}) {
    Net net(3);
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    net.host[1].session->set_grant(units(256), units(256));
    net.host[0].queue_chunks(20);
    ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 10 * kSecond));
    net.weather.loss = loss;
    const uint64_t began_ns = net.now_ns;
    net.host[0].queue_chunks(100);
    ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 60 * kSecond));
    EXPECT_GE(net.now_ns - began_ns, 99 * 4 * 2 * net.weather.delay_ns) << loss;
    if (loss == 0) {
      EXPECT_LE(net.now_ns - began_ns, 110 * 5 * 2 * net.weather.delay_ns);
      EXPECT_EQ(net.host[0].counters.get(Counter::kProbeTimeouts), 0U);
    }
  }
}

// Whatever the round trip was when it was measured: a queue of 5 ms that is gone, and none.
TEST(SessionWindow, ThePaceOfAnEqualShareDoesNotFollowRoundTrips) {
  for (const uint64_t delay_ns : {2'500'000, 5'000}) {
    Net net(3);
    net.weather.delay_ns = delay_ns;
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    net.host[1].session->set_grant(units(512), units(512));  // a frame of 1,064 bytes in 208 us
    net.host[0].queue_chunks(60);
    ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 10 * kSecond));
    net.weather.delay_ns = 5'000;
    const uint64_t began_ns = net.now_ns;
    net.host[0].queue_chunks(100);
    ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 10 * kSecond));
    EXPECT_GE(net.now_ns - began_ns, 99U * 200'000) << delay_ns;
    EXPECT_LE(net.now_ns - began_ns, 102U * 270'000) << delay_ns;
  }
}

// Many that begin at once with less than a frame each do not arrive at once.
TEST(SessionWindow, ABurstBelowOneFrameBeginsAtARandomTime) {
  std::set<uint64_t> began;
  for (uint32_t number = 11; number < 27; ++number) {
    SentPool pool;
    Net net(1);
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    Session& session = *net.host[0].session;
    net.host[1].session->set_grant(units(128), units(128));
    net.host[0].queue_chunks(number);  // other packet numbers draw other times
    ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 10 * kSecond));
    net.run_for(kSecond);
    const uint64_t asked_ns = net.now_ns;
    EXPECT_FALSE(session.can_send(kChunkFrame, net.now_ns));
    const uint64_t deadline_ns = session.next_deadline_ns();
    EXPECT_LE(deadline_ns, asked_ns + 9 * 2 * net.weather.delay_ns);
    began.insert(deadline_ns - asked_ns);
    net.now_ns = deadline_ns;
    session.on_timer(net.now_ns);
    EXPECT_TRUE(session.can_send(kChunkFrame, net.now_ns));
  }
  EXPECT_GE(began.size(), 12U);
}

TEST(SessionWindow, MarksComeBackAndShrinkTheWindow) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(2000);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 10 * kSecond));
  const uint64_t before = net.host[0].session->window_bytes();
  net.mark = true;
  net.host[0].queue_chunks(10'000);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 60 * kSecond));
  EXPECT_LT(net.host[0].session->window_bytes(), before / 10);
  EXPECT_EQ(net.host[0].lost, 0);
}

TEST(SessionWindow, AFixedWindowObeysNothingButGrants) {
  SessionConfig config;
  config.window = WindowKind::kFixed;
  config.window_bytes = 50'000;
  Net net(1, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.mark = true;
  net.weather.loss = 0.1;
  net.host[0].queue_chunks(2000);
  ASSERT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 60 * kSecond));
  EXPECT_EQ(net.host[0].session->window_bytes(), 50'000U);
}

}  // namespace
}  // namespace mercury::test
