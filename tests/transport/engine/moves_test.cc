// Peers whose address changes: a translator of addresses stands between both hosts, and gives the
// one behind it another port, or address, from one moment to the next. In virtual time, and over
// UDP sockets on loopback.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/engine/echo_host.h"
#include "transport/engine/path_check.h"
#include "transport/port/sim/sim_port.h"
#include "transport/port/uring/uring_port.h"

namespace mercury::echo {
namespace {

constexpr uint64_t kMs = 1'000'000, kSecond = 1'000 * kMs;
constexpr Token kToken = 7;
constexpr uint32_t kSealed =
    wire::kFeatureStreams | wire::kFeatureSeals | wire::kFeatureMoves | wire::kFeatureResets;
constexpr uint32_t kEncrypted = kSealed | wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption;

template <class P>
class Translator {
 public:
  Translator(std::unique_ptr<P> inside, const Endpoint& beyond)
      : inside_(std::move(inside)), beyond_(beyond) {}

  // What comes to where it was seen before is lost from now on.
  void appear_as(std::unique_ptr<P> outside) { outside_ = std::move(outside); }
  Endpoint inside() const { return inside_->info().local; }
  Endpoint outside() const { return outside_->info().local; }

  uint32_t poll(uint64_t now_ns) {
    const uint32_t out = forward(*inside_, *outside_, &host_, beyond_, now_ns);
    return out + forward(*outside_, *inside_, nullptr, host_, now_ns);
  }
  bool answers = true;  // what comes from beyond is let in

 private:
  uint32_t forward(P& from, P& to, Endpoint* source, const Endpoint& target, uint64_t now_ns) {
    std::array<RxFrame, 32> burst;
    const uint32_t count = from.rx_burst(burst, now_ns);
    for (const RxFrame& frame : std::span(burst).first(count)) {
      if (source != nullptr) *source = frame.source;
      TxFrame out;
      if (target.port == 0 || (source == nullptr && !answers) || !to.tx_alloc(out)) continue;
      const auto path = to.open_path(target);
      std::ranges::copy(frame.payload, out.data);
      to.tx_send(out, *path, static_cast<uint32_t>(frame.payload.size()));
      to.tx_flush(now_ns);
      to.close_path(*path);
    }
    if (count > 0) from.rx_release();
    to.tx_flush(now_ns);
    return count;
  }

  std::unique_ptr<P> inside_, outside_;
  Endpoint host_, beyond_;
};

// Virtual time.
struct SimWorld {
  using P = sim::SimPort;
  SimWorld() {
    for (auto& id : ids) id = network.add_host();
  }
  // Host 0 is `a`, 1 `b`, 2 the translator's inside, 3 and above where it is seen.
  std::unique_ptr<P> open(uint8_t host, uint16_t port, Counters& counters) {
    sim::SimPortConfig config;
    config.counters = &counters;
    const Endpoint at{IpAddress::v4(10, 0, 0, static_cast<uint8_t>(host + 1)), port};
    return std::move(*P::create(network, ids[host], at, config));
  }
  uint64_t now_ns() const { return network.now_ns(); }
  void pass(uint64_t until_ns) {
    network.advance_to(std::max(std::min(until_ns, network.next_event_ns()), now_ns() + 1));
  }
  sim::SimNetwork network{{.seed = 1}};
  std::array<sim::HostId, 5> ids;
};

struct UringWorld {
  using P = uring::UringPort;
  std::unique_ptr<P> open(uint8_t host, uint16_t, Counters& counters) {
    const std::string at = "127.0.0." + std::to_string(host + 1) + ":0";
    auto opened = P::create({.local = *Endpoint::parse(at)}, counters);
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return opened ? std::move(*opened) : nullptr;
  }
  uint64_t now_ns() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
  }
  void pass(uint64_t) { std::this_thread::yield(); }
};

template <class World>
struct Lab {
  using P = typename World::P;

  // A session of `a` with `b`, through the translator, that has carried something.
  void open(uint32_t of_a = kSealed, uint32_t of_b = kSealed) {
    for (uint8_t i = 0; i < 2; ++i) start(i);
    translator =
        std::make_unique<Translator<P>>(world.open(2, 7470, nobodys), b().port->info().local);
    translator->appear_as(world.open(3, 7470, nobodys));
    b().features = of_b;
    a().connect(kToken, translator->inside(), of_a);
    ASSERT_TRUE(run([&] { return !a().opened.empty() && !b().opened.empty(); }));
    echo(100'000);
    ASSERT_TRUE(run([&] { return all_back(); }));
  }
  void start(uint8_t i) {
    if (hosts.size() <= i) hosts.resize(i + 1U);
    hosts[i].reset();  // its port, too
    auto counters = std::make_unique<Counters>();
    auto port = world.open(i, 7470, *counters);
    EngineConfig config;
    config.session_seed = i + 1U + 100U * lives;
    config.session.peer_timeout_ns = 4 * kSecond;
    config.reset_keys = {reset_key_of(10 * i + lives), reset_key_of(10 * i + lives - 1)};
    hosts[i] =
        std::make_unique<EchoHost<P>>(std::move(counters), std::move(port), config, StreamConfig());
  }
  EchoHost<P>& a() { return *hosts[0]; }
  EchoHost<P>& b() { return *hosts[1]; }
  uint64_t of_b(Counter counter) { return b().counters->get(counter); }
  void echo(uint64_t bytes) {
    a().done.clear();
    a().send(StartEcho{kToken, 1, bytes});
    ++streams;
  }
  bool all_back() { return !a().done.empty() && a().done[0].intact == streams; }
  // Some of it is under way.
  void echo_until_half(uint64_t bytes) {
    const uint64_t before = of_b(Counter::kRxBytes);
    echo(bytes);
    ASSERT_TRUE(run([&] { return of_b(Counter::kRxBytes) > before + bytes / 4; }));
    ASSERT_FALSE(all_back());
  }
  template <class F>
  bool run(F done, uint64_t limit_ns = 60 * kSecond) {
    const uint64_t end_ns = world.now_ns() + limit_ns;
    while (!done()) {
      const uint64_t now_ns = world.now_ns();
      if (now_ns >= end_ns) return false;
      uint32_t work = translator ? translator->poll(now_ns) : 0;
      for (auto& host : hosts) work += host->poll(now_ns);
      uint64_t next_ns = end_ns;
      for (auto& host : hosts) next_ns = std::min(next_ns, host->engine.next_deadline_ns());
      if (work == 0) world.pass(next_ns);
    }
    return true;
  }
  void run_for(uint64_t ns) {
    run([] { return false; }, ns);
  }

  Counters nobodys;
  World world;
  std::vector<std::unique_ptr<EchoHost<P>>> hosts;
  std::unique_ptr<Translator<P>> translator;
  uint32_t streams = 0;
  uint64_t lives = 1;
};

// --- On any port ---------------------------------------------------------------------------------

template <class World>
struct Moves : testing::Test, Lab<World> {
  void go_to_other_addresses(uint32_t features) {
    this->open(features, features);
    for (uint16_t i = 0; i < 3; ++i) {
      this->echo_until_half(4'000'000);
      const auto host = static_cast<uint8_t>(i % 2 == 0 ? 4 : 3);
      this->translator->appear_as(
          this->world.open(host, static_cast<uint16_t>(7480 + i), this->nobodys));
      EXPECT_TRUE(this->run([&] { return this->all_back(); }));
      EXPECT_EQ(this->of_b(Counter::kPeersMoved), i + 1U);
    }
    EXPECT_TRUE(this->a().closed.empty() && this->b().closed.empty());
  }
};
TYPED_TEST_SUITE_P(Moves);

TYPED_TEST_P(Moves, ASealedSessionGoesOnAtAnotherPort) {
  this->open();
  this->echo_until_half(8'000'000);
  this->translator->appear_as(this->world.open(3, 7471, this->nobodys));
  EXPECT_TRUE(this->run([&] { return this->all_back(); }));
  EXPECT_EQ(this->of_b(Counter::kPeersMoved), 1U);
  EXPECT_GE(this->of_b(Counter::kPathsChallenged), 1U);
  const std::map<Token, Endpoint> now{{this->b().opened[0], this->translator->outside()}};
  EXPECT_EQ(this->b().moved, now);
  EXPECT_TRUE(this->a().moved.empty());
}

TYPED_TEST_P(Moves, AndAtAnotherAddress) { this->go_to_other_addresses(kSealed); }
TYPED_TEST_P(Moves, SoDoesAnEncryptedOne) { this->go_to_other_addresses(kEncrypted); }

REGISTER_TYPED_TEST_SUITE_P(Moves, ASealedSessionGoesOnAtAnotherPort, AndAtAnotherAddress,
                            SoDoesAnEncryptedOne);
INSTANTIATE_TYPED_TEST_SUITE_P(Sim, Moves, SimWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Uring, Moves, UringWorld);

// --- In virtual time -----------------------------------------------------------------------------

struct TimeLab : Lab<SimWorld> {
  void move_to(uint16_t port) { translator->appear_as(world.open(4, port, nobodys)); }
  void watch() { world.network.set_tap(see, this); }
  // Frames from `b` to where the peer is seen now, by type.
  static void see(void* context, uint64_t, const Endpoint& source, const Endpoint& target,
                  std::span<const std::byte> frame) {
    auto& lab = *static_cast<TimeLab*>(context);
    if (source == lab.b().port->info().local && target == lab.translator->outside()) {
      ++lab.sent[static_cast<uint8_t>(frame[3])];
    }
    if (lab.passes_on && target == kElsewhere) {
      lab.world.network.inject(lab.translator->inside(), lab.a().port->info().local, frame);
    }
    if (lab.copies && target == lab.b().port->info().local) {  // before the frame itself
      lab.world.network.inject(kElsewhere, target, frame);
    }
  }
  uint64_t all_sent() const {
    uint64_t count = 0;
    for (const uint64_t of_type : sent) count += of_type;
    return count;
  }
  static constexpr auto kChallenge = static_cast<size_t>(wire::FrameType::kPathChallenge);
  std::array<uint64_t, 256> sent{};
  static inline const Endpoint kElsewhere{IpAddress::v4(10, 0, 0, 77), 7};
  bool copies = false;     // of all that `b` receives, from elsewhere
  bool passes_on = false;  // to `a` what goes there
};
struct MovesInTime : testing::Test, TimeLab {};

TEST_F(MovesInTime, OneThatIsIdleIsFoundByItsSignOfLife) {
  open();
  run_for(100 * kMs);
  move_to(7480);
  run_for(10 * kSecond);
  EXPECT_EQ(of_b(Counter::kPeersMoved), 1U);
  EXPECT_TRUE(a().closed.empty() && b().closed.empty());
  echo(1'000'000);
  EXPECT_TRUE(run([&] { return all_back(); }));
}

TEST_F(MovesInTime, NothingButAChallengeGoesWhereNobodyHasAnswered) {
  open();
  watch();
  echo_until_half(8'000'000);
  translator->answers = false;
  move_to(7480);
  sent = {};
  ASSERT_TRUE(run([&] { return !b().closed.empty(); }));
  EXPECT_GE(sent[kChallenge], 1U);
  EXPECT_EQ(all_sent(), sent[kChallenge]);
  EXPECT_LE(sent[kChallenge], 100U) << "one for each frame that the peer still sent, at most";
  EXPECT_EQ(of_b(Counter::kPeersMoved), 0U);
}

TEST_F(MovesInTime, CopiesOfItsFramesFromElsewhereMoveNobody) {
  open();
  watch();
  copies = true;
  echo(8'000'000);
  EXPECT_TRUE(run([&] { return all_back(); }));
  EXPECT_GE(of_b(Counter::kPathsChallenged), 1U);
  EXPECT_EQ(of_b(Counter::kPeersMoved), 0U);
  EXPECT_TRUE(a().closed.empty() && b().closed.empty());
}

// He is where the peer is heard first, and passes on all that comes to him, in either's name.
TEST_F(MovesInTime, WhoBringsCopiesInFirstLosesTheSessionWhenHeStops) {
  open();
  watch();
  copies = passes_on = true;
  echo(8'000'000);
  ASSERT_TRUE(run([&] { return of_b(Counter::kPeersMoved) == 1; }));
  copies = false;
  EXPECT_TRUE(run([&] { return all_back(); }));
  EXPECT_EQ(of_b(Counter::kPeersMoved), 2U);
  EXPECT_TRUE(a().closed.empty() && b().closed.empty());
}

TEST_F(MovesInTime, WithoutSealsOrTheFeatureTheAddressStays) {
  const uint32_t plain = kSealed & ~uint32_t{wire::kFeatureSeals};
  const uint32_t without = kSealed & ~uint32_t{wire::kFeatureMoves};
  for (const auto& [x, y] :
       {std::pair{plain, plain}, std::pair{without, kSealed}, std::pair{kSealed, without}}) {
    TimeLab lab;
    lab.open(x, y);
    lab.echo_until_half(8'000'000);
    lab.move_to(7480);
    ASSERT_TRUE(lab.run([&] { return !lab.b().closed.empty(); }));
    EXPECT_EQ(lab.of_b(Counter::kPathsChallenged), 0U);
    EXPECT_EQ(lab.b().closed.begin()->second, Errc::kPeerLost);
  }
}

// Grants and the pacer do not count what stays on a host.
TEST_F(MovesInTime, NobodyMovesOntoTheHostOfTheOtherEnd) {
  open();
  echo_until_half(8'000'000);
  translator->appear_as(world.open(1, 7480, nobodys));
  ASSERT_TRUE(run([&] { return !b().closed.empty(); }));
  EXPECT_EQ(of_b(Counter::kPathsChallenged), 0U);
  EXPECT_EQ(of_b(Counter::kPeersMoved), 0U);
}

// The token of before was for the address of before.
TEST_F(MovesInTime, AHostThatIsStartedAgainTellsWhoHasMoved) {
  open();
  echo_until_half(2'000'000);
  move_to(7480);
  ASSERT_TRUE(run([&] { return all_back(); }));
  run_for(kSecond);
  lives = 2;
  start(1);
  const uint64_t before_ns = world.now_ns();
  ASSERT_TRUE(run([&] { return !a().closed.empty(); }));
  EXPECT_EQ(a().counters->get(Counter::kResetsReceived), 1U);
  EXPECT_LT(world.now_ns() - before_ns, 2 * kSecond);
}

// The way over which the peer is seen from now on has a round trip of 400 ms: longer than the
// pauses between the frames of one who hears nothing (loss.h).
TEST_F(MovesInTime, AWayThatIsFarLongerIsFoundTooAndWhileFramesCome) {
  open();
  sim::SimNetwork& network = world.network;
  for (const sim::LinkId link : {network.uplink(world.ids[4]), network.downlink(world.ids[4])}) {
    sim::LinkConfig far = network.config(link);
    far.delay_ns = 200 * kMs;
    network.set_config(link, far);
  }
  echo_until_half(2'000'000);
  move_to(7480);
  EXPECT_TRUE(run([&] { return all_back(); }));
  EXPECT_EQ(of_b(Counter::kPeersMoved), 1U);
  EXPECT_TRUE(a().closed.empty() && b().closed.empty());
}

// `b` measures it before it sends large frames there; `a` does not know that it has moved.
TEST_F(MovesInTime, AWayThatCarriesLessIsMeasured) {
  constexpr uint32_t kWithParts = kSealed | wire::kFeatureParts;
  open(kWithParts, kWithParts);
  sim::Faults narrow;
  narrow.vanish_above_bytes = 1'500;
  world.network.set_faults(world.network.uplink(world.ids[4]), narrow);
  world.network.set_faults(world.network.downlink(world.ids[4]), narrow);
  echo_until_half(2'000'000);
  move_to(7480);
  EXPECT_TRUE(run([&] { return all_back(); }));
  EXPECT_EQ(of_b(Counter::kPeersMoved), 1U);
  EXPECT_EQ(of_b(Counter::kPathsDoubted), 0U);
  EXPECT_GE(a().counters->get(Counter::kPathsDoubted), 1U);
  EXPECT_TRUE(a().closed.empty() && b().closed.empty());
}

// --- The check itself ----------------------------------------------------------------------------

const Endpoint kHere{IpAddress::v4(10, 0, 0, 1), 1}, kThere{IpAddress::v4(10, 0, 0, 1), 2};

Endpoint elsewhere(uint16_t port) { return {IpAddress::v4(10, 0, 0, 9), port}; }

TEST(PathCheckTest, ConfirmsOnceWhoHasTheDataAndIsThere) {
  PathChallenges challenges(1);
  PathCheck check;
  EXPECT_FALSE(check.confirms(kHere, 0));
  const uint64_t data = check.ask(kHere, 10, challenges, kSecond);
  EXPECT_FALSE(check.confirms(kThere, data));
  EXPECT_FALSE(check.confirms(kHere, data ^ 1));
  EXPECT_FALSE(check.confirms(kHere, std::nullopt));
  EXPECT_TRUE(check.confirms(kHere, data));
  EXPECT_FALSE(check.confirms(kHere, data)) << "again";
}

// The answer may take longer than the pauses between the frames that ask.
TEST(PathCheckTest, AnAddressThatIsAskedAgainIsAskedTheSame) {
  PathChallenges challenges(1);
  PathCheck check;
  const uint64_t here = check.ask(kHere, 10, challenges, kSecond);
  const uint64_t there = check.ask(kThere, 11, challenges, 2 * kSecond);
  EXPECT_NE(here, there);
  EXPECT_EQ(check.ask(kHere, 12, challenges, 3 * kSecond), here);
  EXPECT_EQ(check.ask(kThere, 13, challenges, 4 * kSecond), there);
  EXPECT_FALSE(check.confirms(kHere, there));
  EXPECT_TRUE(check.confirms(kHere, here)) << "another was asked since";
  EXPECT_FALSE(check.confirms(kThere, there)) << "it is known where the peer is";
  EXPECT_NE(check.ask(kHere, 14, challenges, 5 * kSecond), here) << "that one has been answered";
}

TEST(PathCheckTest, SoManyAreOpenAndTheOldestGivesWay) {
  PathChallenges challenges(1);
  PathCheck check;
  const uint64_t first = check.ask(kHere, 1, challenges, kSecond);
  const uint64_t second = check.ask(kThere, 2, challenges, 2 * kSecond);
  for (uint16_t i = 0; i < 3; ++i) {
    check.ask(elsewhere(i), uint64_t{3} + i, challenges, (3 + i) * kSecond);
  }
  EXPECT_FALSE(check.confirms(kHere, first));
  EXPECT_TRUE(check.confirms(kThere, second));
}

TEST(PathCheckTest, AFrameIsGoodForOneChallengeAndARoundTripHasOne) {
  PathChallenges challenges(1);
  PathCheck check;
  EXPECT_TRUE(check.may_ask(10, 5 * kMs, kSecond));
  check.ask(kHere, 10, challenges, kSecond);
  EXPECT_FALSE(check.may_ask(10, 5 * kMs, 2 * kSecond)) << "the same frame";
  EXPECT_FALSE(check.may_ask(9, 5 * kMs, 2 * kSecond)) << "an older one";
  EXPECT_FALSE(check.may_ask(11, 5 * kMs, kSecond + 5 * kMs - 1));
  EXPECT_TRUE(check.may_ask(11, 5 * kMs, kSecond + 5 * kMs));
  EXPECT_FALSE(check.may_ask(11, 0, kSecond + PathCheck::kLeastNs - 1));
}

TEST(PathCheckTest, ChallengesAreNeverTheSameAndFollowFromTheSeed) {
  PathChallenges one(1), same(1), other(2);
  const uint64_t first = one.next();
  EXPECT_EQ(first, same.next());
  EXPECT_NE(first, other.next());
  EXPECT_NE(first, one.next());
}

}  // namespace
}  // namespace mercury::echo
