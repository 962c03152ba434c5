// Which frames the uring port sends together, over real sockets.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tests/transport/port/port_suite.h"
#include "tests/transport/port/uring_lab.h"
#include "transport/port/traffic_classes.h"
#include "transport/wire/header.h"

namespace mercury::uring {
namespace {

using port_suite::holds;
using port_suite::send;

// As where a sum goes to each worker in turn. What left together comes in one buffer.
TEST(UringBatches, FramesToOnePeerLeaveTogetherThoughThoseToOthersAreBetween) {
  constexpr uint32_t kPeers = 3;
  constexpr uint32_t kEach = 8;
  Counters counters;
  const auto sender = open("127.0.0.1:0", counters);
  std::vector<std::unique_ptr<UringPort>> peers;
  std::vector<PathId> paths;
  for (uint32_t peer = 0; peer < kPeers; ++peer) {
    peers.push_back(open("127.0.0.1:0", counters));
    paths.push_back(*sender->open_path(peers.back()->info().local));
  }
  const auto send_by_turns = [&](auto bytes_of) {
    for (uint32_t i = 0; i < kEach; ++i) {
      for (const PathId path : paths) ASSERT_TRUE(send(*sender, path, i, bytes_of(i)));
    }
    sender->tx_flush(0);
  };
  const auto expect_in_order = [&](uint32_t buffers) {
    for (const auto& peer : peers) {
      std::array<RxFrame, 2 * kEach> burst;
      ASSERT_EQ(peer->rx_burst(burst, 0), kEach);
      for (uint32_t i = 0; i < kEach; ++i) {
        EXPECT_TRUE(holds(burst[i].payload, i)) << i;
      }
      EXPECT_EQ(peer->buffers_in_use(), buffers);
      peer->rx_release();
    }
  };
  send_by_turns([](uint32_t) { return 1'000U; });
  expect_in_order(1);
  send_by_turns([](uint32_t i) { return i == 3 ? 500U : 1'000U; });  // a shorter one ends its batch
  expect_in_order(2);
  send_by_turns([](uint32_t i) { return 500U + i; });  // and a longer one goes into none
  expect_in_order(kEach);
}

void send_datagram(UringPort& port, PathId path, uint16_t priority, uint32_t number,
                   uint32_t bytes) {
  TxFrame frame;
  ASSERT_TRUE(port.tx_alloc(frame));
  wire::Header header;
  header.type = wire::FrameType::kDatagram1;
  header.priority = priority;
  header.words[0] = number;
  wire::encode(header, frame.data);
  port.tx_send(frame, path, bytes);
}

// The numbers of the datagrams that have come to a port, and in how many buffers.
struct Came {
  std::vector<uint32_t> numbers;
  uint32_t buffers = 0;
};

Came take(UringPort& port) {
  Came came;
  std::array<RxFrame, 64> burst;
  const uint32_t count = port.rx_burst(burst, 0);
  for (uint32_t i = 0; i < count; ++i) {
    wire::Be32 word;
    std::memcpy(&word, burst[i].payload.data() + offsetof(wire::DatagramHeader, words),
                sizeof word);
    came.numbers.push_back(word.value());
  }
  came.buffers = port.buffers_in_use();
  port.rx_release();
  return came;
}

// One port that sends by several paths to another, which sees in which order all has left.
struct PathsLab {
  explicit PathsLab(size_t count)
      : sender(open("127.0.0.1:0", counters)), peer(open("127.0.0.1:0", counters)) {
    while (paths.size() < count) paths.push_back(*sender->open_path(peer->info().local));
  }
  Counters counters;
  std::unique_ptr<UringPort> sender, peer;
  std::vector<PathId> paths;
};

TEST(UringBatches, SumsThatHaveAPriorityEachLeaveTogether) {
  constexpr uint32_t kEach = 8;
  Counters counters;
  const auto sender = open("127.0.0.1:0", counters);
  std::vector<std::unique_ptr<UringPort>> peers;
  for (uint32_t peer = 0; peer < 4; ++peer) peers.push_back(open("127.0.0.1:0", counters));
  std::vector<PathId> paths;
  for (const auto& peer : peers) paths.push_back(*sender->open_path(peer->info().local));
  for (int flush = 0; flush < 3; ++flush) {  // the frames of one are used again in the next
    for (uint32_t i = 0; i < kEach; ++i) {
      for (const PathId path : paths) {
        send_datagram(*sender, path, static_cast<uint16_t>(5 + i), i, 1'000);
      }
    }
    sender->tx_flush(0);
    uint32_t sends = 0;
    for (const auto& peer : peers) {
      const Came came = take(*peer);
      EXPECT_EQ(came.numbers, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
      sends += came.buffers;
    }
    EXPECT_EQ(sends, 5U) << "one for each peer, and one more for what would go too far ahead";
  }
}

TEST(UringBatches, LittleOvertakesAMoreUrgentFrameOfAnotherPath) {
  constexpr uint16_t kUrgent = 1, kBulk = 7;
  PathsLab lab(2);
  uint32_t number = 0;
  const auto post = [&](size_t path, uint16_t priority) {
    send_datagram(*lab.sender, lab.paths[path], priority, number++, 1'400);
  };
  post(0, kUrgent);
  post(1, kUrgent);
  for (int i = 0; i < 3; ++i) post(0, kUrgent);
  for (int i = 0; i < 20; ++i) post(0, kBulk);
  lab.sender->tx_flush(0);
  std::vector<uint32_t> expected{0, 2, 3, 4};
  while (expected.size() < 4 + 12) expected.push_back(static_cast<uint32_t>(expected.size()) + 1);
  expected.push_back(1);  // behind three as urgent and 16,800 bytes
  while (expected.size() < number) expected.push_back(static_cast<uint32_t>(expected.size()));
  EXPECT_EQ(take(*lab.peer).numbers, expected);
}

// Batches of several paths may go before the same frame.
TEST(UringBatches, WhatOvertakesAFrameIsBoundedForAllPathsTogether) {
  std::mt19937 random(1);
  uint32_t most_bytes = 0;
  PathsLab lab(5);
  struct Sent {
    size_t path;
    uint16_t priority;
    uint32_t bytes;
  };
  for (int flush = 0; flush < 200; ++flush) {
    std::vector<Sent> sent;
    const uint32_t priorities = 1 + random() % 8;
    for (uint32_t number = 0; number < 60; ++number) {
      sent.push_back({random() % lab.paths.size(), static_cast<uint16_t>(random() % priorities),
                      random() % 16 == 0 ? 700U : 1'400U});
      send_datagram(*lab.sender, lab.paths[sent.back().path], sent.back().priority, number,
                    sent.back().bytes);
    }
    lab.sender->tx_flush(0);
    const std::vector<uint32_t> came = take(*lab.peer).numbers;
    ASSERT_EQ(came.size(), sent.size());
    for (size_t at = 0; at < came.size(); ++at) {
      const Sent& frame = sent[came[at]];
      uint32_t bytes = 0;
      for (size_t before = 0; before < at; ++before) {
        const Sent& other = sent[came[before]];
        const bool overtook = came[before] > came[at];
        ASSERT_FALSE(overtook && other.path == frame.path) << "flush " << flush;
        if (overtook && other.priority > frame.priority) bytes += other.bytes;
      }
      most_bytes = std::max(most_bytes, bytes);
    }
  }
  EXPECT_LE(most_bytes, 18'000U);
  EXPECT_GE(most_bytes, 16'000U) << "or this has shown nothing";
}

// Frames of one path and size, of which two are more urgent, leave in their order.
TEST(UringBatches, FramesOfOneClassAloneLeaveTogether) {
  Counters counters;
  auto port = UringPort::create(
      {.local = *Endpoint::parse("127.0.0.1:0"), .classes = *TrafficClasses::parse("16:46")},
      counters);
  ASSERT_TRUE(port) << port.error().message;
  PlainSocket plain((*port)->info().local);
  const PathId path = *(*port)->open_path(plain.local());
  constexpr int kUrgent = 46 << 2 | 2, kBulk = 2;
  const std::array classes{kBulk, kBulk, kUrgent, kUrgent, kBulk};
  for (const int of : classes) send_datagram(**port, path, of == kUrgent ? 15 : 16, 0, 48);
  (*port)->tx_flush(0);
  for (size_t i = 0; i < classes.size(); ++i) EXPECT_EQ(plain.receive_class(), classes[i]) << i;
}

}  // namespace
}  // namespace mercury::uring
