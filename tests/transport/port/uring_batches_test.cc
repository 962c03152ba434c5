// Which frames the uring port sends together, over real sockets.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
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

TEST(UringBatches, NoFrameOvertakesAMoreUrgentOneOfAnotherPath) {
  constexpr uint16_t kUrgent = 1, kBulk = 7;
  Counters counters;
  const auto sender = open("127.0.0.1:0", counters);
  const auto peer = open("127.0.0.1:0", counters);
  const auto first = *sender->open_path(peer->info().local);
  const auto second = *sender->open_path(peer->info().local);
  ASSERT_NE(first, second);
  const auto post = [&](PathId path, uint16_t priority, uint32_t number) {
    send_datagram(*sender, path, priority, number, 1'400);
  };
  uint32_t number = 0;
  post(first, kUrgent, number++);
  post(second, kUrgent, number++);
  for (int i = 0; i < 3; ++i) post(first, kUrgent, number++);
  for (int i = 0; i < 9; ++i) post(first, kBulk, number++);
  sender->tx_flush(0);
  std::array<RxFrame, 32> burst;
  ASSERT_EQ(peer->rx_burst(burst, 0), number);
  std::vector<uint32_t> came;
  for (uint32_t i = 0; i < number; ++i) {
    wire::Be32 word;
    std::memcpy(&word, burst[i].payload.data() + offsetof(wire::DatagramHeader, words),
                sizeof word);
    came.push_back(word.value());
  }
  peer->rx_release();
  EXPECT_EQ(came, (std::vector<uint32_t>{0, 2, 3, 4, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13}));
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
