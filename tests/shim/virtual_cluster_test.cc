// Hosts in virtual time, by themselves: their lives, their clock, and who looks when.
#include "shim/host/sim/virtual_cluster.h"

#include <gtest/gtest.h>

#include <vector>

#include "shim/channel/channel.h"
#include "shim/host/sim/job_calls.h"
#include "shim/host/sim/processor.h"

namespace mercury::sim {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

VirtualHostConfig small_host(bool serve) {
  VirtualHostConfig config;
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
  explicit Pair(Look look, uint64_t frame_cost_ns = 0) : cluster(config(look, frame_cost_ns)) {
    for (const bool serve : {false, true}) {
      EXPECT_TRUE(cluster.start(cluster.add_host(small_host(serve))).ok());
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

  static VirtualClusterConfig config(Look look, uint64_t frame_cost_ns) {
    VirtualClusterConfig config;
    config.look = look;
    config.frame_cost_ns = frame_cost_ns;
    return config;
  }

 private:
  std::shared_ptr<ChannelMemory> memory_ = *ChannelMemory::create({64, 64}, false);
  EngineChannel engine_{memory_};

 public:
  int opened = 0;
  VirtualCluster<> cluster;  // before the channel goes
};

TEST(VirtualCluster, OpensJobsWhoeverLooks) {
  for (const Look look : {Look::kEveryHost, Look::kWoken, Look::kWokenByNumber}) {
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
    VirtualCluster<> cluster(Pair::config(look, 0));
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
  uint64_t hashes[2];
  for (uint64_t& hash : hashes) {
    Pair pair(Look::kWoken);
    ASSERT_TRUE(pair.opens());
    hash = pair.cluster.network().trace_hash();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(VirtualCluster, FramesThatCostTimeTakeIt) {
  Pair free(Look::kWoken), slow(Look::kWoken, 100'000);
  ASSERT_TRUE(free.opens());
  ASSERT_TRUE(slow.opens());
  // At least a HELLO, its answer, and the control messages of both.
  EXPECT_GT(slow.cluster.now_ns(), free.cluster.now_ns() + 4 * 100'000);
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
  pair.cluster.deafen(1, until_ns);
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
