// Streams that are read and written in place, and those that go before others.
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "tests/transport/flow/streams_pair.h"

namespace mercury {
namespace {

using namespace stream_tests;

// Room and bytes in place: parts that a reader or writer fills as far as it likes.
size_t fill(Side& side, StreamId id, size_t most, uint64_t& next) {
  std::array<iovec, 5> parts;
  const size_t count = side.streams.room(id, 1 << 20, parts);
  size_t bytes = 0;
  for (const iovec& part : std::span(parts).first(count)) {
    for (size_t i = 0; i < part.iov_len && bytes < most; ++i, ++bytes) {
      static_cast<std::byte*>(part.iov_base)[i] = static_cast<std::byte>(next++ * 7 >> 3);
    }
  }
  side.streams.wrote(id, bytes);
  return bytes;
}

size_t drain(Side& side, StreamId id, size_t most, uint64_t& next, bool& end) {
  std::array<iovec, 5> parts;
  const Streams::Peeked peeked = side.streams.peek(id, parts);
  end = end || peeked.end;
  size_t bytes = 0;
  for (const iovec& part : std::span(parts).first(peeked.parts)) {
    for (size_t i = 0; i < part.iov_len && bytes < most; ++i, ++bytes) {
      EXPECT_EQ(static_cast<std::byte*>(part.iov_base)[i], static_cast<std::byte>(next * 7 >> 3));
      ++next;
    }
  }
  side.streams.took(id, bytes);
  return bytes;
}

TEST(Streams, BytesInPlaceAreTheSameBytes) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Pair pair({}, seed);
    pair.a.reads = pair.b.reads = false;
    const StreamId id = *pair.a.streams.open();
    uint64_t written = 0;
    uint64_t read = 0;
    bool end = false;
    constexpr uint64_t kBytes = 300'000;
    while (!end) {
      // Whatever is written or taken of what is offered, maybe nothing.
      const uint64_t most = std::min<uint64_t>(pair.random() % 9000, kBytes - written);
      if (fill(pair.a, id, static_cast<size_t>(most), written) == 0 && written == kBytes) {
        pair.a.streams.finish(id);
      }
      pair.run(20);
      drain(pair.b, id, pair.random() % 9000, read, end);
      ASSERT_LE(read, written);
    }
    EXPECT_EQ(read, kBytes);
    pair.b.streams.finish(id);
    pair.run();
    EXPECT_EQ(pair.a.closed.at(id.value), Errc::kOk);
    EXPECT_EQ(pair.b.closed.at(id.value), Errc::kOk);
    EXPECT_EQ(pair.a.streams.block_bytes() + pair.b.streams.block_bytes(), 0U);
  }
}

TEST(Streams, RoomThatNothingIsWrittenToHoldsNoMemory) {
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  uint64_t written = 0;
  EXPECT_EQ(fill(pair.a, id, 0, written), 0U);
  EXPECT_EQ(pair.a.streams.block_bytes(), 0U);
  EXPECT_EQ(fill(pair.a, id, 1, written), 1U);
  EXPECT_EQ(pair.a.streams.block_bytes(), kStreamBlockBytes);
  EXPECT_EQ(fill(pair.a, id, 0, written), 0U);
  EXPECT_EQ(pair.a.streams.block_bytes(), kStreamBlockBytes);
}

// What a service reads of a program that has more goes as full segments: one that is not full costs
// a port as much, and is one more for it to send.
TEST(Streams, RoomEndsWhereASegmentDoes) {
  constexpr size_t kFull = kMost - wire::kStreamHeaderBytes;
  Pair pair;
  const StreamId id = *pair.a.streams.open();
  const auto room = [&](size_t most) {
    std::array<iovec, 16> parts;
    const size_t count = pair.a.streams.room(id, most, parts);
    size_t bytes = 0;
    for (const iovec& part : std::span(parts).first(count)) bytes += part.iov_len;
    pair.a.streams.wrote(id, 0);
    return bytes;
  };
  EXPECT_EQ(room(10'000), 10'000U) << "nothing is known yet";
  uint64_t next = 0;
  EXPECT_EQ(fill(pair.a, id, 10, next), 10U);
  pair.run();
  EXPECT_EQ(room(3 * kFull + 1), 3 * kFull);
  EXPECT_EQ(room(kFull), kFull);
  EXPECT_EQ(room(kFull - 1), kFull - 1) << "less than one is better than none";
  EXPECT_EQ(fill(pair.a, id, 100, next), 100U);
  EXPECT_EQ(room(3 * kFull), 3 * kFull - 100) << "beside what waits";
}

TEST(Streams, WhoHasNoRoomIsToldOfSome) {
  Pair pair;
  pair.b.reads = false;
  const StreamId id = *pair.a.streams.open();
  uint64_t written = 0;
  while (fill(pair.a, id, 1 << 20, written) > 0) pair.run();
  pair.run();
  EXPECT_EQ(pair.a.writable[id.value], 0);
  uint64_t read = 0;
  bool end = false;
  while (drain(pair.b, id, 1 << 20, read, end) > 0) pair.run();
  EXPECT_EQ(pair.a.writable[id.value], 1);
  EXPECT_EQ(read, written);
  // And who found nothing to read is told of something, once.
  const int told = pair.b.readable[id.value];
  EXPECT_GT(fill(pair.a, id, 100, written), 0U);
  pair.run();
  EXPECT_EQ(pair.b.readable[id.value], told + 1);
}

TEST(Streams, WhatWaitsToBeSentIsBoundedAndEachStreamHasSome) {
  StreamConfig config;
  config.unsent_bytes = 100'000;
  config.least_unsent_bytes = 8000;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Pair pair(config, seed);
    std::map<uint32_t, Bytes> left;
    std::vector<size_t> taken;
    for (int i = 0; i < 4; ++i) {
      const StreamId id = *pair.a.streams.open();
      Bytes& bytes = left[id.value];
      for (size_t at = 0; at < 300'000; ++at)
        bytes.push_back(static_cast<std::byte>(at * id.value));
      taken.push_back(pair.a.streams.write(id, bytes));
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken.back()));
    }
    EXPECT_EQ(taken, (std::vector<size_t>{100'000, 8000, 8000, 8000}));
    // Each is told when it has room: it never waits for others.
    for (bool all = false; !all;) {
      pair.run(seed % 2 == 0 ? 0 : 10);
      all = true;
      for (auto& [id, bytes] : left) {
        ASSERT_TRUE(bytes.empty() || pair.a.writable[id] > 0) << id;
        pair.a.writable[id] = 0;
        const size_t some = pair.a.streams.write(StreamId(id), bytes);
        bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(some));
        all = all && bytes.empty();
      }
    }
    pair.run();
    for (const auto& [id, bytes] : pair.b.got) {
      ASSERT_EQ(bytes.size(), 300'000U);
      for (size_t at = 0; at < bytes.size(); ++at) {
        ASSERT_EQ(bytes[at], static_cast<std::byte>(at * id)) << id << " " << at;
      }
    }
  }
}

// Of bytes that were given up none waits.
TEST(Streams, AResetMakesRoomForOthers) {
  StreamConfig config;
  config.unsent_bytes = 100'000;
  config.least_unsent_bytes = 8000;
  Pair pair(config);
  const StreamId one = *pair.a.streams.open(), other = *pair.a.streams.open();
  EXPECT_EQ(pair.a.streams.write(one, Bytes(200'000)), 100'000U);
  pair.a.streams.reset(one, Errc::kBusy);
  EXPECT_EQ(pair.a.streams.write(other, Bytes(200'000)), 100'000U);
  pair.run();
  EXPECT_EQ(pair.b.got[other.value].size(), 100'000U);
  EXPECT_EQ(pair.a.writable[other.value], 1);
}

TEST(Streams, PrioritiesGoFirstAndTheRestTakeTurns) {
  Pair pair;
  const Bytes much(4 * kMost);
  std::vector<StreamId> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(*pair.a.streams.open());
    pair.a.streams.write(ids.back(), much);
  }
  pair.a.streams.prioritise(ids[2], 5);  // what waits goes by it, too
  pair.a.streams.prioritise(ids[3], 1);
  std::vector<uint32_t> order;
  Bytes body(2 * kMost);
  while (pair.a.streams.segment_bytes(kMost) > 0) {
    order.push_back(pair.a.streams.build_segment(body, kMost).stream);
  }
  const size_t each = order.size() / 4;
  for (size_t i = 0; i < each; ++i) {
    EXPECT_EQ(order[i], ids[2].value);
    EXPECT_EQ(order[each + i], ids[3].value);
    EXPECT_EQ(order[2 * each + 2 * i], ids[0].value);
    EXPECT_EQ(order[2 * each + 2 * i + 1], ids[1].value);
  }
}

}  // namespace
}  // namespace mercury
