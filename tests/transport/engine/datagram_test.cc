// Datagrams from end to end, of a service that knows neither streams nor tensors: over the
// simulated network, in sessions of no job.
#include <gtest/gtest.h>

#include "tests/transport/engine/post_lab.h"

namespace mercury::post {
namespace {

TEST(Datagrams, ArriveWholeAndWhoSentThemHearsOfEachOnce) {
  constexpr uint32_t kCount = 1000;
  sim::Faults weather;
  weather.loss = 0.05;
  weather.duplicate = 0.05;
  weather.reorder = 0.1;
  weather.corrupt = 0.02;
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    Lab lab(weather, seed);
    ASSERT_TRUE(lab.connect());
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t size = i * 37 % 1400;
      bytes += size;
      lab.a().send(Post{kToken, i, size});
      if (i % 32 == 0) (void)lab.run([] { return false; }, kMs);
    }
    ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == kCount; }));
    EXPECT_EQ(lab.b().service.arrived.size(), kCount);
    for (const auto& [number, times] : lab.b().service.arrived) {
      EXPECT_GE(times, 1U) << number;
      EXPECT_LE(times, 1 + lab.a().service.lost) << number;
    }
    EXPECT_GT(lab.a().service.lost, 0U);
    EXPECT_GE(lab.a().service.charged_bytes, bytes + kCount * sizeof(wire::DatagramHeader));
  }
}

// Frames that have come are not kept waiting by what the control plane asks for.
TEST(Datagrams, APassCarriesOutSoManyCommandsAtMost) {
  Lab lab;
  ASSERT_TRUE(lab.connect());
  lab.a().service.blocked = true;
  for (uint32_t i = 0; i < 2 * kCommandsPerPass; ++i) lab.a().send(Post{kToken, i, 100});
  const auto taken = [&] { return lab.a().service.acked.size(); };
  for (uint32_t pass = 1; pass <= 2; ++pass) {
    EXPECT_GT(lab.a().engine.commands_waiting(), 0U);
    EXPECT_GT(lab.a().poll(lab.network.now_ns()), 0U) << "the engine does not sleep over the rest";
    EXPECT_EQ(lab.a().service.posted, pass * kCommandsPerPass);
  }
  EXPECT_EQ(lab.a().engine.commands_waiting(), 0U);
  ASSERT_TRUE(lab.run([&] { return taken() == 2 * kCommandsPerPass; }));
}

// A pass that takes time, as the network here does not know: its time is given to poll().
TEST(Datagrams, AnEngineWhosePassesTakeTimeFillsItsLink) {
  constexpr uint64_t kPassNs = 10'000;
  constexpr uint64_t kPasses = 1'000;
  constexpr uint64_t kRate = 6'250'000'000;  // an eighth of 400 Gb/s
  constexpr uint32_t kBytes = 8000;
  sim::NetworkConfig fast;
  fast.host_link.bytes_per_second = kRate;
  fast.host_link.queue_bytes = 4 << 20;
  fast.host_link.mtu_bytes = 9000;
  Lab lab(fast, {.tx_bound_bytes = 2 * 9216}, {.tx_queue_bytes = 4 << 20});
  ASSERT_TRUE(lab.connect());
  (void)lab.run([] { return false; }, 20 * kMs);  // MTU probes are over
  lab.a().send(Post{kToken, 0, kBytes});
  ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == 1; }));
  for (uint32_t i = 1; i <= 10 * kPasses; ++i) {
    lab.a().service.waiting.push_back({kToken, i, kBytes});
  }
  const auto arrived = [&] { return lab.b().counters.get(Counter::kRxBytes); };
  uint64_t before = 0;
  const uint64_t begin_ns = lab.network.now_ns();
  for (uint64_t pass = 0; pass < kPasses; ++pass) {
    if (pass == kPasses / 2) before = arrived();  // the window is open
    for (auto& host : lab.hosts) host->poll(lab.network.now_ns());
    lab.network.advance_to(begin_ns + (pass + 1) * kPassNs);
  }
  const double reached = static_cast<double>(arrived() - before) /
                         (static_cast<double>(kRate) * kPassNs * 1e-9 * kPasses / 2);
  EXPECT_GT(reached, 0.85) << "of the link, headers below UDP not counted";
}

// And the link carries as many.
TEST(Datagrams, LeaveTogetherWhereAFlushIsASystemCall) {
  constexpr uint32_t kCount = 1'000;
  const auto flushes_and_ns = [](bool flush_is_system_call) -> std::pair<uint32_t, uint64_t> {
    sim::NetworkConfig slow;
    slow.host_link.bytes_per_second = 62'500'000;
    Lab lab(slow, {.tx_bound_bytes = 32'768}, {.flush_is_system_call = flush_is_system_call});
    EXPECT_TRUE(lab.connect());
    lab.run_for(20 * kMs);  // MTU probes are over
    const uint32_t before = lab.a().port->flushes;
    const uint64_t begin_ns = lab.network.now_ns();
    for (uint32_t i = 0; i < kCount; ++i) lab.a().service.waiting.push_back({kToken, i, 1'400});
    EXPECT_TRUE(lab.run([&] { return lab.a().service.acked.size() == kCount; }));
    return {lab.a().port->flushes - before, lab.network.now_ns() - begin_ns};
  };
  const auto [alone, alone_ns] = flushes_and_ns(false);
  const auto [together, together_ns] = flushes_and_ns(true);
  EXPECT_GT(alone, kCount * 8 / 10);
  EXPECT_LT(together, kCount / 3);
  EXPECT_LT(together_ns, alone_ns * 101 / 100);
}

// Acknowledgements leave in between, and put nothing off. How many leave at once, where each second
// one overtakes the last, two jobs take turns, or neither.
enum class Haste : uint8_t { kNone, kOvertakes, kTakesTurns };
class DatagramsGather : public testing::TestWithParam<Haste> {};
INSTANTIATE_TEST_SUITE_P(Datagrams, DatagramsGather,
                         testing::Values(Haste::kNone, Haste::kOvertakes, Haste::kTakesTurns));

TEST_P(DatagramsGather, NoLongerWhereBothSidesSend) {
  constexpr uint32_t kCount = 1'000;
  sim::NetworkConfig slow;
  slow.host_link.bytes_per_second = 62'500'000;
  Lab lab(slow, {.tx_bound_bytes = 65'536}, {.flush_is_system_call = true});
  ASSERT_TRUE(lab.connect());
  lab.run_for(20 * kMs);  // MTU probes are over
  for (auto& host : lab.hosts) {
    host->service.overtakes = GetParam() == Haste::kOvertakes;
    host->service.takes_turns = GetParam() == Haste::kTakesTurns;
    for (uint32_t i = 0; i < kCount; ++i) host->service.waiting.push_back({kToken, i, 1'400});
  }
  const auto all_have = [&](size_t count) {
    return lab.run([&] {
      return lab.a().service.acked.size() >= count && lab.b().service.acked.size() >= count;
    });
  };
  ASSERT_TRUE(all_have(kCount / 5));  // what the bound lets a link have at once has left
  for (auto& host : lab.hosts) host->port->most_flushed = 0;
  ASSERT_TRUE(all_have(kCount));
  for (auto& host : lab.hosts) {
    EXPECT_GE(host->port->most_flushed, GetParam() == Haste::kNone ? 6U : 4U);
    EXPECT_LE(host->port->most_flushed, GetParam() == Haste::kNone ? 23U : 5U)
        << "what the link carries in 100 us, and one more; else in up to 500 us, and two";
  }
}

// The peer, which says nothing itself, hears of it at once: not when it is next heard.
TEST(Datagrams, OneThatThePortCannotCarryEndsItsSessionAndIsNotSent) {
  Lab lab;
  ASSERT_TRUE(lab.connect());
  (void)lab.run([] { return false; }, 20 * kMs);  // MTU probes are over
  lab.a().service.sends_again = false;
  lab.a().send(Post{kToken, 1, lab.a().port->info().max_udp_payload});
  EXPECT_TRUE(lab.run([&] { return lab.a().closed && lab.b().closed; }, 5 * kMs));
  ASSERT_TRUE(lab.a().closed && lab.b().closed);
  EXPECT_EQ(lab.a().closed->code, Errc::kProtocol);
  EXPECT_EQ(lab.b().closed->code, Errc::kProtocol);
  EXPECT_NE(lab.b().closed->text.find("more than the port carries"), std::string::npos)
      << lab.b().closed->text;
  EXPECT_EQ(lab.a().service.lost, 1U) << "it is its service's again";
  EXPECT_TRUE(lab.b().service.arrived.empty());
}

// --- Over a path that carries less than when the session opened
// ------------------------------------

constexpr uint32_t kLarge = 8'000;  // in parts
constexpr uint32_t kSmall = 100;    // whole

// It is known that frames of kLarge bytes go in parts.
struct InParts : Lab {
  explicit InParts(uint32_t features = wire::kFeatureParts, sim::SimPortConfig port = {})
      : Lab(jumbo(), EngineConfig(), port) {
    EXPECT_TRUE(connect(features));
    run_for(20 * kMs);  // MTU probes are over
    sim::Faults narrow;
    narrow.vanish_above_bytes = 1'500;
    network.set_faults(narrow);
    post(8, kLarge);
    EXPECT_TRUE(all_acked());
    run_for(100 * kMs);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t c = 0; c < kCounterCount; ++c) {
        before[i][c] = hosts[i]->counters.get(static_cast<Counter>(c));
      }
    }
  }
  static sim::NetworkConfig jumbo() {
    sim::NetworkConfig config;
    config.host_link.mtu_bytes = 9'000;
    return config;
  }
  void post(uint32_t count, uint32_t bytes) {
    for (uint32_t i = 0; i < count; ++i) a().service.waiting.push_back({kToken, posted++, bytes});
  }
  bool all_acked() {
    return run([this] { return a().service.acked.size() == posted || a().closed; }) && !a().closed;
  }
  uint64_t since(size_t host, Counter counter) const {
    return hosts[host]->counters.get(counter) - before[host][static_cast<size_t>(counter)];
  }

  uint32_t posted = 0;
  std::array<std::array<uint64_t, kCounterCount>, 2> before{};
};

TEST(DatagramsInParts, ArriveWithAndWithoutSeals) {
  for (const uint32_t features :
       {uint32_t{wire::kFeatureParts}, wire::kFeatureParts | wire::kFeatureSeals,
        wire::kFeatureParts | wire::kFeatureSeals | wire::kFeatureCanEncrypt |
            wire::kFeatureAsksEncryption}) {
    SCOPED_TRACE(features);
    InParts lab(features);
    lab.post(200, kLarge);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_GE(lab.since(0, Counter::kPartsSent), 200U * 6);
    EXPECT_EQ(lab.since(0, Counter::kRetransmits), 0U);
    EXPECT_EQ(lab.since(1, Counter::kDropSeal), 0U);
    lab.run_for(20 * kSecond);
    EXPECT_FALSE(lab.a().closed || lab.b().closed);
  }
}

// Nothing has to be lost first.
TEST(DatagramsInParts, GoOverAPathThatCarriedLessWhenItsSessionOpened) {
  Lab lab(InParts::jumbo(), EngineConfig(), sim::SimPortConfig());
  sim::Faults narrow;
  narrow.vanish_above_bytes = 1'500;
  lab.network.set_faults(narrow);
  ASSERT_TRUE(lab.connect(wire::kFeatureParts));
  lab.run_for(20 * kMs);  // MTU probes are over
  for (uint32_t i = 0; i < 100; ++i) lab.a().service.waiting.push_back({kToken, i, kLarge});
  ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == 100; }));
  EXPECT_EQ(lab.a().counters.get(Counter::kRetransmits), 0U);
  EXPECT_EQ(lab.a().counters.get(Counter::kPathsDoubted), 0U);
}

// Who stands still for a while finds all that has come at once.
TEST(DatagramsInParts, NoneIsOvertakenByWhatCameBehindIt) {
  InParts lab;
  for (uint32_t i = 0; i < 200; ++i) {
    lab.post(1, kLarge);
    lab.post(6, kSmall);
  }
  for (uint32_t step = 0; step < 5'000; ++step) {
    while (lab.a().poll(lab.network.now_ns()) > 0) continue;
    for (bool reads = step % 20 == 0; reads;) reads = lab.b().poll(lab.network.now_ns()) > 0;
    lab.network.advance_to(lab.network.now_ns() + 10'000);
  }
  ASSERT_TRUE(lab.all_acked());
  EXPECT_EQ(lab.since(0, Counter::kSpuriousLosses), 0U);
  EXPECT_EQ(lab.since(0, Counter::kRetransmits), 0U);
}

TEST(DatagramsInParts, EachPacketIsCountedOnce) {
  InParts lab;
  lab.post(100, kLarge);
  ASSERT_TRUE(lab.all_acked());
  lab.run_for(100 * kMs);
  ASSERT_GT(lab.since(0, Counter::kPartsSent), 0U);
  for (const size_t host : {0, 1}) {
    EXPECT_EQ(lab.since(host, Counter::kTxFrames), lab.since(1 - host, Counter::kRxFrames));
    EXPECT_EQ(lab.since(host, Counter::kTxBytes), lab.since(1 - host, Counter::kRxBytes));
  }
}

// A port that takes three packets of a frame's six at a time.
TEST(DatagramsInParts, NoneIsHalfSentWhereThePortHasNoRoom) {
  InParts lab(wire::kFeatureParts, {.tx_queue_bytes = 4'000});
  const uint64_t refused = lab.since(0, Counter::kTxBackpressure);
  lab.post(100, kLarge);
  ASSERT_TRUE(lab.all_acked());
  EXPECT_GT(lab.since(0, Counter::kTxBackpressure), refused);
  EXPECT_EQ(lab.since(0, Counter::kRetransmits), 0U);
}

// The rest of its last frame is no later session's.
TEST(DatagramsInParts, WhatIsLeftOfOneGoesWithItsSession) {
  InParts lab(wire::kFeatureParts, {.tx_queue_bytes = 4'000});
  lab.post(1, kLarge);
  ASSERT_GT(lab.a().poll(lab.network.now_ns()), 0U);  // half of it
  lab.a().send(command::CloseSession{kToken, Errc::kClosed, "it is over"});
  ASSERT_TRUE(lab.run([&] { return lab.a().closed && lab.b().closed; }, kSecond));
  lab.a().open = lab.b().open = false;
  ASSERT_TRUE(lab.connect());
  lab.post(1, kSmall);
  EXPECT_TRUE(lab.run([&] { return lab.a().service.acked.count(lab.posted - 1) == 1; }, kSecond));
}

// --- What the link says --------------------------------------------------------------------------

struct LinkFree {
  static void see(void* context, uint64_t, const Endpoint&, const Endpoint&,
                  std::span<const std::byte> frame) {
    wire::Header header;
    std::span<const std::byte> payload;
    if (wire::decode(frame, header, payload) != wire::DecodeError::kNone) return;
    if (!wire::is_datagram(header.type)) return;
    static_cast<LinkFree*>(context)->seen.push_back((header.flags & wire::kFlagLinkFree) != 0);
  }
  std::vector<bool> seen;  // of each datagram: its link was free
};

// The first of a burst finds the link idle, and the next one says so.
TEST(Datagrams, SayThatTheirLinkHasBeenIdle) {
  for (const bool known : {true, false}) {
    SCOPED_TRACE(known);
    Lab lab(Lab::config({}, 1), EngineConfig(), {.report_rate = known});
    ASSERT_TRUE(lab.connect());
    lab.run_for(20 * kMs);  // MTU probes are over
    LinkFree link;
    lab.network.set_tap(LinkFree::see, &link);
    for (uint32_t burst = 0; burst < 3; ++burst) {
      link.seen.clear();
      for (uint32_t i = 0; i < 4; ++i) lab.a().send(Post{kToken, 4 * burst + i, 1'400});
      ASSERT_TRUE(lab.run([&] { return lab.a().service.acked.size() == 4 * (burst + 1); }));
      lab.run_for(10 * kMs);
      if (burst == 0) continue;  // what came before, as probes, counts too
      EXPECT_EQ(link.seen, (std::vector<bool>{false, known, false, false}));
    }
  }
}

}  // namespace
}  // namespace mercury::post
