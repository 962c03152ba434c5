// Datagrams from several source ports: who takes them, and what becomes of them on paths that
// routers choose by ports.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/transport/engine/post_lab.h"
#include "transport/flow/port_turns.h"
#include "transport/wire/source_ports.h"

namespace mercury::post {
namespace {

constexpr uint32_t kFeatures = wire::kFeatureSourcePorts | wire::kFeatureResets;
constexpr uint32_t kSealed = kFeatures | wire::kFeatureSeals | wire::kFeatureMoves;
constexpr PortRange kPorts{7600, 3};  // beside the one at which `a` hears

sim::SimPortConfig from(const PortRange& ports) {
  sim::SimPortConfig config;
  config.source_ports = ports;
  return config;
}

struct Seen {
  uint16_t source_port = 0;
  wire::FrameType type{};
  bool spread = false;  // says its flag
};

// `a` sends to `b`. What leaves `a`'s NIC is noted.
struct Spread : Lab {
  explicit Spread(const PortRange& of_a = kPorts, const PortRange& of_b = {}, uint64_t seed = 1,
                  const sim::Faults& faults = {})
      : Spread(config(faults, seed)) {
    add(network.add_host(), with_keys(1), from(of_a));
    add(network.add_host(), with_keys(1), from(of_b));
  }
  explicit Spread(const sim::NetworkConfig& config) : Lab(config) { network.set_tap(see, this); }
  static EngineConfig with_keys(unsigned char life) {
    EngineConfig config;
    config.reset_keys.own = ResetKey{life};
    if (life > 1) config.reset_keys.last = ResetKey{static_cast<unsigned char>(life - 1)};
    return config;
  }
  static void see(void* context, uint64_t, const Endpoint& source, const Endpoint& target,
                  std::span<const std::byte> frame) {
    Spread& lab = *static_cast<Spread*>(context);
    const auto type = static_cast<wire::FrameType>(frame[3]);
    if (type == wire::FrameType::kReset) lab.reset_at.push_back(target);
    if (target != PostHost::at(2)) return;
    const bool spread = (frame[5] & std::byte{wire::kFlagSpread}) != std::byte{0};
    lab.left.push_back({source.port, type, wire::is_datagram(type) && spread});
    if (wire::is_datagram(type)) lab.datagrams.emplace_back(frame.begin(), frame.end());
  }
  void post(uint32_t count, uint32_t bytes = 1000) {
    for (uint32_t i = 0; i < count; ++i) a().service.waiting.push_back({kToken, next++, bytes});
  }
  // Sent now, with the flag or without it; null: none was.
  const std::vector<std::byte>* datagram_that_is(bool spread) {
    post(40);
    run_for(kMs / 2);
    const auto found = std::ranges::find_if(datagrams, [spread](const auto& frame) {
      return ((frame[5] & std::byte{wire::kFlagSpread}) != std::byte{0}) == spread;
    });
    return found == datagrams.end() ? nullptr : &*found;
  }
  bool all_acked() {
    return run([this] { return a().service.acked.size() == next; });
  }
  std::map<uint16_t, uint32_t> datagrams_by_port() const {
    std::map<uint16_t, uint32_t> counts;
    for (const Seen& one : left) counts[one.source_port] += wire::is_datagram(one.type) ? 1 : 0;
    std::erase_if(counts, [](const auto& count) { return count.second == 0; });
    return counts;
  }
  uint64_t dropped(Counter counter) { return b().counters.get(counter); }

  uint32_t next = 0;
  std::vector<Seen> left;
  std::vector<Endpoint> reset_at;  // where RESETs went
  std::vector<std::vector<std::byte>> datagrams;
};

class Ports : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(PlainAndSealed, Ports, testing::Values(kFeatures, kSealed));

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

// --- Several paths of equal cost
// ------------------------------------------------------------------

constexpr uint64_t kLinkRate = 1'250'000'000;

// Two racks, joined by so many paths, which carry together what a host's link does. `a` is in one,
// `b` in the other.
struct Paths : Spread {
  Paths(uint32_t paths, uint16_t ports, uint64_t seed, uint64_t slower_ns = 0)
      : Spread(of(seed)), count(paths) {
    sim::LinkConfig link;
    link.bytes_per_second = kLinkRate / paths;
    link.delay_ns = 5'000;
    link.queue_bytes = 512 * 1024;
    link.ecn_mark_bytes = 64 * 1024;
    const sim::LinkConfig host = network_config(seed).host_link;
    for (size_t i = 0; i < 2; ++i) racks.push_back(network.add_rack(link, link, paths));
    for (size_t i = 0; i < 2; ++i) {
      add(network.add_host(host, host, racks[i]), EngineConfig(),
          from(i == 0 ? range(ports) : PortRange{}));
    }
    for (uint32_t path = 1; path < paths && slower_ns > 0; path += 2) {
      sim::LinkConfig longer = link;
      longer.delay_ns += slower_ns;
      network.set_config(network.uplink(racks[0], path), longer);
    }
    EXPECT_TRUE(connect(kFeatures));
    run_for(20 * kMs);
  }
  // Beside `a` a second sender, to `b` too.
  PostHost& add_sender(uint16_t ports) {
    const sim::LinkConfig link = network.config(network.uplink(sim::HostId(0)));
    add(network.add_host(link, link, racks[0]), EngineConfig(), from(range(ports)));
    PostHost& sender = *hosts.back();
    sender.features = kFeatures;
    sender.connect(PostHost::at(2));
    EXPECT_TRUE(run([&] { return sender.open; }));
    run_for(20 * kMs);
    return sender;
  }
  // How many of so many source ports of a host each path has.
  std::vector<uint32_t> ports_on(uint16_t ports, uint8_t host = 1) const {
    std::vector<uint32_t> on(count);
    for (uint16_t i = 0; i < ports; ++i) {
      Endpoint source = PostHost::at(host);
      if (i > 0) source.port = static_cast<uint16_t>(7600 + i - 1);
      ++on[network.path_hash(source, PostHost::at(2)) % count];
    }
    return on;
  }
  // Of so many, the part that the fullest path has.
  double fullest(uint16_t ports) const {
    return static_cast<double>(std::ranges::max(ports_on(ports))) / ports;
  }
  uint64_t left_out() { return a().counters.get(Counter::kSourcePortsLeftOut); }
  // Bytes in a second, of datagrams as long as there are some.
  double goodput() {
    post(40'000, 8'000);
    run_for(50 * kMs);  // the window has found what the paths carry
    const uint64_t before = b().counters.get(Counter::kRxBytes);
    lost_before = a().service.lost;
    run_for(100 * kMs);
    return static_cast<double>(b().counters.get(Counter::kRxBytes) - before) / 0.1;
  }
  uint32_t lost() { return a().service.lost - lost_before; }

  const uint32_t count;
  uint32_t lost_before = 0;
  std::vector<sim::RackId> racks;

 private:
  static PortRange range(uint16_t ports) {
    return ports > 1 ? PortRange{7600, static_cast<uint16_t>(ports - 1)} : PortRange{};
  }
  static sim::NetworkConfig network_config(uint64_t seed) {
    sim::NetworkConfig config = Lab::config({}, seed);
    config.host_link.bytes_per_second = kLinkRate;
    config.host_link.mtu_bytes = 9000;
    return config;
  }
  static sim::NetworkConfig of(uint64_t seed) { return network_config(seed); }
};

// What ports share a path is chance: the fullest path bounds a session whose ports take turns.
TEST(SpreadTest, OnePortHasOnePathAndManyHaveNearlyAllThatTheirTurnsAllow) {
  constexpr uint32_t kPaths = 2;
  constexpr double kPathRate = static_cast<double>(kLinkRate) / kPaths;
  double sum = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    const double one = Paths(kPaths, 1, seed).goodput() / kPathRate;
    EXPECT_LT(one, 1.0);
    EXPECT_GT(one, 0.9);
    for (const uint16_t ports : {uint16_t{4}, uint16_t{16}}) {
      Paths lab(kPaths, ports, seed);
      const double reached = lab.goodput() / kPathRate;
      EXPECT_GT(reached, 0.75 / lab.fullest(ports)) << ports;
      EXPECT_EQ(lab.left_out(), 0U);
      if (ports == 16) sum += reached;
    }
  }
  EXPECT_GT(sum / 4, 1.4) << "of two paths";
}

// A whole path's frames come later than those of the other, again and again.
TEST(SpreadTest, PathsOfDifferentDelayAreNotTakenForLoss) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (const uint64_t slower_ns : {20'000U, 100'000U, 500'000U}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", slower by " + std::to_string(slower_ns));
      Paths lab(2, 8, seed, slower_ns);
      const double reached = lab.goodput() / static_cast<double>(kLinkRate);
      EXPECT_GT(reached, 0.9 * 0.5 / lab.fullest(8));
      EXPECT_LT(lab.lost(), 10U) << "of thousands";
      EXPECT_LT(lab.lost_before, 100U) << "while it learnt how far";
      EXPECT_EQ(lab.left_out(), 0U);
    }
  }
}

// Two senders, each with half of its ports or so on a path of half the other's rate: they share
// what that path lets through, and what waits before it is not taken for lost.
TEST(SpreadTest, TwoSendersShareUnequalPaths) {
  constexpr uint16_t kMany = 16;
  constexpr uint64_t kSlow = kLinkRate / 4;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Paths lab(2, kMany, seed);
    lab.network.set_rate(lab.network.uplink(lab.racks[0], 1), kSlow);
    const std::array<PostHost*, 2> senders{&lab.a(), &lab.add_sender(kMany)};
    lab.network.set_tap(nullptr, nullptr);
    for (PostHost* sender : senders) {
      for (uint32_t i = 0; i < 40'000; ++i) sender->service.waiting.push_back({kToken, i, 8'000});
    }
    lab.run_for(50 * kMs);
    std::array<double, 2> acked{}, lost{};
    for (size_t i = 0; i < 2; ++i) {
      acked[i] = static_cast<double>(senders[i]->service.acked.size());
      lost[i] = senders[i]->service.lost;
    }
    lab.run_for(100 * kMs);
    for (size_t i = 0; i < 2; ++i) {
      acked[i] = static_cast<double>(senders[i]->service.acked.size()) - acked[i];
      lost[i] = senders[i]->service.lost - lost[i];
      EXPECT_LT(lost[i], 0.001 * acked[i]) << "as the other path is faster";
      EXPECT_EQ(senders[i]->counters.get(Counter::kSourcePortsLeftOut), 0U);
    }
    EXPECT_EQ(lab.network.drops(sim::Drop::kQueueFull), 0U) << "none was lost";
    // What each would have if both had the same, and the slower path all it can carry.
    const uint32_t on_slow = lab.ports_on(kMany, 1)[1] + lab.ports_on(kMany, 3)[1];
    const double fair = 0.1 * kSlow / 8'000 * kMany / on_slow;
    EXPECT_GT(acked[0] + acked[1], 0.9 * 2 * fair);
    EXPECT_GT(std::ranges::min(acked), 0.6 * fair);
    EXPECT_LT(std::ranges::max(acked), 1.5 * fair);
  }
}

// One of the paths takes all that comes, and nothing arrives: the ports on it are left out, and
// have their turns again once it is mended.
TEST(SpreadTest, ABrokenPathCostsWhatItWouldHaveCarried) {
  constexpr uint32_t kPaths = 4;
  constexpr uint16_t kMany = 16;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Paths lab(kPaths, kMany, seed);
    const auto own = lab.network.path_hash(PostHost::at(1), PostHost::at(2)) % kPaths;
    const auto broken = static_cast<uint32_t>(own + 1) % kPaths;
    std::vector<uint32_t> on = lab.ports_on(kMany);
    const uint32_t dead = std::exchange(on[broken], 0);
    ASSERT_GT(dead, 0U);
    lab.network.set_up(lab.network.uplink(lab.racks[0], broken), false);
    const double reached = lab.goodput() / (static_cast<double>(kLinkRate) / kPaths);
    EXPECT_GT(reached, 0.75 * (kMany - dead) / std::ranges::max(on));
    EXPECT_EQ(lab.left_out(), dead);
    EXPECT_EQ(lab.lost(), 0U) << "once it was known";

    ASSERT_TRUE(lab.all_acked());
    lab.network.set_up(lab.network.uplink(lab.racks[0], broken), true);
    lab.run_for(PortTurns::kFirstPauseNs);
    lab.post(1'000);
    ASSERT_TRUE(lab.all_acked());
    lab.left.clear();
    lab.post(3'000);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_EQ(lab.datagrams_by_port().size(), kMany);
    EXPECT_EQ(lab.left_out(), dead);
  }
}

// One of the paths loses three in ten: the ports on it are left out, and come back when it is
// mended.
TEST(SpreadTest, APathThatLosesMuchIsLeftOut) {
  constexpr uint32_t kPaths = 4;
  constexpr uint16_t kMany = 16;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Paths lab(kPaths, kMany, seed);
    const auto own = lab.network.path_hash(PostHost::at(1), PostHost::at(2)) % kPaths;
    const auto bad = static_cast<uint32_t>(own + 1) % kPaths;
    std::vector<uint32_t> on = lab.ports_on(kMany);
    const uint32_t ports = std::exchange(on[bad], 0);
    ASSERT_GT(ports, 0U);
    sim::Faults faults;
    faults.loss = 0.3;
    lab.network.set_faults(lab.network.uplink(lab.racks[0], bad), faults);
    lab.post(40'000, 8'000);
    lab.run_for(100 * kMs);  // until one after the other is judged
    const double reached = lab.goodput() / (static_cast<double>(kLinkRate) / kPaths);
    EXPECT_EQ(lab.left_out(), ports);
    EXPECT_GT(reached, 0.75 * (kMany - ports) / std::ranges::max(on));
    EXPECT_LT(lab.lost(), 20U) << "once it was known";

    ASSERT_TRUE(lab.all_acked());
    lab.network.set_faults(lab.network.uplink(lab.racks[0], bad), {});
    lab.run_for(PortTurns::kFirstPauseNs);
    lab.post(3'000);
    ASSERT_TRUE(lab.all_acked());
    lab.left.clear();
    lab.post(3'000);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_EQ(lab.datagrams_by_port().size(), kMany);
    EXPECT_EQ(lab.left_out(), ports);
  }
}

// Chance, and a queue that is full for all, are nothing that one port has.
TEST(SpreadTest, LossesThatAllPortsHaveLeaveNoneOut) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    sim::Faults weather;
    weather.loss = 0.2;
    weather.reorder = 0.2;
    Spread lab({7600, 15}, {}, seed, weather);
    ASSERT_TRUE(lab.connect(kFeatures));
    lab.run_for(kSecond);
    lab.post(4'000);
    ASSERT_TRUE(lab.all_acked());
    EXPECT_GT(lab.a().service.lost, 1'000U);
    EXPECT_EQ(lab.a().counters.get(Counter::kSourcePortsLeftOut), 0U);
  }
}

}  // namespace
}  // namespace mercury::post
