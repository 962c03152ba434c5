// What sessions promise about chunks and control messages, whatever the network does.
#include "tests/seeds.h"
#include "tests/transport/flow/pipe.h"

namespace mercury::test {
namespace {

// Every chunk of each host: acknowledged once, arrived at least once, nothing left over.
void expect_complete(Net& net) {
  for (size_t i = 0; i < 2; ++i) {
    Host& host = net.host[i];
    EXPECT_EQ(host.acked.size(), host.next_chunk);
    EXPECT_EQ(host.acked_twice, 0);
    EXPECT_TRUE(host.in_flight.empty());
    EXPECT_EQ(net.host[1 - i].delivered.size(), host.next_chunk);
    EXPECT_EQ(host.closed, 0) << host.closed_text;
  }
}

void expect_nothing_held(Net& net) {
  ASSERT_TRUE(net.run(
      [&] {
        return net.host[0].session->bytes_in_flight() + net.host[1].session->bytes_in_flight() == 0;
      },
      5 * kSecond));
  for (Host& host : net.host) EXPECT_EQ(host.pool.blocks_in_use(), 0U);
}

bool all_acked(const Net& net) { return net.host[0].all_acked() && net.host[1].all_acked(); }

TEST(SessionData, EveryChunkIsAcknowledgedOrReportedLostUntilItIs) {
  for_each_seed(1000, [](uint64_t number) {
    const auto seed = static_cast<uint32_t>(number);
    std::mt19937 random(seed);
    SessionConfig config;
    config.window_bytes = 8'000 + random() % 100'000;
    Net net(seed, config, config);
    net.weather.loss = 0.2 * static_cast<double>(random() % 101) / 100;
    net.weather.duplication = random() % 2 == 0 ? 0.1 : 0;
    net.weather.corruption = random() % 3 == 0 ? 0.02 : 0;
    net.weather.jitter_ns = random() % 2 == 0 ? random() % 300'000 : 0;
    net.weather.delay_ns = 5'000 + random() % 500'000;
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    net.host[0].queue_chunks(static_cast<uint32_t>(50 + random() % 200));
    net.host[1].queue_chunks(static_cast<uint32_t>(random() % 100));
    ASSERT_TRUE(net.run([&] { return all_acked(net); }, 60 * kSecond));
    expect_complete(net);
    expect_nothing_held(net);
  });
}

TEST(SessionData, NothingIsSentTwiceOnAPerfectPath) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(5000);
  ASSERT_TRUE(net.run([&] { return all_acked(net); }, 5 * kSecond));
  EXPECT_EQ(net.host[0].session->lost_packets(), 0U);
  EXPECT_EQ(net.host[0].counters.get(Counter::kProbeTimeouts), 0U);
  EXPECT_LE(net.host[1].frames_sent, 5000 / 8 + 100U) << "one acknowledgement for eight packets";
  expect_nothing_held(net);
}

TEST(SessionData, ReorderingIsLearnedNotTakenForLoss) {
  SessionConfig config;
  config.window_bytes = 256 * 1024;  // more would have more gaps than an ACK can say
  Net net(3, config, config);
  net.weather.jitter_ns = 40'000;  // of 50 us one way
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(20'000);
  ASSERT_TRUE(net.run([&] { return net.host[0].acked.size() > 2000; }, 5 * kSecond));
  const int learning = net.host[0].lost;
  ASSERT_TRUE(net.run([&] { return all_acked(net); }, 60 * kSecond));
  EXPECT_LT(net.host[0].lost - learning, 200) << "under 1 % of what followed";
}

TEST(SessionData, TheWindowBoundsWhatIsInFlightAndOpensAgain) {
  SessionConfig config;
  config.window_bytes = 10'000;
  Net net(1, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  net.host[0].queue_chunks(100);
  uint64_t most = 0;
  ASSERT_TRUE(net.run(
      [&] {
        most = std::max(most, net.host[0].session->bytes_in_flight());
        return all_acked(net);
      },
      kSecond));
  EXPECT_LE(most, 10'000U);
  EXPECT_GT(most, 8'000U);
  EXPECT_GT(net.host[0].window_opened, 5);
}

TEST(SessionData, AChunkLargerThanTheWindowStillLeavesAlone) {
  SessionConfig config;
  config.window_bytes = 100;
  Net net(1, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(10);
  EXPECT_TRUE(net.run([&] { return all_acked(net); }, kSecond));
}

// Others' jobs hold what they may: it goes on with what is its own, through losses, and speaks.
TEST(SessionData, WithoutAPartOfThePoolItGoesOnSlowlyAndSaysWhatItMust) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  Host& host = net.host[0];
  uint32_t hoard = 0;
  for (SentPart other; host.pool.may_grow(other); other = {}) {  // each another job's
    (void)host.pool.take(other);
    ++hoard;
  }
  net.weather.loss = 0.05;
  host.queue_chunks(1000);
  const Bytes message(50'000);
  ASSERT_TRUE(host.session->send_control(message));
  EXPECT_TRUE(
      net.run([&] { return all_acked(net) && net.host[1].messages.size() == 1; }, 60 * kSecond));
  EXPECT_LE(host.pool.blocks_in_use(), hoard + kReservedBlocks);
}

TEST(SessionData, ALostTailIsRecoveredWithinTwoProbeTimeouts) {
  for (uint32_t dropped = 1; dropped <= 20; ++dropped) {
    SCOPED_TRACE(dropped);
    Net net(dropped);
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    net.host[0].queue_chunks(200);
    ASSERT_TRUE(net.run([&] { return all_acked(net); }, kSecond));
    net.run_for(kSecond);
    const uint64_t probes = net.host[0].counters.get(Counter::kProbeTimeouts);
    net.weather.down = true;
    net.host[0].queue_chunks(dropped);
    net.host[0].pump();
    net.weather.down = false;
    const uint64_t start = net.now_ns;
    ASSERT_TRUE(net.run([&] { return all_acked(net); }, kSecond));
    EXPECT_LE(net.host[0].counters.get(Counter::kProbeTimeouts) - probes, 2U);
    EXPECT_LE(net.now_ns - start, 2 * 2'250'000 + 1'000'000U);
  }
}

TEST(SessionData, MoreGapsThanAnAcknowledgementHoldsLoseNothing) {
  SessionConfig config;
  config.window = WindowKind::kFixed;
  Net net(1, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  // Every second chunk is lost, and all acknowledgements meanwhile: far more than 64 gaps.
  uint64_t nth = 0;
  net.host[0].queue_chunks(220);
  net.tap = [&](int from, std::span<const std::byte>) {
    net.weather.down = from == 1 || ++nth % 2 == 0;
  };
  net.host[0].pump();
  net.run_for(1'000'000);
  net.tap = nullptr;
  net.weather.down = false;
  EXPECT_GT(net.host[1].delivered.size(), 100U);
  ASSERT_TRUE(net.run([&] { return all_acked(net); }, 5 * kSecond));
  expect_complete(net);
  expect_nothing_held(net);
}

TEST(SessionData, PacketNumbersMayBeAnywhere) {
  for (const uint64_t first :
       {(uint64_t{1} << 32) - 50, (uint64_t{1} << 63) - 50, uint64_t{1} << 62}) {
    SCOPED_TRACE(first);
    SessionConfig config;
    config.first_packet_number = first;
    Net net(4, config, config);
    net.weather.loss = 0.1;
    net.weather.jitter_ns = 100'000;
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    for (Host& host : net.host) host.queue_chunks(500);
    ASSERT_TRUE(net.run([&] { return all_acked(net); }, 20 * kSecond));
    expect_complete(net);
    expect_nothing_held(net);
  }
}

TEST(SessionControl, LongMessagesArriveWholeAndInOrderUnderLoss) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed);
    net.weather = {.loss = 0.15, .duplication = 0.1, .corruption = 0.02, .jitter_ns = 200'000};
    net.connect();
    std::array<std::vector<Bytes>, 2> sent;
    for (const size_t bytes : {200'000, 1, 200'000, 5'000, 200'000}) {
      for (size_t i = 0; i < 2; ++i) {
        Bytes message(bytes);
        for (std::byte& byte : message) byte = static_cast<std::byte>(net.below(256));
        if (i == 0) {  // before the session is open
          ASSERT_TRUE(net.host[i].session->send_control(message).ok());
        }
        sent[i].push_back(message);
      }
    }
    ASSERT_TRUE(net.run_until_open());
    for (const Bytes& message : sent[1]) {
      ASSERT_TRUE(net.host[1].session->send_control(message).ok());
    }
    net.host[0].queue_chunks(500);  // a full window must not hold control messages up
    ASSERT_TRUE(net.run(
        [&] { return net.host[0].messages.size() == 5 && net.host[1].messages.size() == 5; },
        60 * kSecond));
    EXPECT_EQ(net.host[0].messages, sent[1]);
    EXPECT_EQ(net.host[1].messages, sent[0]);
    ASSERT_TRUE(net.run([&] { return all_acked(net); }, 60 * kSecond));
    expect_nothing_held(net);
  }
}

TEST(SessionControl, RefusesWhatIsTooMuch) {
  Net net(1);
  net.connect();
  EXPECT_EQ(net.host[0].session->send_control(Bytes(Session::kMaxControlMessage + 1)).error().code,
            Errc::kInvalidArgument);
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = net.host[0].session->send_control(Bytes(100'000));
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Errc::kLimit);
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  EXPECT_TRUE(net.host[0].session->send_control(Bytes(100'000)).ok());
}

}  // namespace
}  // namespace mercury::test
