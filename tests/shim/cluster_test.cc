// The whole stack over the simulated network: every sum is exact, whatever the network does.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/seeds.h"
#include "tests/shim/sim_cluster.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"

namespace mercury {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

OpenJob job(bool deterministic = false) {
  OpenJob open;
  open.name = "cluster";
  open.terms.deterministic = deterministic;
  return open;
}

TensorDeclaration tensor(uint32_t number, uint64_t numel, Dtype dtype) {
  TensorDeclaration declaration;
  declaration.tensor = TensorId(number);
  declaration.numel = numel;
  declaration.dtype = dtype;
  declaration.priority = static_cast<uint16_t>(number);
  return declaration;
}

int32_t element(uint64_t seed, uint32_t worker, uint32_t tensor_number, uint32_t round, size_t i) {
  uint64_t x = seed * 1000003 + worker * 7919 + tensor_number * 104729 + round * 611953 + i;
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15;
  return static_cast<int32_t>(x >> 40);
}

// Exchanges `rounds` rounds of all tensors on all workers and checks every element of every sum.
void exchange(SimCluster& cluster, const ClusterConfig& config,
              const std::vector<TensorDeclaration>& tensors, uint32_t rounds, uint64_t limit_ns,
              uint64_t cookie = 0) {
  for (uint32_t round = 1; round <= rounds; ++round) {
    std::vector<uint64_t> waits(config.workers);
    const uint64_t first = cookie + 1;
    for (uint32_t w = 0; w < config.workers; ++w) {
      cookie = first - 1;
      for (const TensorDeclaration& t : tensors) {
        auto* data = reinterpret_cast<int32_t*>(cluster.program(w).memory(t.tensor.value).data());
        for (size_t i = 0; i < t.numel; ++i)
          data[i] = element(config.seed, w, t.tensor.value, round, i);
        cluster.program(w).submit(SubmitOp::kPushPull, t.tensor.value, t.priority, ++cookie);
      }
    }
    const bool ended = cluster.run(
        [&] {
          for (uint32_t w = 0; w < config.workers; ++w) {
            for (uint64_t c = first; c <= cookie; ++c) {
              if (!cluster.program(w).done(c)) return false;
            }
          }
          return true;
        },
        limit_ns);
    ASSERT_TRUE(ended) << "seed " << config.seed << " round " << round << " hangs";
    for (uint32_t w = 0; w < config.workers; ++w) {
      for (uint64_t c = first; c <= cookie; ++c) {
        ASSERT_EQ(cluster.program(w).status(c), Errc::kOk) << "seed " << config.seed;
      }
      for (const TensorDeclaration& t : tensors) {
        const auto* data =
            reinterpret_cast<int32_t*>(cluster.program(w).memory(t.tensor.value).data());
        for (size_t i = 0; i < t.numel; ++i) {
          int32_t sum = 0;
          for (uint32_t v = 0; v < config.workers; ++v) {
            sum += element(config.seed, v, t.tensor.value, round, i);
          }
          ASSERT_EQ(data[i], sum) << "seed " << config.seed << " round " << round << " worker " << w
                                  << " tensor " << t.tensor.value << " element " << i;
        }
      }
    }
  }
}

void run(const ClusterConfig& config, const std::vector<TensorDeclaration>& tensors,
         uint32_t rounds) {
  SimCluster cluster(config);
  const Status opened = cluster.open_job(job(), 20 * kSecond);
  ASSERT_TRUE(opened.ok()) << "seed " << config.seed << ": " << opened.error().message;
  const Status declared = cluster.declare(tensors, 20 * kSecond);
  ASSERT_TRUE(declared.ok()) << "seed " << config.seed << ": " << declared.error().message;
  exchange(cluster, config, tensors, rounds, 60 * kSecond);
  if (testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(cluster.close(30 * kSecond)) << "seed " << config.seed;
}

TEST(Cluster, SumsAreExactOverPathsThatCarryLessThanTheyDid) {
  for (const uint32_t bytes : {1'300U, 3'000U}) {
    ClusterConfig config;
    config.link.mtu_bytes = 9000;
    SimCluster cluster(config);
    ASSERT_TRUE(cluster.open_job(job(), 20 * kSecond).ok());
    const std::vector<TensorDeclaration> tensors{tensor(1, 200'000, Dtype::kI32),
                                                 tensor(2, 1'000, Dtype::kI32)};
    ASSERT_TRUE(cluster.declare(tensors, 20 * kSecond).ok());
    exchange(cluster, config, tensors, 2, 20 * kSecond);
    sim::Faults faults;
    faults.vanish_above_bytes = bytes;
    cluster.network().set_faults(faults);
    exchange(cluster, config, tensors, 3, 60 * kSecond, 1'000);
    EXPECT_GT(cluster.total(Counter::kPartsSent), 0U);
    cluster.network().set_faults(sim::Faults());
    exchange(cluster, config, tensors, 2, 20 * kSecond, 2'000);
    EXPECT_EQ(cluster.total(Counter::kPeersLost), 0U);
    EXPECT_TRUE(cluster.close(20 * kSecond));
  }
}

TEST(Cluster, SumsExactlyOnAQuietNetwork) {
  ClusterConfig config;
  run(config,
      {tensor(0, 1, Dtype::kI32), tensor(1, 5000, Dtype::kI32), tensor(2, 300'001, Dtype::kI32)},
      3);
}

TEST(Cluster, OverIPv6AndSeveralEngines) {
  ClusterConfig config;
  config.ipv6 = true;
  config.workers = 3;
  config.worker_lanes = 2;
  config.server_lanes = 2;
  run(config, {tensor(7, 20'000, Dtype::kI32), tensor(9, 77, Dtype::kI32)}, 3);
}

// Two wire versions meet: workers, who say HELLO, of 2 to 3 and a server of 2 alone, and the other
// way round.
struct Versions {
  int hellos = 0, answers = 0, others = 0;
  wire::Versions said;
  static void look(void* seen, uint64_t, const Endpoint&, const Endpoint&,
                   std::span<const std::byte> frame) {
    static_cast<Versions*>(seen)->look(frame);
  }
  void look(std::span<const std::byte> frame) {
    wire::Header header;
    std::span<const std::byte> payload;
    ASSERT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
    if (header.type == wire::FrameType::kHello) {
      const auto hello = wire::decode_hello(payload);
      ASSERT_TRUE(hello);
      ++hellos;
      said = {hello->version_min, hello->version_max};
    } else if (header.type == wire::FrameType::kHelloAck) {
      const auto answer = wire::decode_hello_ack(payload);
      ASSERT_TRUE(answer);
      ++answers;
      others += answer->version != 2;
    } else {
      others += frame[2] != std::byte{2};
    }
  }
};

ClusterConfig speaking(wire::Versions workers, wire::Versions server) {
  ClusterConfig config;
  config.servers = 1;
  config.server_lane = config.lane;
  config.lane.engine.session.versions = workers;
  config.server_lane->engine.session.versions = server;
  return config;
}

TEST(Cluster, SumsExactlyBetweenHostsOfTwoWireVersionsAndOfTheOlderAlone) {
  for (const uint8_t workers_newest : {uint8_t{3}, uint8_t{2}}) {
    const auto server_newest = static_cast<uint8_t>(5 - workers_newest);
    const ClusterConfig config = speaking({2, workers_newest}, {2, server_newest});
    SimCluster cluster(config);
    Versions seen;
    cluster.network().set_tap(Versions::look, &seen);
    const Status opened = cluster.open_job(job(), 20 * kSecond);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const std::vector<TensorDeclaration> tensors{tensor(0, 1, Dtype::kI32),
                                                 tensor(1, 30'001, Dtype::kI32)};
    ASSERT_TRUE(cluster.declare(tensors, 20 * kSecond).ok());
    exchange(cluster, config, tensors, 3, 20 * kSecond);
    EXPECT_TRUE(cluster.close(20 * kSecond));
    EXPECT_GE(seen.hellos, 4) << "of two workers, to the coordinator and to the server";
    EXPECT_EQ(seen.said.oldest, 2);
    EXPECT_EQ(seen.said.newest, workers_newest);
    EXPECT_GE(seen.answers, 4);
    EXPECT_EQ(seen.others, 0);
  }
}

TEST(Cluster, HostsWithoutAWireVersionInCommonRefuseEachOtherByName) {
  constexpr struct {
    wire::Versions workers, server;
    std::string_view text;
  } kCases[] = {
      {{3, 3}, {2, 2}, "the connecting side speaks wire version 3, the answering side 2"},
      {{2, 2}, {3, 4}, "the connecting side speaks wire version 2, the answering side 3 to 4"},
  };
  for (const auto& [workers, server, text] : kCases) {
    SimCluster cluster(speaking(workers, server));
    const Status opened = cluster.open_job(job(), 20 * kSecond);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, Errc::kVersionMismatch);
    EXPECT_NE(opened.error().message.find(text), std::string::npos) << opened.error().message;
  }
}

// The NICs have room for two frames: what finds none waits, and nothing is sent twice for it.
TEST(Cluster, RetransmitsNothingOnAQuietNetwork) {
  ClusterConfig config;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.open_job(job(), 20 * kSecond).ok());
  const std::vector<TensorDeclaration> tensors{tensor(0, 200'000, Dtype::kI32)};
  ASSERT_TRUE(cluster.declare(tensors, 20 * kSecond).ok());
  exchange(cluster, config, tensors, 2, 60 * kSecond);
  EXPECT_GT(cluster.total(Counter::kTxBackpressure), 0U);
  EXPECT_EQ(cluster.total(Counter::kRetransmits), 0U);
}

// Runs until every program's operation has ended; the statuses, by worker.
std::vector<Errc> outcomes(SimCluster& cluster, const ClusterConfig& config, uint64_t cookie,
                           uint64_t limit_ns) {
  const bool ended = cluster.run(
      [&] {
        for (uint32_t w = 0; w < config.workers; ++w) {
          if (!cluster.program(w).done(cookie)) return false;
        }
        return true;
      },
      limit_ns);
  EXPECT_TRUE(ended) << "an operation waits for ever";
  std::vector<Errc> statuses;
  for (uint32_t w = 0; ended && w < config.workers; ++w) {
    statuses.push_back(cluster.program(w).status(cookie));
  }
  return statuses;
}

// A worker whose host vanishes in mid-exchange: everyone who waits is told within the peer
// time-out.
TEST(Cluster, ALostHostEndsEveryWaitInBoundedTime) {
  ClusterConfig config;
  config.workers = 3;
  config.lane.engine.session.peer_timeout_ns = 2 * kSecond;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.open_job(job(), 20 * kSecond).ok());
  ASSERT_TRUE(cluster.declare({tensor(0, 2'000'000, Dtype::kI32)}, 20 * kSecond).ok());
  for (uint32_t w = 0; w < 3; ++w) cluster.program(w).submit(SubmitOp::kPushPull, 0, 0, 1);
  cluster.run([] { return false; }, kSecond / 1000);
  cluster.network().set_up(cluster.network().uplink(sim::HostId(2)), false);
  cluster.network().set_up(cluster.network().downlink(sim::HostId(2)), false);
  for (Errc status : outcomes(cluster, config, 1, 6 * kSecond)) {
    EXPECT_TRUE(status == Errc::kPeerLost || status == Errc::kPeerLeft) << name_of(status);
  }
  for (uint32_t w = 0; w < 3; ++w) cluster.program(w).submit(SubmitOp::kPushPull, 0, 0, 2);
  for (Errc status : outcomes(cluster, config, 2, kSecond)) EXPECT_NE(status, Errc::kOk);
}

// A program that ends in mid-exchange: its peers hear at once, not after a time-out.
TEST(Cluster, AProgramThatEndsIsToldToItsPeersAtOnce) {
  ClusterConfig config;
  config.workers = 3;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.open_job(job(), 20 * kSecond).ok());
  ASSERT_TRUE(cluster.declare({tensor(0, 2'000'000, Dtype::kI32)}, 20 * kSecond).ok());
  for (uint32_t w = 0; w < 3; ++w) cluster.program(w).submit(SubmitOp::kPushPull, 0, 0, 1);
  bool gone = false;
  cluster.worker_host(2).jobs().client_gone(3, cluster.now_ns(), [&gone] { gone = true; });
  config.workers = 2;  // whom to wait for
  for (Errc status : outcomes(cluster, config, 1, kSecond)) EXPECT_EQ(status, Errc::kPeerLeft);
  EXPECT_TRUE(cluster.run([&gone] { return gone; }, kSecond)) << "the engine keeps its memory";
}

// A worker that has all its sums leaves; what the others' slow links still bring is theirs.
TEST(Cluster, WhoHasASlowLinkGetsItsSumsAfterTheOthersHaveLeft) {
  ClusterConfig config;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.open_job(job(), 20 * kSecond).ok());
  ASSERT_TRUE(cluster.declare({tensor(0, 5'000'000, Dtype::kI32)}, 20 * kSecond).ok());
  cluster.program(1).submit(SubmitOp::kPushPull, 0, 0, 1);
  cluster.run([] { return false; }, kSecond);
  cluster.network().set_rate(cluster.network().downlink(sim::HostId(1)), 1'000'000);  // 20 s
  cluster.program(0).submit(SubmitOp::kPushPull, 0, 0, 1);
  ASSERT_TRUE(cluster.run([&] { return cluster.program(0).done(1); }, kSecond));
  EXPECT_EQ(cluster.program(0).status(1), Errc::kOk);
  EXPECT_FALSE(cluster.program(1).done(1));
  cluster.worker_host(0).jobs().close_job(cluster.client(0), cluster.program(0).slot,
                                          cluster.now_ns(), [] {});
  ASSERT_TRUE(cluster.run([&] { return cluster.program(1).done(1); }, 60 * kSecond));
  EXPECT_EQ(cluster.program(1).status(1), Errc::kOk);
}

// A NIC's link agrees on a rate some time after its start, and on another after its cable was out.
TEST(Cluster, FramesAreReleasedAtTheRateOnWhichTheLinkHasAgreed) {
  ClusterConfig config;
  config.workers = config.servers = 1;
  config.port.tx_queue_bytes = 4 << 20;
  config.port.report_rate = false;
  config.link.mtu_bytes = 1500;
  config.lane.engine.tx_bound_bytes = 32'000;
  SimCluster cluster(config);
  OpenJob request = job();
  request.workers = request.servers = 1;
  ASSERT_TRUE(cluster.open_job(request, 20 * kSecond).ok());
  ASSERT_TRUE(cluster.declare({tensor(0, 2'000'000, Dtype::kI32)}, 20 * kSecond).ok());
  sim::SimPort& port = cluster.worker_host(0).lane(0).port();
  uint64_t cookie = 0;
  const auto most_queued_bytes = [&] {
    uint64_t most = 0;
    cluster.program(0).submit(SubmitOp::kPushPull, 0, 0, ++cookie);
    EXPECT_TRUE(cluster.run(
        [&] {
          most = std::max(most, port.tx_queued_bytes());
          return cluster.program(0).done(cookie);
        },
        20 * kSecond));
    EXPECT_EQ(cluster.program(0).status(cookie), Errc::kOk);
    cluster.run([] { return false; }, kSecond / 10);  // the engine looks again
    return most;
  };
  const uint64_t rate =
      cluster.network().config(cluster.network().uplink(sim::HostId(0))).bytes_per_second;
  constexpr uint64_t kBound = 32'000 + 3 * 1538;  // two frames, and acknowledgements
  EXPECT_GT(most_queued_bytes(), 2 * kBound);
  port.report_rate(rate);
  cluster.run([] { return false; }, kSecond / 10);
  EXPECT_LE(most_queued_bytes(), kBound);
  port.report_rate(0);
  cluster.run([] { return false; }, kSecond / 10);
  EXPECT_GT(most_queued_bytes(), 2 * kBound);
}

// Where each worker's host serves as well, a half of what two workers push never leaves their
// hosts, and so has no part in what their links carry, nor in what may be under way to them.
TEST(Cluster, WhatStaysOnItsHostTakesNothingOfTheLink) {
  ClusterConfig config;
  config.colocated = true;
  config.link.mtu_bytes = 9000;
  SimCluster cluster(config);
  OpenJob request = job();
  ASSERT_TRUE(cluster.open_job(request, 20 * kSecond).ok());
  constexpr uint64_t kNumel = 10'000'000;
  ASSERT_TRUE(cluster.declare({tensor(0, kNumel, Dtype::kI32)}, 20 * kSecond).ok());
  const uint64_t begin_ns = cluster.now_ns();
  for (uint32_t w = 0; w < 2; ++w) cluster.program(w).submit(SubmitOp::kPushPull, 0, 0, 1);
  ASSERT_TRUE(cluster.run([&] { return cluster.program(0).done(1) && cluster.program(1).done(1); },
                          20 * kSecond));
  // Each host sends a half of its tensor to the other, and the other half's sums.
  const sim::LinkId up = cluster.network().uplink(sim::HostId(0));
  const uint64_t rate = cluster.network().config(up).bytes_per_second;
  const uint64_t least_ns = kNumel * 4 * kSecond / rate;
  EXPECT_LT(cluster.now_ns() - begin_ns, least_ns + least_ns / 20);
  EXPECT_EQ(cluster.total(Counter::kRetransmits), 0U);
  EXPECT_TRUE(cluster.close(20 * kSecond));
}

// A server's host has more engines than the others, and so the job uses one of them: how long that
// takes where the link's round trip is much more than may wait before it. Peers of other jobs may
// send to the other engines, and do to some of them.
uint64_t rounds_take_ns(uint32_t other_engines, bool used = false, uint32_t hearing = 0) {
  ClusterConfig config;
  config.workers = 4;
  config.servers = 1;
  config.link.delay_ns = 200'000;
  config.link.mtu_bytes = 9000;
  LaneConfig lane = config.lane;
  lane.engine.link = std::make_shared<SharedLink>();
  config.server_lane = lane;
  std::vector<std::unique_ptr<SharedLink::Place>> others;
  for (uint32_t i = 0; i < other_engines; ++i) {
    others.push_back(std::make_unique<SharedLink::Place>(lane.engine.link));
    others.back()->note_receives(used);
    if (i < hearing) others.back()->note_hears(~uint64_t{0});
  }
  SimCluster cluster(config);
  OpenJob request = job();
  request.workers = 4;
  request.servers = 1;
  EXPECT_TRUE(cluster.open_job(request, 20 * kSecond).ok());
  EXPECT_TRUE(cluster.declare({tensor(0, 5'000'000, Dtype::kI32)}, 20 * kSecond).ok());
  const uint64_t begin_ns = cluster.now_ns();
  for (uint64_t round = 1; round <= 3; ++round) {
    for (uint32_t w = 0; w < 4; ++w) cluster.program(w).submit(SubmitOp::kPushPull, 0, 0, round);
    EXPECT_TRUE(cluster.run(
        [&] {
          for (uint32_t w = 0; w < 4; ++w) {
            if (!cluster.program(w).done(round)) return false;
          }
          return true;
        },
        20 * kSecond));
  }
  return cluster.now_ns() - begin_ns;
}

// Other jobs use the other engines, and compute.
TEST(Cluster, AnEngineIsGrantedWhatPeersDoNotSendToTheOthers) {
  const auto alone_ns = static_cast<double>(rounds_take_ns(0));
  EXPECT_LT(static_cast<double>(rounds_take_ns(7)), alone_ns * 1.05) << "no job uses them";
  EXPECT_LT(static_cast<double>(rounds_take_ns(7, true)), alone_ns * 1.05);
  EXPECT_GT(static_cast<double>(rounds_take_ns(7, true, 7)), alone_ns * 2) << "an eighth";
}

// One seed decides shape and faults of each run.
TEST(Cluster, SumsExactlyWhateverTheNetworkDoes) {
  for_each_seed(1000, [](uint64_t seed) {
    Random random(seed);
    ClusterConfig config = ClusterConfig::drawn(seed, random, 3);
    config.ipv6 = random.chance(0.3);
    config.link.mtu_bytes = random.chance(0.5) ? 1500 : 9000;
    config.link.queue_bytes = random.chance(0.3) ? 64 * 1024 : 1 << 20;
    config.link.faults = ClusterConfig::drawn_faults(random, 80);
    std::vector<TensorDeclaration> tensors;
    for (uint32_t t = 0; t < 1 + random.below(4); ++t) {
      tensors.push_back(tensor(static_cast<uint32_t>(t * 3), 1 + random.below(6000), Dtype::kI32));
    }
    run(config, tensors, 2);
  });
}

}  // namespace
}  // namespace mercury
