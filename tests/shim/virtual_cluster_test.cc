// Hosts in virtual time, by themselves: their lives, their clock, and who looks when.
#include "shim/host/sim/virtual_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "shim/channel/channel.h"
#include "shim/host/sim/job_calls.h"
#include "shim/host/sim/processor.h"

namespace mercury::sim {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

constexpr Look kLooks[] = {Look::kEveryHost, Look::kWoken, Look::kWokenByNumber, Look::kInTurns};

VirtualHostConfig small_host(bool serve, uint64_t frame_cost_ns = 0) {
  VirtualHostConfig config;
  config.frame_cost_ns = frame_cost_ns;
  config.host.lane.engine.max_sessions = 16;
  config.host.lane.engine.max_in_flight_packets = 1024;
  config.host.lane.exchange.sends.scheduler = {8, 16, 256, 4096};
  config.host.lane.exchange.sends.reserved_ranges = 64;
  config.host.policy.serve = serve;
  return config;
}

// A worker and a server, and the worker's program.
class Pair {
 public:
  explicit Pair(Look look, uint64_t frame_cost_ns = 0)
      : cluster(VirtualClusterConfig::seeded(1, look)) {
    for (const bool serve : {false, true}) {
      EXPECT_TRUE(cluster.start(cluster.add_host(small_host(serve, frame_cost_ns))).ok());
    }
  }

  // The worker's program opens a job; what came of it within a second.
  Status open(uint16_t workers = 1) {
    OpenJob request;
    request.name = "pair";
    request.workers = workers;
    request.servers = 1;
    request.rendezvous = {cluster[1].endpoint(0)};
    request.channels = {&engine_};
    request.client_job = 1;
    JobCalls calls(cluster);
    calls.open(0, 1, request, [this](const OpenedJob&) { ++opened; });
    return calls.wait(cluster.now_ns() + kSecond);
  }
  bool opens() { return open() && opened == 1; }

 private:
  std::shared_ptr<ChannelMemory> memory_ = *ChannelMemory::create({64, 64}, false);
  EngineChannel engine_{memory_};

 public:
  int opened = 0;
  VirtualCluster<> cluster;  // before the channel goes
};

TEST(VirtualCluster, OpensJobsWhoeverLooks) {
  for (const Look look : kLooks) {
    Pair pair(look);
    EXPECT_TRUE(pair.opens());
    EXPECT_GT(pair.cluster.total(Counter::kRxFrames), 0U);
  }
}

TEST(JobCalls, TellTheFirstErrorOfAllThatWereCalled) {
  Pair pair(Look::kWoken);
  ASSERT_TRUE(pair.opens());
  OpenJob nameless;
  for (const bool opens_first : {false, true}) {
    JobCalls calls(pair.cluster);
    const auto open = [&] { calls.open(1, 1, nameless, [](const OpenedJob&) {}); };
    if (opens_first) open();
    calls.declare(0, 1, JobSlot(7), {});
    if (!opens_first) open();
    const Status status = calls.wait(pair.cluster.now_ns() + kSecond);
    EXPECT_EQ(status.error().code, opens_first ? Errc::kInvalidArgument : Errc::kNotFound)
        << status.error().message;
    EXPECT_TRUE(calls.wait()) << "nobody is called";
  }
}

TEST(JobCalls, DoNotWaitForeverAndMayBeAnsweredLater) {
  Pair pair(Look::kWoken);
  EXPECT_EQ(pair.open(2).error().code, Errc::kTimedOut) << "nobody is the second worker";
  // The host gives up much later, when the calls are gone.
  (void)pair.cluster.run([] { return false; }, pair.cluster.now_ns() + 60 * kSecond);
  EXPECT_EQ(pair.opened, 0);
}

TEST(VirtualCluster, HostsLookInTheOrderThatIsAskedFor) {
  const std::vector<uint32_t> woken{2, 0, 1}, numbers{0, 1, 2};
  for (const Look look : {Look::kEveryHost, Look::kWoken, Look::kWokenByNumber}) {
    VirtualCluster<> cluster(VirtualClusterConfig::seeded(1, look));
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(cluster.start(cluster.add_host(small_host(false))).ok());
    }
    (void)cluster.run([] { return true; });
    std::vector<uint32_t> looked;
    cluster.after_visit = [&looked](uint32_t host) { looked.push_back(host); };
    for (const uint32_t host : woken) cluster.wake(host);
    (void)cluster.run([] { return true; });
    EXPECT_EQ(looked, look == Look::kWoken ? woken : numbers);
  }
}

TEST(VirtualCluster, IsDecidedByItsConfiguration) {
  for (const Look look : kLooks) {
    uint64_t hashes[2];
    for (uint64_t& hash : hashes) {
      Pair pair(look);
      ASSERT_TRUE(pair.opens());
      hash = pair.cluster.network().trace_hash();
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

TEST(VirtualCluster, FramesThatCostTimeTakeIt) {
  for (const Look look : {Look::kWoken, Look::kWokenByNumber, Look::kInTurns}) {
    Pair free(look), slow(look, 100'000);
    ASSERT_TRUE(free.opens());
    ASSERT_TRUE(slow.opens());
    // At least a HELLO, its answer, and the control messages of both.
    EXPECT_GT(slow.cluster.now_ns(), free.cluster.now_ns() + 4 * 100'000);
  }
}

// A host that works as often as it is told to, and writes down when it was visited.
class Clerk {
 public:
  using Visits = std::vector<std::pair<uint32_t, uint64_t>>;

  Clerk(SimNetwork&, HostId, uint32_t index, Visits& visits) : index_(index), visits_(visits) {}

  Status start() {
    up_ = true;
    return {};
  }
  void crash() { up_ = false; }
  Visit visit(uint64_t now_ns, bool) {
    visits_.emplace_back(index_, now_ns);
    return {.work = work > 0 ? work-- : 0, .next_ns = next_ns};
  }
  uint64_t attend(uint64_t) { return kNever; }
  bool up() const { return up_; }
  bool commands_waiting() const { return false; }
  uint64_t total(Counter) const { return 0; }

  uint32_t work = 0;
  uint64_t next_ns = kNever;

 private:
  const uint32_t index_;
  Visits& visits_;
  bool up_ = false;
};

// A cluster of three.
struct Office {
  explicit Office(Look look, uint64_t seed = 1, uint64_t least_pause_ns = 1)
      : cluster(config(look, seed, least_pause_ns)) {
    for (int i = 0; i < 3; ++i)
      (void)cluster.start(cluster.add(cluster.network().add_host(), visits));
    begin_ns = cluster.now_ns();
  }
  static VirtualClusterConfig config(Look look, uint64_t seed, uint64_t least_pause_ns) {
    VirtualClusterConfig config = VirtualClusterConfig::seeded(seed, look);
    config.least_pause_ns = least_pause_ns;
    return config;
  }
  // Runs for so long; who was visited, and how long after the beginning.
  Clerk::Visits run(uint64_t ns) {
    visits.clear();
    (void)cluster.run([] { return false; }, cluster.now_ns() + ns);
    for (auto& [host, at_ns] : visits) at_ns -= begin_ns;
    return visits;
  }

  Clerk::Visits visits;
  VirtualCluster<Clerk> cluster;
  uint64_t begin_ns = 0;
};

TEST(VirtualCluster, InTurnsWhoWorkedHasAnotherOneAndTheSeedDrawsWhoIsFirst) {
  std::set<std::vector<uint32_t>> seen;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Clerk::Visits visits[2];
    for (Clerk::Visits& found : visits) {
      Office office(Look::kInTurns, seed);
      office.cluster[0].work = office.cluster[2].work = 1;
      office.cluster.wake_all();
      found = office.run(0);
    }
    EXPECT_EQ(visits[0], visits[1]);
    ASSERT_EQ(visits[0].size(), 5U) << "three, and then those two that worked";
    std::vector<uint32_t> hosts;
    for (const auto& [host, at_ns] : visits[0]) hosts.push_back(host);
    EXPECT_EQ((hosts[0] + 1) % 3, hosts[1]);
    EXPECT_EQ((hosts[1] + 1) % 3, hosts[2]);
    EXPECT_EQ((std::set<uint32_t>{hosts[3], hosts[4]}), (std::set<uint32_t>{0, 2}));
    seen.insert(hosts);
  }
  EXPECT_EQ(seen.size(), 3U * 2) << "each is first in some first round, both in some second one";
}

TEST(VirtualCluster, WhereEveryHostLooksAllDoAgainIfOneWorked) {
  Office office(Look::kEveryHost);
  office.cluster[1].work = 1;
  const Clerk::Visits twice{{0, 0}, {1, 0}, {2, 0}, {0, 0}, {1, 0}, {2, 0}};
  EXPECT_EQ(office.run(0), twice);
}

TEST(VirtualCluster, WhoWorksForeverIsStoppedByWhoCountsTheRounds) {
  for (const Look look : {Look::kEveryHost, Look::kInTurns}) {
    Office office(look);
    office.cluster[1].work = ~0U;
    office.cluster.wake(1);
    std::vector<uint32_t> rounds;
    office.cluster.after_round = [&](uint32_t round) {
      rounds.push_back(round);
      return round < 4;
    };
    EXPECT_TRUE(office.cluster.run([] { return true; }));
    EXPECT_EQ(rounds, (std::vector<uint32_t>{1, 2, 3, 4}));
  }
}

TEST(VirtualCluster, HostsThatWantToRunAtOncePauseBetweenMomentsOfTheirOwn) {
  Office office(Look::kInTurns, 1, 1000);
  office.cluster[2].next_ns = 1;  // long ago
  office.cluster.wake(2);
  office.cluster.set_timer(0, office.begin_ns + 1300);
  // The timer's moment is not theirs, yet they look at it, and pause after it.
  EXPECT_EQ(office.run(3500), (Clerk::Visits{{2, 0}, {2, 1000}, {2, 1300}, {2, 2300}, {2, 3300}}));
}

TEST(VirtualCluster, WhoIsDownIsNotVisited) {
  Office office(Look::kInTurns);
  office.cluster[0].next_ns = office.cluster[1].next_ns = office.begin_ns + 500;
  office.cluster.wake_all();
  (void)office.run(0);
  office.cluster.crash(0);
  office.cluster.wake(0);
  office.cluster[1].next_ns = kNever;
  EXPECT_EQ(office.run(kSecond), (Clerk::Visits{{1, 500}}));
}

TEST(VirtualCluster, AHostThatCrashedIsSilentAndStartsAnew) {
  Pair pair(Look::kEveryHost);
  pair.cluster.crash(1);
  EXPECT_FALSE(pair.cluster[1].up());
  EXPECT_FALSE(pair.opens());
  ASSERT_TRUE(pair.cluster.start(1).ok());
  EXPECT_EQ(pair.cluster[1].total(Counter::kRxFrames), 0U) << "another life";
  EXPECT_TRUE(pair.cluster.run([&] { return pair.cluster[1].total(Counter::kRxFrames) > 0; },
                               pair.cluster.now_ns() + 60 * kSecond))
      << "the worker asks again";
}

TEST(VirtualCluster, ADeafControlPlaneHearsLater) {
  Pair pair(Look::kEveryHost);
  const uint64_t until_ns = pair.cluster.now_ns() + kSecond / 2;
  pair.cluster[1].deafen(until_ns);
  EXPECT_TRUE(pair.opens());
  EXPECT_GE(pair.cluster.now_ns(), until_ns);
}

TEST(VirtualCluster, TimersAndLimitsAreExact) {
  VirtualCluster<> cluster({});
  const uint64_t begin_ns = cluster.now_ns();
  std::vector<std::pair<size_t, uint64_t>> heard;
  cluster.on_timer = [&](size_t timer) { heard.emplace_back(timer, cluster.now_ns()); };
  cluster.set_timer(3, begin_ns + 500);
  cluster.set_timer(0, begin_ns + 700);
  cluster.set_timer(1, begin_ns + 500);
  EXPECT_FALSE(cluster.run([] { return false; }, begin_ns + 699));
  const std::vector<std::pair<size_t, uint64_t>> two{{1, begin_ns + 500}, {3, begin_ns + 500}};
  EXPECT_EQ(heard, two);
  EXPECT_EQ(cluster.now_ns(), begin_ns + 500);
  EXPECT_FALSE(cluster.run([] { return false; })) << "nothing happens any more";
  EXPECT_EQ(heard.back(), std::pair(size_t{0}, begin_ns + 700));
}

TEST(Processor, FreeFramesNeverWait) {
  Processor processor(0);
  EXPECT_TRUE(processor.may_work(5, 100, 16));
  processor.worked(5, 100);
  EXPECT_TRUE(processor.may_work(5, 100, 16));
}

TEST(Processor, PaysForCommandsAfterThePassThatCarriesThemOut) {
  for (const uint64_t frame_cost_ns : {0U, 10U}) {
    Processor processor(frame_cost_ns, 1000);
    processor.worked(100, 2, 3);
    EXPECT_EQ(processor.free_ns(), 100 + 2 * frame_cost_ns + 3000);
    EXPECT_FALSE(processor.may_work(processor.free_ns() - 1, 0, 16));
    EXPECT_TRUE(processor.may_work(processor.free_ns(), 0, 16));
  }
}

TEST(Processor, PaysForWhatWaitsBeforeAPassAndForTheRestAfterIt) {
  Processor processor(10);
  EXPECT_TRUE(processor.may_work(100, 0, 16)) << "nothing waits: it may send";
  processor.worked(100, 3);
  EXPECT_FALSE(processor.may_work(129, 4, 16));
  EXPECT_EQ(processor.free_ns(), 130U);
  EXPECT_FALSE(processor.may_work(130, 4, 16)) << "four are received first";
  EXPECT_EQ(processor.free_ns(), 170U);
  EXPECT_FALSE(processor.may_work(169, 9, 16));
  EXPECT_TRUE(processor.may_work(170, 9, 16)) << "what came meanwhile is not waited for";
  processor.worked(170, 9 + 2);
  EXPECT_EQ(processor.free_ns(), 170U + (11 - 4) * 10);
  EXPECT_FALSE(processor.may_work(240, 100, 16));
  EXPECT_EQ(processor.free_ns(), 240U + 16 * 10) << "no more than a pass receives";
}

}  // namespace
}  // namespace mercury::sim
