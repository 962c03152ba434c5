// Whole ports over net_ring: no root, no hugepages, time as the test says.
#include <gtest/gtest.h>
#include <poll.h>
#include <rte_ethdev.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/port/ethdev/ring_ports.h"
#include "transport/port/ethdev/ethdev_port.h"

namespace mercury::ethdev {
namespace {

TEST_F(RingPort, ResolvesNeighboursAndCarriesBothFamilies) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  for (const Endpoint& to : {b_->v4(), b_->v6()}) {
    const PathId path = ready_path(port, to);
    const uint32_t largest = port.path_max_payload(path);
    EXPECT_EQ(largest, to.ip.is_v4() ? 1472u : 1452u);
    seen_.clear();
    sources_.clear();
    EXPECT_TRUE(send(port, path, "hello"));
    EXPECT_TRUE(send(port, path, std::string(largest, 'x')));
    EXPECT_TRUE(send(port, path, ""));
    for (int i = 0; i < 3; ++i) pass();
    EXPECT_EQ(seen_, (std::vector<std::string>{"hello", std::string(largest, 'x'), ""}));
    EXPECT_EQ(sources_[0], (to.ip.is_v4() ? a_->v4() : a_->v6()));
  }
  EXPECT_EQ(b_->count(Counter::kDropBadIp), 0u);
}

// Whoever sends a frame gets his answer where it came from, whatever address he wrote into it:
// nobody is asked who has that, and nothing is kept of him.
TEST_F(RingPort, AnAnswerGoesBackTheWayThatTheFrameCame) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  EthdevPort& other = *b_->ports[0];
  for (const Endpoint& to : {b_->v4(), b_->v6()}) {
    EXPECT_TRUE(send(port, ready_path(port, to), "question"));
    now_ += kMs;
    port.tx_flush(now_);
    RxFrame burst[64];
    uint32_t count = 0;
    while ((count = other.rx_burst(burst, now_)) == 0) {
    }
    const RxFrame question = burst[count - 1];
    const ReturnWay way = other.return_way(question);
    EXPECT_EQ(way.opaque, a_->device->local().mac.packed());
    other.rx_release();
    for (uint32_t i = 0; i < 2 * Neighbours::kMaxEntries; ++i) {  // of which none is a neighbour
      Endpoint stranger = question.source;
      stranger.ip.bytes[14] = static_cast<uint8_t>(i >> 8);
      stranger.ip.bytes[15] = static_cast<uint8_t>(i);
      if (stranger.ip == to.ip) continue;
      const auto path = other.open_answer_path(stranger, way);
      ASSERT_TRUE(path) << path.error().message;
      other.close_path(*path);
    }
    const auto answer = other.open_answer_path(question.source, way);
    ASSERT_TRUE(answer);
    EXPECT_TRUE(other.path_ready(*answer));
    seen_.clear();
    EXPECT_TRUE(send(other, *answer, "answer"));
    other.close_path(*answer);
    for (int i = 0; i < 3; ++i) pass();
    EXPECT_EQ(seen_, std::vector<std::string>{"answer"});
    EXPECT_EQ(b_->count(Counter::kDropNeighbor), 0U);
  }
}

// A peer that has not shown that it is at its address costs no neighbour. When it has, frames go on
// at once, and to where its neighbour says that it is.
TEST_F(RingPort, APathIsTentativeUntilItsPeerHasShownItself) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  Neighbours& neighbours = a_->device->neighbours();
  const ReturnWay way{b_->device->local().mac.packed()};
  const ReturnWay elsewhere{MacAddress{{2, 0, 0, 0, 0, 9}}.packed()};
  for (const Endpoint& to : {b_->v4(), b_->v6()}) {
    const uint32_t known = neighbours.size();
    const PathId path = *port.open_tentative_path(to, way);
    const PathId wrong = *port.open_tentative_path(to, elsewhere);
    for (int i = 0; i < 100; ++i) pass();
    EXPECT_EQ(neighbours.size(), known);
    EXPECT_TRUE(port.path_ready(path));
    seen_.clear();
    EXPECT_TRUE(send(port, path, "answer"));
    EXPECT_TRUE(send(port, wrong, "nobody hears it"));
    port.settle_path(path);
    EXPECT_TRUE(port.path_ready(path));
    EXPECT_TRUE(send(port, path, "first"));
    pass();
    EXPECT_EQ(seen_, (std::vector<std::string>{"answer", "first"}));
    EXPECT_EQ(neighbours.size(), known + 1);
    port.settle_path(wrong);
    for (int i = 0; i < 100; ++i) pass();
    seen_.clear();
    EXPECT_TRUE(send(port, path, "later"));
    EXPECT_TRUE(send(port, wrong, "found"));
    pass();
    EXPECT_EQ(seen_, (std::vector<std::string>{"later", "found"}));
    port.close_path(path);
    port.close_path(wrong);
  }
  EXPECT_EQ(a_->count(Counter::kDropNeighbor), 0U);
}

// Where nobody can be asked for a peer at first, its way is looked for again.
TEST_F(RingPort, APathThatFindsNoNeighbourSettlesLater) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  Neighbours& neighbours = a_->device->neighbours();
  const PathId path = *port.open_tentative_path(b_->v4(), {b_->device->local().mac.packed()});
  std::vector<PathId> others;
  for (uint32_t i = 0; i < Neighbours::kMaxEntries; ++i) {
    const auto peer = *IpAddress::parse("fd00::1:" + std::to_string(i));
    others.push_back(*port.open_path({peer, 7470}));
  }
  port.settle_path(path);
  EXPECT_TRUE(neighbours.would_add_host(b_->v4().ip)) << "there is no room for it";
  EXPECT_TRUE(send(port, path, "first"));
  pass();
  EXPECT_EQ(seen_, std::vector<std::string>{"first"});
  port.close_path(others.front());
  for (int i = 0; i < 2'500; ++i) pass();  // ms
  EXPECT_FALSE(neighbours.would_add_host(b_->v4().ip));
  seen_.clear();
  EXPECT_TRUE(send(port, path, "later"));
  pass();
  EXPECT_EQ(seen_, std::vector<std::string>{"later"});
}

// Whoever writes a group's address, or none, as his own has no answer, and nobody is asked for him.
TEST_F(RingPort, AFrameFromNoHostsAddressHasNoWayBack) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  for (const Endpoint& to : {b_->v4(), b_->v6()}) {
    EXPECT_FALSE(port.open_tentative_path(to, {}));
    EXPECT_FALSE(port.open_answer_path(to, {}));
  }
  EXPECT_EQ(a_->device->neighbours().size(), 0U);
}

TEST_F(RingPort, DropsToAnUnresolvedNeighbourUnderItsCounter) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  const auto path = port.open_path({IpAddress::v4(10, 0, 0, 77), 7470});
  ASSERT_TRUE(path);
  EXPECT_FALSE(port.path_ready(*path));
  EXPECT_TRUE(send(port, *path, "nobody"));
  EXPECT_EQ(a_->count(Counter::kDropNeighbor), 1u);
}

TEST_F(RingPort, EachEngineKnowsTheLinksRate) {
  open(2, 1);
  EXPECT_EQ(a_->device->link_bytes_per_second(), kRate);
  for (const auto& port : a_->ports) EXPECT_EQ(port->link_bytes_per_second(), kRate);
}

// The device does not say when a frame came: since its queue was empty.
// However many paths lead to a peer, the kernel would be asked once.
TEST_F(RingPort, TheWayToAPeerIsSoughtOnceForAllSourcePorts) {
  open(1, 1, 16);
  EthdevPort& port = *a_->ports[0];
  const Neighbours& neighbours = a_->device->neighbours();
  for (const IpAddress& nobody :
       {IpAddress::v4(10, 0, 0, 77), *IpAddress::parse("fd00::77"), b_->device->local().v4}) {
    const bool answers = nobody == b_->device->local().v4;
    const uint64_t before = neighbours.ways_sought();
    const PathId own = *port.open_path({nobody, 7470});
    std::vector<PathId> paths{own};
    for (uint16_t source = 0; source < 15; ++source) {
      paths.push_back(*port.open_path_from(own, source));
    }
    EXPECT_EQ(neighbours.ways_sought() - before, 1U);
    for (int i = 0; i < 2'500; ++i) pass();  // ms
    const uint64_t again = neighbours.ways_sought() - before - 1;
    EXPECT_LE(again, answers ? 1U : 3U) << "once a second, of who does not answer: routes change";
    EXPECT_GE(again, answers ? 0U : 2U);
    // The last to be closed still had its neighbour.
    for (const PathId path : paths) EXPECT_EQ(port.path_ready(path), answers);
    port.close_path(own);
    for (size_t i = 1; i < paths.size(); ++i) {
      EXPECT_EQ(port.path_ready(paths[i]), answers);
      port.close_path(paths[i]);
    }
  }
}

TEST_F(RingPort, InATickFewOtherWaysAreSought) {
  constexpr uint32_t kSilent = 100;
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  const Neighbours& neighbours = a_->device->neighbours();
  for (uint8_t i = 0; i < kSilent; ++i) {
    ASSERT_TRUE(port.open_path({IpAddress::v4(10, 0, 0, static_cast<uint8_t>(100 + i)), 7470}));
  }
  const uint64_t first = neighbours.ways_sought();
  for (int ms = 0; ms < 2'500; ++ms) {
    const uint64_t before = neighbours.ways_sought();
    pass();
    ASSERT_LE(neighbours.ways_sought() - before, Neighbours::kAskedPerTick);
  }
  EXPECT_GE(neighbours.ways_sought() - first, 2 * kSilent) << "of all, about once a second";
  EXPECT_LE(neighbours.ways_sought() - first, 3 * kSilent);
}

TEST_F(RingPort, SaysHowLongAFrameHasWaitedAtMost) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  EthdevPort& peer = *b_->ports[0];
  const PathId path = ready_path(port, b_->v4());
  RxFrame burst[64];
  const auto receive = [&](uint64_t at_ns, uint32_t most) {
    const uint32_t count = peer.rx_burst(std::span(burst).first(most), at_ns);
    peer.rx_release();
    return count;
  };
  while (receive(now_, 64) > 0) continue;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(send(port, path, "x"));
  port.tx_flush(now_);
  EXPECT_EQ(receive(now_ + 5 * kMs, 4), 4U);
  EXPECT_TRUE(burst[0].at_most);
  EXPECT_EQ(burst[3].waited_ns, 5 * kMs);
  EXPECT_EQ(receive(now_ + 7 * kMs, 4), 2U);  // which were there all the time
  EXPECT_EQ(burst[1].waited_ns, 7 * kMs);
  EXPECT_TRUE(send(port, path, "x"));
  port.tx_flush(now_);
  EXPECT_EQ(receive(now_ + 8 * kMs, 4), 1U);
  EXPECT_EQ(burst[0].waited_ns, kMs);
  EXPECT_TRUE(send(port, path, "x"));
  port.tx_flush(now_);
  EXPECT_EQ(receive(now_ + 8 * kMs + 1'000, 4), 1U);  // a pass that found nothing before it
  EXPECT_FALSE(burst[0].at_most);
  EXPECT_EQ(burst[0].waited_ns, 0U);
}

TEST_F(RingPort, RefusesPathsThatLeadNowhere) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  EXPECT_FALSE(port.open_path({IpAddress::v4(192, 0, 2, 1), 7470}));  // no gateway
  EXPECT_FALSE(port.open_path({IpAddress::v4(224, 0, 0, 1), 7470}));
  EXPECT_FALSE(port.open_path({IpAddress::v4(10, 0, 0, 2), 0}));
  EXPECT_FALSE(port.open_path({IpAddress{}, 7470}));
  EXPECT_FALSE(port.open_path(a_->v4(5)));  // this host has no such engine
}

// Those of each engine behind the last engine's own, none twice, and nobody hears there.
TEST_F(RingPort, FramesLeaveFromSourcePorts) {
  open(2, 2, 3);
  EXPECT_EQ(a_->ports[0]->info().source_ports, (PortRange{7472, 2}));
  EXPECT_EQ(a_->ports[1]->info().source_ports, (PortRange{7474, 2}));
  EXPECT_EQ(b_->ports[0]->info().source_ports, PortRange{});
  for (uint16_t engine = 0; engine < 2; ++engine) {
    EthdevPort& port = *a_->ports[engine];
    for (const Endpoint& to : {b_->v4(), b_->v6()}) {
      const PathId own = ready_path(port, to);
      EXPECT_FALSE(port.open_path_from(own, 2));
      for (uint16_t source = 0; source < 2; ++source) {
        const auto path = port.open_path_from(own, source);
        ASSERT_TRUE(path && port.path_ready(*path));
        seen_.clear();
        sources_.clear();
        EXPECT_TRUE(send(port, *path, "hello"));
        for (int i = 0; i < 3; ++i) pass();
        ASSERT_EQ(seen_, std::vector<std::string>{"hello"});
        Endpoint from = to.ip.is_v4() ? a_->v4() : a_->v6();
        from.port = static_cast<uint16_t>(7472 + 2 * engine + source);
        EXPECT_EQ(sources_[0], from);
        port.close_path(*path);
        seen_.clear();
        EXPECT_TRUE(send(*b_->ports[0], ready_path(*b_->ports[0], from), "back"));
        for (int i = 0; i < 3; ++i) pass();
        EXPECT_TRUE(seen_.empty());
      }
    }
  }
  EXPECT_EQ(a_->count(Counter::kDropNotMercury), 8U);
  EXPECT_EQ(b_->count(Counter::kDropBadIp), 0U);
}

TEST_F(RingPort, ReusesClosedPaths) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  const auto first = port.open_path(b_->v4());
  port.close_path(*first);
  port.close_path(*first);  // closing twice frees once
  const auto second = port.open_path(b_->v6());
  const auto third = port.open_path(b_->v4());
  EXPECT_EQ(first->value, second->value);
  EXPECT_NE(second->value, third->value);
}

TEST_F(RingPort, EnginesWithoutAQueueAreServedByTheOwner) {
  open(3, 1);
  for (uint16_t from = 0; from < 3; ++from) {
    for (uint16_t to = 0; to < 3; ++to) {
      EthdevPort& port = *a_->ports[from];
      const PathId path = ready_path(port, b_->v4(to));
      seen_.clear();
      sources_.clear();
      EXPECT_TRUE(send(port, path, "x"));
      for (int i = 0; i < 4; ++i) pass();
      ASSERT_EQ(seen_.size(), 1u);
      EXPECT_EQ(sources_[0], a_->v4(from));
    }
  }
  EXPECT_EQ(b_->count(Counter::kHandoffs), 6u);  // to engines 1 and 2, from three each
}

TEST_F(RingPort, HandOffToAStuckEngineIsDroppedUnderItsCounter) {
  open(2, 1);
  const PathId path = ready_path(*a_->ports[0], b_->v4(1));
  for (int round = 0; round < 2000; ++round) {
    EXPECT_TRUE(send(*a_->ports[0], path, "x"));
    pass(b_->ports[1].get());
  }
  EXPECT_GT(b_->count(Counter::kDropHandoffFull), 0u);
  EXPECT_EQ(b_->count(Counter::kDropHandoffFull) + b_->count(Counter::kHandoffs), 2000u);
}

TEST_F(RingPort, LoopsToItsOwnEngines) {
  open(2, 1);
  for (uint16_t to = 0; to < 2; ++to) {
    for (const Endpoint& self : {a_->v4(to), a_->v6(to)}) {
      const PathId path = ready_path(*a_->ports[0], self);
      seen_.clear();
      EXPECT_TRUE(send(*a_->ports[0], path, "to myself"));
      for (int i = 0; i < 2; ++i) pass();
      EXPECT_EQ(seen_, std::vector<std::string>{"to myself"});
    }
  }
}

TEST_F(RingPort, KeepsOrderWhenTheDeviceIsFull) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  const PathId path = ready_path(port, b_->v4());
  seen_.clear();
  uint32_t sent = 0;
  bool refused = false;
  for (int round = 0; round < 4000; ++round) {  // nobody receives
    if (send(port, path, std::to_string(sent))) {
      ++sent;
    } else {
      refused = true;
    }
    port.tx_flush(now_);
  }
  EXPECT_TRUE(refused);
  EXPECT_GT(sent, 1000u);
  for (int i = 0; i < 100; ++i) pass();
  ASSERT_EQ(seen_.size(), sent);
  for (uint32_t i = 0; i < sent; ++i) ASSERT_EQ(seen_[i], std::to_string(i));
}

TEST_F(RingPort, WhatWaitsWhenTheLinkGoesDownIsDroppedUnderItsCounter) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  const PathId path = ready_path(port, b_->v4());
  ASSERT_EQ(rte_eth_dev_set_link_down(a_->device->dpdk_port()), 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(send(port, path, "lost"));
  pass();
  EXPECT_FALSE(port.path_ready(path));
  EXPECT_EQ(a_->count(Counter::kDropTxFull), 3u);
  ASSERT_EQ(rte_eth_dev_set_link_up(a_->device->dpdk_port()), 0);
  pass();
  seen_.clear();
  EXPECT_TRUE(send(port, path, "carried"));
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_EQ(seen_, std::vector<std::string>{"carried"});
  EXPECT_EQ(a_->count(Counter::kDropTxFull), 3u);
}

TEST_F(RingPort, SharedPayloadReachesManyPeersAndIsReleased) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  const PathId v4 = ready_path(port, b_->v4());
  const PathId v6 = ready_path(port, b_->v6());
  const std::string body(1000, 'p');
  PayloadPin pin;
  EXPECT_FALSE(port.pin_busy(pin));
  seen_.clear();
  for (const PathId path : {v4, v6}) {
    TxFrame frame;
    ASSERT_TRUE(port.tx_alloc(frame));
    std::memcpy(frame.data, "head:", 5);
    port.tx_send_shared(frame, 5, path, std::as_bytes(std::span(body)), pin);
  }
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_FALSE(port.pin_busy(pin));
  EXPECT_EQ(seen_, std::vector<std::string>(2, "head:" + body));
}

TEST_F(RingPort, CancelledFramesLeaveRoom) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  for (uint32_t i = 0; i < 10 * EthdevPort::kPending; ++i) {
    TxFrame frame;
    ASSERT_TRUE(port.tx_alloc(frame));
    port.tx_cancel(frame);
  }
  std::vector<TxFrame> frames(EthdevPort::kPending);
  for (TxFrame& frame : frames) ASSERT_TRUE(port.tx_alloc(frame));
  TxFrame one_too_many;
  EXPECT_FALSE(port.tx_alloc(one_too_many));
  for (TxFrame& frame : frames) port.tx_cancel(frame);
}

TEST_F(RingPort, DoesNotSleepOnWaitingFramesAndLosesNone) {
  open(1, 1);
  EthdevPort& port = *a_->ports[0];
  EthdevPort& peer = *b_->ports[0];
  const PathId path = ready_path(port, b_->v4());
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_TRUE(peer.prepare_sleep());
  seen_.clear();
  EXPECT_TRUE(send(port, path, "wake"));
  port.tx_flush(now_);
  EXPECT_FALSE(peer.prepare_sleep());
  EXPECT_FALSE(peer.prepare_sleep());  // still not: it holds the frame
  drive(peer);
  EXPECT_EQ(seen_, std::vector<std::string>{"wake"});
  EXPECT_EQ(peer.wait_fd(), -1);  // net_ring has nothing to wait on
}

TEST_F(RingPort, HandOffRingsTheDoorbellOfASleeper) {
  open(2, 1);
  const PathId path = ready_path(*a_->ports[0], b_->v4(1));
  for (int i = 0; i < 3; ++i) pass();
  EthdevPort& sleeper = *b_->ports[1];
  ASSERT_GE(sleeper.wait_fd(), 0);
  ASSERT_TRUE(sleeper.prepare_sleep());
  pollfd wait{sleeper.wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
  seen_.clear();
  EXPECT_TRUE(send(*a_->ports[0], path, "ring"));
  a_->ports[0]->tx_flush(now_);
  drive(*b_->ports[0]);
  EXPECT_EQ(::poll(&wait, 1, 1000), 1);
  drive(sleeper);
  EXPECT_EQ(seen_, std::vector<std::string>{"ring"});
  EXPECT_EQ(::poll(&wait, 1, 0), 0);  // the bell is quiet again
}

// Every engine of both hosts sends to every engine of the other, each on a thread of its own.
uint64_t real_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

TEST_F(RingPort, EnginesOnThreadsLoseNothing) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "DPDK's libraries are not instrumented: every frame they pass on looks like a race";
#endif
  open(3, 1);
  constexpr uint64_t kFrames = 3000;  // per engine
  std::atomic<uint64_t> received{0};
  std::atomic<bool> wrong{false};
  const auto engine = [&](Side& side, Side& peer, uint16_t number) {
    EthdevPort& port = *side.ports[number];
    std::vector<PathId> paths;
    for (uint16_t to = 0; to < 3; ++to) paths.push_back(*port.open_path(peer.v4(to)));
    uint64_t sent = 0;
    // Real time: a made-up one would let neighbours expire while a thread waits for its core.
    const uint64_t start = real_ns();
    for (uint64_t now = start; received.load() < 6 * kFrames && now < start + 60'000 * kMs;
         now = real_ns()) {
      RxFrame burst[32];
      const uint32_t count = port.rx_burst(burst, now);
      for (const RxFrame& frame : std::span(burst, count)) {
        uint64_t words[2];
        if (frame.payload.size() != sizeof(words)) wrong = true;
        std::memcpy(words, frame.payload.data(), sizeof(words));
        if (words[0] != ~words[1]) wrong = true;
      }
      port.rx_release();
      received.fetch_add(count);
      port.tick(now);
      // At most as many in flight as every ring on the way holds: so nothing may be lost.
      const PathId path = paths[sent % 3];
      TxFrame frame;
      if (sent < kFrames && sent * 6 < received.load() + 600 && port.path_ready(path) &&
          port.tx_alloc(frame)) {
        const uint64_t words[2] = {sent, ~sent};
        std::memcpy(frame.data, words, sizeof(words));
        port.tx_send(frame, path, sizeof(words));
        ++sent;
      }
      port.tx_flush(now);
      if (count == 0) std::this_thread::yield();
    }
  };
  std::vector<std::thread> threads;
  for (uint16_t number = 0; number < 3; ++number) {
    threads.emplace_back([&, number] { engine(*a_, *b_, number); });
    threads.emplace_back([&, number] { engine(*b_, *a_, number); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
  EXPECT_EQ(received.load(), 6 * kFrames);
  EXPECT_EQ(a_->count(Counter::kDropHandoffFull) + b_->count(Counter::kDropHandoffFull), 0u);
}

TEST(RingDevice, HasTwoEndsOnly) {
  Side first("crowded", 1, 1, 1);
  Side second("crowded", 2, 1, 1);
  EthdevConfig config = first.device->config();
  const auto third = Device::create(config);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, Errc::kBusy);
}

TEST(RingDevice, PciCannotJoinLater) {
  Side first("before_pci", 1, 1, 1);
  EthdevConfig config;
  config.kind = DeviceKind::kPci;
  config.device = "0000:03:00.0";
  config.v4 = LocalAddress{IpAddress::v4(10, 0, 0, 1), 24, {}};
  const auto device = Device::create(config);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Errc::kConfig);
}

}  // namespace
}  // namespace mercury::ethdev
