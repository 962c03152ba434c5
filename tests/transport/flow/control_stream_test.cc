#include "transport/flow/control_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace mercury {
namespace {

using Bytes = std::vector<std::byte>;

Bytes pattern(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

TEST(ControlStream, CarriesMessagesInOrderWhateverIsLostOrReordered) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ControlSender sender;
    ControlReceiver receiver;
    std::vector<Bytes> messages;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{200'000}, size_t{37}, size_t{1183},
                               kMaxControlMessageBytes, size_t{5}}) {
      messages.push_back(pattern(bytes, seed + static_cast<uint32_t>(bytes)));
      ASSERT_TRUE(sender.push(messages.back()));
    }
    struct Frame {
      StreamSender::Segment segment;
      Bytes bytes;
    };
    std::vector<Frame> flying;
    size_t received = 0;
    while (!sender.idle()) {
      for (int i = 0; i < 20; ++i) {
        const auto segment = sender.next();
        if (!segment) break;
        flying.push_back({*segment, Bytes(segment->bytes)});
        sender.read(*segment, flying.back().bytes.data());
        sender.on_sent(*segment);
      }
      ASSERT_FALSE(flying.empty());
      std::shuffle(flying.begin(), flying.end(), random);
      const Frame frame = flying.back();
      flying.pop_back();
      if (random() % 5 == 0) {
        sender.on_lost(frame.segment.number);
        continue;
      }
      if (random() % 10 == 0) flying.push_back(frame);  // duplicated; its second ack does nothing
      ASSERT_TRUE(receiver.on_bytes(frame.segment.offset, frame.bytes));
      sender.on_acked(frame.segment.number);
      Bytes message;
      while (receiver.next_message(message) == ControlReceiver::Next::kMessage) {
        ASSERT_LT(received, messages.size());
        ASSERT_EQ(message, messages[received]);
        ++received;
      }
    }
    EXPECT_EQ(received, messages.size());
    EXPECT_EQ(sender.in_flight_bytes(), 0U);
  }
}

TEST(ControlStream, SmallMessagesShareASegmentUntilItIsSent) {
  ControlSender sender;
  ASSERT_TRUE(sender.push(pattern(10, 1)));
  ASSERT_TRUE(sender.push(pattern(10, 2)));
  EXPECT_EQ(sender.next()->bytes, 28U);
  const uint32_t first = sender.next()->number;
  sender.on_sent(*sender.next());
  ASSERT_TRUE(sender.push(pattern(10, 3)));
  EXPECT_EQ(sender.next()->offset, 28U);
  sender.on_lost(first);
  EXPECT_EQ(sender.next()->offset, 0U);
  EXPECT_EQ(sender.next()->bytes, 28U) << "what was sent keeps its length";
}

TEST(ControlStream, BoundsWhatWaits) {
  ControlSender sender;
  const Bytes message = pattern(kMaxControlMessageBytes, 1);
  int pushed = 0;
  while (sender.push(message)) ++pushed;
  EXPECT_EQ(pushed, 3);
  uint64_t sent = 0;
  for (auto segment = sender.next(); segment; segment = sender.next()) {
    sent += segment->bytes;
    sender.on_sent(*segment);
  }
  EXPECT_LE(sent, kControlWindowBytes);
  EXPECT_GT(sent, kControlWindowBytes - kControlSegmentBytes);
}

TEST(ControlStream, RefusesHostileOffsets) {
  ControlReceiver receiver;
  const Bytes bytes = pattern(100, 1);
  EXPECT_FALSE(receiver.on_bytes(kControlWindowBytes, bytes));
  EXPECT_FALSE(receiver.on_bytes(kControlWindowBytes - 99, bytes));
  EXPECT_TRUE(receiver.on_bytes(kControlWindowBytes - 100, bytes));
  EXPECT_FALSE(receiver.on_bytes(~uint64_t{0}, bytes));
  EXPECT_FALSE(receiver.on_bytes(~uint64_t{0} - 99, bytes));
  EXPECT_FALSE(receiver.on_bytes(uint64_t{1} << 63, bytes));
}

TEST(ControlStream, BoundsTheNumberOfPieces) {
  ControlReceiver receiver;
  const Bytes one(1);
  size_t kept = 0;
  for (uint64_t offset = 4; offset < 4000; offset += 2) kept += receiver.on_bytes(offset, one);
  EXPECT_EQ(kept, 256U);
  EXPECT_TRUE(receiver.on_bytes(0, Bytes(4))) << "what is next always has room";
  Bytes message;
  EXPECT_EQ(receiver.next_message(message), ControlReceiver::Next::kMessage);
  EXPECT_TRUE(message.empty());
}

TEST(ControlStream, OverlapsAreTrimmed) {
  ControlReceiver receiver;
  Bytes stream = pattern(104, 5);
  stream[0] = stream[1] = stream[2] = std::byte{0};
  stream[3] = std::byte{100};
  const std::span<const std::byte> all(stream);
  EXPECT_TRUE(receiver.on_bytes(50, all.subspan(50, 20)));
  EXPECT_TRUE(receiver.on_bytes(40, all.subspan(40, 60)));
  EXPECT_TRUE(receiver.on_bytes(50, all.subspan(50, 10)));
  EXPECT_TRUE(receiver.on_bytes(0, all.subspan(0, 45)));
  EXPECT_TRUE(receiver.on_bytes(10, all.subspan(10, 94)));
  Bytes message;
  ASSERT_EQ(receiver.next_message(message), ControlReceiver::Next::kMessage);
  EXPECT_EQ(message, Bytes(stream.begin() + 4, stream.end()));
}

TEST(ControlStream, AnImpossibleLengthIsBad) {
  ControlReceiver receiver;
  EXPECT_TRUE(receiver.on_bytes(0, Bytes(4, std::byte{0xff})));
  Bytes message;
  EXPECT_EQ(receiver.next_message(message), ControlReceiver::Next::kBad);
}

}  // namespace
}  // namespace mercury
