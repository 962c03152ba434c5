// The two halves of one byte stream, without a session.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "transport/flow/stream/stream_receiver.h"
#include "transport/flow/stream/stream_sender.h"

namespace mercury {
namespace {

using Bytes = std::vector<std::byte>;
constexpr uint64_t kFar = 1 << 30;

Bytes random_bytes(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

TEST(StreamHalves, BytesArriveInOrderWhateverIsLostOrReordered) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    BlockPool pool(4);
    StreamSender sender(&pool);
    StreamReceiver receiver(&pool);
    const Bytes data = random_bytes(150'000 + random() % 10'000, seed);
    Bytes got;
    struct Frame {
      StreamSender::Segment segment;
      Bytes bytes;
    };
    std::vector<Frame> flying;
    size_t written = 0;
    uint64_t end_at = 0;
    while (!sender.all_acknowledged()) {
      if (written < data.size()) {  // in pieces of any size, as a program writes
        const size_t take = std::min<size_t>(random() % 9000, data.size() - written);
        sender.append(std::span(data).subspan(written, take));
        written += take;
      } else {
        sender.finish();
      }
      for (int i = 0; i < 8; ++i) {
        const auto segment =
            sender.next(1 + static_cast<uint32_t>(random() % 3000), receiver.consumed() + 40'000);
        if (!segment) break;
        flying.push_back({*segment, Bytes(segment->bytes)});
        sender.read(*segment, flying.back().bytes.data());
        sender.on_sent(*segment);
      }
      if (flying.empty()) continue;
      std::shuffle(flying.begin(), flying.end(), random);
      const Frame frame = flying.back();
      flying.pop_back();
      if (random() % 4 == 0) {
        sender.on_lost(frame.segment.number);
        if (random() % 4 == 0) receiver.on_bytes(frame.segment.offset, frame.bytes);  // only late
        continue;
      }
      if (random() % 8 == 0) flying.push_back(frame);  // twice; its second ack does nothing
      ASSERT_TRUE(receiver.on_bytes(frame.segment.offset, frame.bytes));
      if (frame.segment.end) end_at = frame.segment.offset + frame.segment.bytes;
      sender.on_acked(frame.segment.number);
      Bytes out(random() % 20'000);
      out.resize(receiver.read(out));
      got.insert(got.end(), out.begin(), out.end());
      ASSERT_LE(pool.in_use() * kStreamBlockBytes, sender.kept_bytes() + 40'000 + 4 * 4096);
    }
    Bytes rest(receiver.readable());
    receiver.read(rest);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, data);
    EXPECT_EQ(end_at, data.size());
    EXPECT_EQ(sender.in_flight_bytes(), 0U);
    EXPECT_EQ(pool.in_use(), 0U) << "a stream at rest holds no block";
  }
}

TEST(StreamSender, NothingGoesBeyondTheLimitAndWhatIsLostGoesFirst) {
  StreamSender sender;
  sender.append(Bytes(5000));
  for (const uint32_t bytes : {1000U, 1000U, 500U}) {
    const auto segment = sender.next(1000, 2500);
    ASSERT_TRUE(segment);
    EXPECT_EQ(segment->bytes, bytes);
    sender.on_sent(*segment);
  }
  EXPECT_FALSE(sender.next(1000, 2500));
  sender.on_lost(1);
  sender.on_lost(0);
  EXPECT_EQ(sender.next(10, 2500)->offset, 0U);
  EXPECT_EQ(sender.next(10, 2500)->bytes, 1000U) << "as it was cut";
  sender.on_sent(*sender.next(10, 2500));
  EXPECT_EQ(sender.next(10, 9000)->offset, 1000U);
  sender.on_acked(0);
  sender.on_sent(*sender.next(10, 9000));
  EXPECT_EQ(sender.next(1000, 9000)->offset, 2500U);
  EXPECT_EQ(sender.kept_bytes(), 4000U);
  EXPECT_EQ(sender.in_flight_bytes(), 1500U);
}

TEST(StreamSender, TheEndTravelsAloneWhenAllBytesHaveGone) {
  StreamSender sender;
  sender.append(Bytes(100));
  sender.on_sent(*sender.next(1000, kFar));
  EXPECT_FALSE(sender.next(1000, kFar));
  sender.finish();
  const auto end = sender.next(1000, 100);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->bytes, 0U);
  EXPECT_TRUE(end->end);
  sender.on_sent(*end);
  EXPECT_FALSE(sender.next(1000, kFar));
  sender.on_lost(end->number);
  EXPECT_TRUE(sender.next(1000, kFar)->end);
  sender.on_sent(*sender.next(1000, kFar));
  sender.on_acked(end->number);
  EXPECT_FALSE(sender.all_acknowledged());
  sender.on_acked(0);
  EXPECT_TRUE(sender.all_acknowledged());
}

TEST(StreamSender, WhatIsAbandonedIsNotSentAgain) {
  StreamSender sender;
  sender.append(Bytes(5000));
  sender.on_sent(*sender.next(1000, kFar));
  sender.on_sent(*sender.next(1000, kFar));
  EXPECT_EQ(sender.abandon(), 2000U);
  sender.on_lost(0);
  sender.on_acked(1);
  EXPECT_FALSE(sender.next(1000, kFar));
  EXPECT_EQ(sender.kept_bytes(), 0U);
}

TEST(StreamReceiver, GapsAreBoundedAndWhatIsNextAlwaysHasRoom) {
  StreamReceiver receiver;
  const Bytes one(1);
  size_t kept = 0;
  for (uint64_t offset = 1; offset < 2000; offset += 2) kept += receiver.on_bytes(offset, one);
  EXPECT_EQ(kept, StreamReceiver::kMaxGaps);
  EXPECT_TRUE(receiver.on_bytes(2, one)) << "joins two";
  EXPECT_TRUE(receiver.on_bytes(1501, one)) << "so that there is room for another";
  EXPECT_FALSE(receiver.on_bytes(1601, one));
  EXPECT_TRUE(receiver.on_bytes(0, one));
  EXPECT_EQ(receiver.readable(), 4U);
  EXPECT_EQ(receiver.highest(), 1502U);
}

TEST(StreamReceiver, OverlapsOfEveryKindGiveTheSameBytes) {
  const Bytes data = random_bytes(64, 3);
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    BlockPool pool(0);
    StreamReceiver receiver(&pool);
    for (;;) {
      const size_t begin = random() % data.size();
      const size_t bytes = random() % (data.size() - begin + 1);
      // The first block comes last, now and then.
      ASSERT_TRUE(receiver.on_bytes(4090 * 2 + begin, std::span(data).subspan(begin, bytes)));
      if (seed % 2 == 0 || random() % 50 == 0) {
        ASSERT_TRUE(receiver.on_bytes(0, Bytes(4090 * 2)));
      }
      if (receiver.arrived() >= 4090 * 2 + data.size()) break;
    }
    Bytes out(4090 * 2 + data.size());
    ASSERT_EQ(receiver.read(out), out.size());
    EXPECT_TRUE(std::equal(data.begin(), data.end(), out.begin() + 4090 * 2)) << seed;
    EXPECT_EQ(pool.in_use(), 0U);
  }
}

TEST(StreamReceiver, WhatIsLentIsHandedOnWhereItLies) {
  BlockPool pool(8);
  StreamReceiver receiver(&pool);
  const Bytes first = random_bytes(9000, 1), second = random_bytes(500, 2);
  EXPECT_TRUE(receiver.on_lent_bytes(0, first));
  EXPECT_TRUE(receiver.on_lent_bytes(8900, std::span(first).last(100))) << "arrived before";
  EXPECT_TRUE(receiver.on_lent_bytes(9000, second));
  std::array<iovec, 8> parts;
  ASSERT_EQ(receiver.peek(parts), 2U);
  EXPECT_EQ(parts[0].iov_base, first.data());
  EXPECT_EQ(parts[1].iov_base, second.data());
  receiver.consume(9100);
  ASSERT_EQ(receiver.peek(parts), 1U);
  EXPECT_EQ(parts[0].iov_base, second.data() + 100);
  EXPECT_EQ(parts[0].iov_len, 400U);
  EXPECT_EQ(pool.in_use(), 0U);
  receiver.keep();
  EXPECT_EQ(pool.in_use(), 1U);
  Bytes rest(400);
  EXPECT_EQ(receiver.read(rest), 400U);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), second.begin() + 100));
  EXPECT_EQ(pool.in_use(), 0U);
}

// A pass of an engine: frames of any size and order, of which something is taken, before their
// memory is used for others.
TEST(StreamReceiver, WhatIsLentIsTheSameBytesAsWhatIsKept) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Bytes data = random_bytes(60'000, seed);
    BlockPool pool(4);
    StreamReceiver receiver(&pool);
    Bytes got;
    const auto take = [&] {
      std::array<iovec, 3> parts;
      const size_t count = receiver.peek(parts);
      for (size_t i = 0; i < count; ++i) {
        const auto* at = static_cast<const std::byte*>(parts[i].iov_base);
        const size_t bytes = i + 1 < count ? parts[i].iov_len : random() % (parts[i].iov_len + 1);
        got.insert(got.end(), at, at + bytes);
      }
      receiver.consume(got.size() - static_cast<size_t>(receiver.consumed()));
      if (seed % 3 == 0 && random() % 4 == 0) {
        Bytes out(random() % 3000);
        out.resize(receiver.read(out));
        got.insert(got.end(), out.begin(), out.end());
      }
    };
    while (receiver.consumed() < data.size()) {
      std::vector<Bytes> frames;
      for (size_t left = 1 + random() % 5; left > 0; --left) {
        // Mostly what is next; else again what came, or what leaves a gap.
        const size_t next = static_cast<size_t>(receiver.arrived());
        const size_t begin = std::min(
            random() % 3 > 0 ? next : next - std::min<size_t>(next, 4000) + random() % 9000,
            data.size());
        const size_t bytes = std::min<size_t>(random() % 4000, data.size() - begin);
        const auto from = data.begin() + static_cast<std::ptrdiff_t>(begin);
        frames.emplace_back(from, from + static_cast<std::ptrdiff_t>(bytes));
        ASSERT_TRUE(receiver.on_lent_bytes(begin, frames.back()));
        if (random() % 3 == 0) take();
      }
      take();
      receiver.keep();
      for (Bytes& frame : frames) std::fill(frame.begin(), frame.end(), std::byte{});
    }
    EXPECT_EQ(got, data);
    EXPECT_EQ(pool.in_use(), 0U);
  }
}

TEST(StreamReceiver, WhatIsLentAndDiscardedIsForgotten) {
  BlockPool pool(8);
  StreamReceiver receiver(&pool);
  {
    const Bytes gone(3000);
    EXPECT_TRUE(receiver.on_lent_bytes(0, gone));
    receiver.discard_to(5000);
  }
  receiver.keep();
  EXPECT_EQ(receiver.readable(), 0U);
  EXPECT_EQ(pool.in_use(), 0U);
}

TEST(StreamReceiver, WhatIsDiscardedIsForgotten) {
  BlockPool pool(8);
  StreamReceiver receiver(&pool);
  EXPECT_TRUE(receiver.on_bytes(100, Bytes(9000)));
  EXPECT_EQ(pool.in_use(), 3U);
  receiver.discard_to(20'000);
  EXPECT_EQ(pool.in_use(), 0U);
  EXPECT_EQ(receiver.readable(), 0U);
  EXPECT_TRUE(receiver.on_bytes(500, Bytes(10))) << "late; it is known";
  EXPECT_EQ(pool.in_use(), 0U);
}

}  // namespace
}  // namespace mercury
