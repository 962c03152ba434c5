// Datagrams from several source ports: who takes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "tests/transport/engine/spread_lab.h"
#include "transport/flow/port_turns.h"

namespace mercury::post {
namespace {

class Ports : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(PlainAndSealed, Ports, testing::Values(kFeatures, kSealed, kEncrypted));

TEST_P(Ports, TakeTurnsWithDatagramsAndNothingElse) {
  Spread lab;
  ASSERT_TRUE(lab.connect(GetParam()));
  lab.run_for(20 * kMs);
  lab.post(2'000);
  ASSERT_TRUE(lab.all_acked());
  const std::map<uint16_t, uint32_t> counts = lab.datagrams_by_port();
  ASSERT_EQ(counts.size(), 4U);
  for (const uint16_t port : std::initializer_list<uint16_t>{7470, 7600, 7601, 7602}) {
    EXPECT_NEAR(counts.at(port), 500, 150) << port;
  }
  for (const Seen& one : lab.left) {
    EXPECT_EQ(one.spread, one.source_port != 7470);
    EXPECT_TRUE(wire::is_datagram(one.type) || one.source_port == 7470);
  }
  EXPECT_EQ(lab.dropped(Counter::kDropForeignSource), 0U) << "none came before its port was told";
  EXPECT_EQ(lab.a().service.lost, 0U);
}

// What leaves in one pass stays together.
TEST_P(Ports, ChangeByRuns) {
  Spread lab;
  ASSERT_TRUE(lab.connect(GetParam()));
  lab.run_for(20 * kMs);
  lab.left.clear();
  lab.post(2'000, 400);
  ASSERT_TRUE(lab.all_acked());
  uint32_t runs = 0;
  std::optional<uint16_t> last;
  for (const Seen& one : lab.left) {
    if (!wire::is_datagram(one.type)) continue;
    runs += last != one.source_port ? 1 : 0;
    last = one.source_port;
  }
  EXPECT_LE(runs, 2'000 / kRunFrames + 20) << "the session's own frames have numbers, too";
  EXPECT_GE(runs, 2'000U / kTxBurst);
}

TEST_P(Ports, AreNotToldToWhoDoesNotKnowThem) {
  const uint32_t without = GetParam() & ~uint32_t{wire::kFeatureSourcePorts};
  for (const bool asks : {false, true}) {
    Spread lab;
    lab.a().features = asks ? GetParam() : without;
    lab.b().features = asks ? without : GetParam();
    lab.a().connect(PostHost::at(2));
    ASSERT_TRUE(lab.run([&] { return lab.a().open && lab.b().open; }));
    lab.post(500);
    ASSERT_TRUE(lab.all_acked());
    for (const Seen& one : lab.left) {
      EXPECT_EQ(one.source_port, 7470);
      EXPECT_NE(one.type, wire::FrameType::kSourcePorts);
    }
  }
}

TEST_P(Ports, WhoHasOneSaysNothingOfIt) {
  Spread lab(PortRange{}, kPorts);
  ASSERT_TRUE(lab.connect(GetParam()));
  lab.post(500);
  ASSERT_TRUE(lab.all_acked());
  for (const Seen& one : lab.left) {
    EXPECT_EQ(one.source_port, 7470);
    EXPECT_NE(one.type, wire::FrameType::kSourcePorts);
  }
}

TEST_P(Ports, AreToldAgainUntilItIsKnown) {
  uint32_t again = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    sim::Faults weather;
    weather.loss = 0.2;
    weather.corrupt = 0.02;
    weather.duplicate = 0.02;
    weather.reorder = 0.1;
    Spread lab(kPorts, {}, seed, weather);
    ASSERT_TRUE(lab.connect(GetParam())) << seed;
    lab.run_for(kSecond);
    lab.post(200);
    ASSERT_TRUE(lab.all_acked()) << seed;
    EXPECT_EQ(lab.datagrams_by_port().size(), 4U) << seed;
    EXPECT_EQ(lab.dropped(Counter::kDropForeignSource), 0U) << seed;
    again +=
        static_cast<uint32_t>(std::ranges::count_if(
            lab.left, [](const Seen& one) { return one.type == wire::FrameType::kSourcePorts; })) -
        1;
  }
  EXPECT_GE(again, 5U) << "of 40 a fifth is lost";
}

// A datagram as the peer sent it, which has not arrived yet, from one port or the other.
TEST_P(Ports, ThatWereNotToldBringNothing) {
  for (const auto& [port, host, taken] : {std::tuple<uint16_t, uint8_t, bool>{7599, 1, false},
                                          {7603, 1, false},
                                          {7471, 1, false},
                                          {0, 1, false},
                                          {65535, 1, false},
                                          {7600, 3, false},
                                          {7470, 3, false},
                                          {7600, 1, true},
                                          {7602, 1, true},
                                          {7470, 1, true}}) {
    SCOPED_TRACE(port);
    Spread lab;
    ASSERT_TRUE(lab.connect(GetParam()));
    lab.run_for(20 * kMs);
    lab.a().service.sends_again = false;
    lab.network.set_up(lab.network.uplink(sim::HostId(0)), false);
    const auto* const datagram = lab.datagram_that_is(true);
    ASSERT_NE(datagram, nullptr);
    lab.network.inject({IpAddress::v4(10, 0, 0, host), port}, PostHost::at(2), *datagram);
    lab.run_for(kMs / 2);
    EXPECT_EQ(lab.b().service.arrived.size(), taken ? 1U : 0U);
    EXPECT_EQ(lab.dropped(Counter::kDropForeignSource), taken ? 0U : 1U);
  }
}

// What has no flag leaves from where its sender hears.
TEST_P(Ports, BringNothingElse) {
  Spread lab;
  ASSERT_TRUE(lab.connect(GetParam()));
  lab.run_for(20 * kMs);
  lab.a().service.sends_again = false;
  lab.network.set_up(lab.network.uplink(sim::HostId(0)), false);
  const auto* const datagram = lab.datagram_that_is(false);
  ASSERT_NE(datagram, nullptr);
  lab.network.inject({PostHost::at(1).ip, 7600}, PostHost::at(2), *datagram);
  lab.run_for(kMs / 2);
  EXPECT_EQ(lab.b().service.arrived.size(), 0U);
  EXPECT_EQ(lab.dropped(Counter::kDropForeignSource), 1U);
}

// Its session frames come from another address, and its datagrams with them.
TEST(SpreadTest, APeerThatMovesTakesItsPortsAlong) {
  Spread lab;
  ASSERT_TRUE(lab.connect(kSealed));
  lab.run_for(20 * kMs);
  lab.post(200);
  ASSERT_TRUE(lab.all_acked());
  for (const Endpoint& seen :
       {Endpoint{IpAddress::v4(10, 9, 9, 9), 7470}, Endpoint{IpAddress::v4(10, 9, 9, 9), 9000}}) {
    ASSERT_TRUE(lab.network.show_as(lab.a().port->decorated(), seen));
    const uint64_t moved = lab.b().counters.get(Counter::kPeersMoved);
    lab.post(2'000);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_EQ(lab.b().counters.get(Counter::kPeersMoved), moved + 1);
    const uint64_t foreign = lab.dropped(Counter::kDropForeignSource);
    lab.left.clear();
    lab.post(2'000);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_EQ(lab.dropped(Counter::kDropForeignSource), foreign);
    EXPECT_EQ(lab.datagrams_by_port().size(), 4U);
  }
}

// A translator gives its own port the number of one that was told.
TEST(SpreadTest, APeerThatMovesToOneOfItsPortsIsFound) {
  for (const Endpoint& seen :
       {Endpoint{IpAddress::v4(10, 9, 9, 9), 7600}, Endpoint{PostHost::at(1).ip, 7601}}) {
    SCOPED_TRACE(seen.to_string());
    Spread lab;
    ASSERT_TRUE(lab.connect(kSealed));
    lab.run_for(20 * kMs);
    lab.post(200);
    ASSERT_TRUE(lab.all_acked());
    ASSERT_TRUE(lab.network.show_as(lab.a().port->decorated(), seen));
    lab.post(200);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_EQ(lab.b().counters.get(Counter::kPeersMoved), 1U);
  }
}

// A translator gives one of its ports another number: there it is not to be looked for.
TEST(SpreadTest, APortThatIsTranslatedIsNotAskedWhetherItIsThePeer) {
  Spread lab;
  ASSERT_TRUE(lab.connect(kSealed));
  lab.run_for(20 * kMs);
  lab.network.set_up(lab.network.uplink(sim::HostId(0)), false);
  const auto* const datagram = lab.datagram_that_is(true);
  ASSERT_NE(datagram, nullptr);
  lab.network.inject({PostHost::at(1).ip, 40'000}, PostHost::at(2), *datagram);
  lab.run_for(kMs / 2);
  EXPECT_EQ(lab.dropped(Counter::kDropForeignSource), 1U);
  EXPECT_EQ(lab.b().counters.get(Counter::kPathsChallenged), 0U);
}

// When its session ends, and when its peer moves: a session has a path from each port, and no more.
TEST(SpreadTest, EveryPathIsClosed) {
  Spread lab;
  const std::set<uint32_t>& paths = lab.a().port->open_paths;
  ASSERT_TRUE(lab.connect(kSealed));
  lab.run_for(20 * kMs);
  EXPECT_EQ(paths.size(), 4U);
  ASSERT_TRUE(
      lab.network.show_as(lab.b().port->decorated(), {IpAddress::v4(10, 9, 9, 9), uint16_t{9000}}));
  lab.post(200);
  ASSERT_TRUE(lab.all_acked());
  EXPECT_EQ(lab.a().counters.get(Counter::kPeersMoved), 1U);
  EXPECT_EQ(paths.size(), 4U);
  lab.a().send(command::CloseSession{.token = kToken});
  ASSERT_TRUE(lab.run([&] { return lab.a().closed.has_value(); }));
  EXPECT_EQ(paths.size(), 0U);
}

// It goes on with those it has.
TEST(SpreadTest, APortWithoutAPathIsLeftOut) {
  for (const std::set<uint16_t>& refused : {std::set<uint16_t>{0}, {1}, {2}, {0, 2}, {0, 1, 2}}) {
    Spread lab;
    lab.a().port->refused = refused;
    ASSERT_TRUE(lab.connect(kFeatures));
    lab.run_for(20 * kMs);
    lab.post(500);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_EQ(lab.datagrams_by_port().size(), 4 - refused.size());
    for (const uint16_t source : refused) {
      EXPECT_FALSE(lab.datagrams_by_port().contains(static_cast<uint16_t>(7600 + source)));
    }
    EXPECT_EQ(lab.a().port->open_paths.size(), 4 - refused.size());
    lab.a().send(command::CloseSession{.token = kToken});
    ASSERT_TRUE(lab.run([&] { return lab.a().closed.has_value(); }));
    EXPECT_EQ(lab.a().port->open_paths.size(), 0U);
  }
}

// Nobody hears at most of the ports that its datagrams come from.
TEST_P(Ports, DoNotHideARestart) {
  Spread lab;
  ASSERT_TRUE(lab.connect(GetParam()));
  lab.run_for(20 * kMs);
  lab.post(500);
  ASSERT_TRUE(lab.all_acked());
  // Until the next leave from where nobody hears.
  do {
    lab.left.clear();
    lab.post(kRunFrames);
    ASSERT_TRUE(lab.all_acked());
  } while (!lab.datagrams_by_port().contains(7470));
  lab.hosts[1].reset();
  lab.hosts[1] =
      std::make_unique<PostHost>(lab.network, sim::HostId(1), uint8_t{2}, Spread::with_keys(2));
  const uint64_t from_ns = lab.network.now_ns();
  lab.left.clear();
  lab.post(2'000);
  ASSERT_TRUE(lab.run([&] { return lab.a().closed.has_value(); }, kSecond));
  EXPECT_LT(lab.network.now_ns() - from_ns, 3 * kMs) << "a probe time-out at most";
  EXPECT_LE(lab.b().counters.get(Counter::kResetsSent), 256U);
  EXPECT_TRUE(lab.datagrams_by_port().contains(7600));
  for (const Endpoint& target : lab.reset_at) EXPECT_EQ(target, PostHost::at(1));
}

}  // namespace
}  // namespace mercury::post
