#include "transport/wire/ack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace mercury::wire {
namespace {

constexpr uint64_t kMax = ~uint64_t{0};
using Body = std::array<std::byte, ack_bytes(kMaxAckRanges) + 8>;

Ack ack_of(std::initializer_list<AckRange> ranges) {
  Ack ack;
  for (const AckRange& range : ranges) ack.ranges[ack.count++] = range;
  return ack;
}

void expect_round_trip(const Ack& in, uint16_t expected_ranges) {
  Body body;
  const size_t bytes = encode(in, body);
  ASSERT_EQ(bytes, ack_bytes(expected_ranges));
  Ack out;
  ASSERT_TRUE(decode(std::span(body).first(bytes), out));
  ASSERT_EQ(out.count, expected_ranges);
  EXPECT_EQ(out.delay_us, in.delay_us);
  EXPECT_EQ(out.marked, in.marked);
  for (size_t i = 0; i < expected_ranges; ++i) {
    EXPECT_EQ(out.ranges[i].first, in.ranges[i].first) << i;
    EXPECT_EQ(out.ranges[i].last, in.ranges[i].last) << i;
  }
}

TEST(Ack, RoundTripsAtTheEdgesOfNumbers) {
  Ack ack = ack_of({{kMax - 3, kMax}, {kMax - 5, kMax - 5}});
  ack.delay_us = ~uint32_t{0};
  ack.marked = 0xffff;
  expect_round_trip(ack, 2);
  expect_round_trip(ack_of({{0, 0}}), 1);
  expect_round_trip(ack_of({{2, 2}, {0, 0}}), 2);
  expect_round_trip(ack_of({{0x100000005, 0x100000005}, {4, 4}}), 2);  // the widest gap
  expect_round_trip(ack_of({{7, 0x100000006}}), 1);                    // the longest range
}

TEST(Ack, LeavesOutWhatIsTooFarBack) {
  Body body;
  Ack out;
  // One number more than a gap can say.
  size_t bytes = encode(ack_of({{0x100000006, 0x100000006}, {4, 4}}), body);
  ASSERT_TRUE(decode(std::span(body).first(bytes), out));
  EXPECT_EQ(out.count, 1);
  // A session that lost nothing for 2^33 packets: the newest 2^32 are said.
  bytes = encode(ack_of({{0, uint64_t{1} << 33}}), body);
  ASSERT_TRUE(decode(std::span(body).first(bytes), out));
  EXPECT_EQ(out.ranges[0].last, uint64_t{1} << 33);
  EXPECT_EQ(out.ranges[0].first, (uint64_t{1} << 33) - 0xffffffff);
}

TEST(Ack, FitsTheRoomThatThereIs) {
  Ack ack;
  ack.count = kMaxAckRanges;
  for (size_t i = 0; i < kMaxAckRanges; ++i) ack.ranges[i] = {1000 - 2 * i, 1000 - 2 * i};
  Body body;
  EXPECT_EQ(encode(ack, std::span(body).first(ack_bytes(1) - 1)), 0U);
  for (size_t room = ack_bytes(1); room <= body.size(); ++room) {
    body.fill(std::byte{0xee});
    const size_t bytes = encode(ack, std::span(body).first(room));
    ASSERT_LE(bytes, room);
    if (bytes < body.size()) {
      ASSERT_EQ(body[bytes], std::byte{0xee}) << "wrote beyond what it said";
    }
    Ack out;
    ASSERT_TRUE(decode(std::span(body).first(bytes), out)) << room;
    EXPECT_EQ(out.count, std::min(kMaxAckRanges, (room - 16) / 8));
  }
}

TEST(Ack, EncodesNothingFromAListOutOfOrder) {
  Body body;
  EXPECT_EQ(encode(ack_of({}), body), 0U);
  EXPECT_EQ(encode(ack_of({{5, 4}}), body), 0U);
  // Overlapping, adjacent and ascending ranges end the list.
  EXPECT_EQ(encode(ack_of({{10, 20}, {5, 10}}), body), ack_bytes(1));
  EXPECT_EQ(encode(ack_of({{10, 20}, {5, 9}}), body), ack_bytes(1));
  EXPECT_EQ(encode(ack_of({{10, 20}, {30, 40}}), body), ack_bytes(1));
}

Ack refusing(std::initializer_list<AckRange> ranges, std::initializer_list<AckRange> refused) {
  Ack ack = ack_of(ranges);
  for (const AckRange& range : refused) ack.refused_ranges[ack.refused++] = range;
  return ack;
}

TEST(Ack, RoundTripsWhatWasRefused) {
  const Ack in = refusing({{990, 1000}, {0, 800}}, {{1000, 1000}, {992, 998}, {7, 7}, {0, 5}});
  Body body;
  const size_t bytes = encode(in, body);
  ASSERT_EQ(bytes, ack_bytes(2, 4));
  Ack out;
  ASSERT_TRUE(decode(std::span(body).first(bytes), out));
  ASSERT_EQ(out.count, 2);
  ASSERT_EQ(out.refused, 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out.refused_ranges[i].first, in.refused_ranges[i].first) << i;
    EXPECT_EQ(out.refused_ranges[i].last, in.refused_ranges[i].last) << i;
  }
  for (size_t other = 0; other < bytes; ++other) {
    EXPECT_FALSE(decode(std::span(body).first(other), out)) << other;
  }
}

// Where these do not fit, what is acknowledged would pass for taken.
TEST(Ack, LeavesOutNothingThatWasRefused) {
  Ack ack = refusing({{90, 100}, {70, 80}}, {{99, 99}, {75, 76}});
  Body body;
  EXPECT_EQ(encode(ack, std::span(body).first(ack_bytes(1, 2) - 1)), 0U);
  const size_t bytes = encode(ack, std::span(body).first(ack_bytes(1, 2)));
  Ack out;
  ASSERT_TRUE(decode(std::span(body).first(bytes), out));
  EXPECT_EQ(out.count, 1);
  EXPECT_EQ(out.refused, 2);
  constexpr uint64_t kFar = uint64_t{1} << 33;
  for (const Ack& unsaid :
       {refusing({{0, kFar}}, {{5, 5}}), refusing({{0, 9}}, {{10, 10}}),
        refusing({{0, 9}}, {{5, 9}, {5, 6}}), refusing({{0, 9}}, {{0, 9}, {0, 0}})}) {
    EXPECT_EQ(encode(unsaid, body), 0U);
  }
}

TEST(Ack, RefusedRangesThatDecodeAreDescendingAndDisjoint) {
  std::mt19937_64 random(4);
  int decoded = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::array<std::byte, ack_bytes(1, 3)> body;
    for (std::byte& byte : body) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    body[12] = std::byte{3};
    body[13] = std::byte{1};
    std::fill_n(body.begin() + 20, 4, std::byte{0});  // nothing is missing below the last range
    Ack out;
    if (!decode(body, out)) continue;
    ++decoded;
    uint64_t above = out.ranges[0].last;
    for (size_t r = 0; r < out.refused; ++r) {
      ASSERT_LE(out.refused_ranges[r].first, out.refused_ranges[r].last);
      ASSERT_LE(out.refused_ranges[r].last, above);
      above = out.refused_ranges[r].first - 1;
    }
    std::array<std::byte, ack_bytes(1, 3)> again;
    ASSERT_EQ(encode(out, again), again.size());
    ASSERT_EQ(again, body);
  }
  EXPECT_GT(decoded, 1000);
}

TEST(Ack, RefusesEveryOtherLength) {
  Body body;
  const size_t bytes = encode(ack_of({{10, 20}, {5, 6}}), body);
  Ack out;
  for (size_t other = 0; other <= body.size(); ++other) {
    EXPECT_EQ(decode(std::span(body).first(other), out), other == bytes) << other;
  }
}

TEST(Ack, RefusesCountsOutOfRange) {
  Body body{};
  body[7] = std::byte{200};  // largest number
  for (const unsigned count : {0U, 65U, 0x4101U, 0xffffU}) {
    body[12] = static_cast<std::byte>(count >> 8);
    body[13] = static_cast<std::byte>(count & 0xff);
    Ack out;
    for (size_t bytes = 0; bytes <= body.size(); ++bytes) {
      ASSERT_FALSE(decode(std::span(body).first(bytes), out)) << count << " in " << bytes;
    }
  }
}

TEST(Ack, RefusesNumbersBelowZero) {
  Body body;
  Ack out;
  const size_t bytes = encode(ack_of({{10, 12}, {0, 5}}), body);
  ASSERT_TRUE(decode(std::span(body).first(bytes), out));
  for (uint8_t largest = 0; largest < 12; ++largest) {
    body[7] = std::byte{largest};
    EXPECT_FALSE(decode(std::span(body).first(bytes), out)) << unsigned{largest};
  }
}

TEST(Ack, WhateverDecodesIsDescendingAndDisjoint) {
  std::mt19937_64 random(3);
  int decoded = 0;
  for (int i = 0; i < 200'000; ++i) {
    Body body;
    const size_t count = 1 + random() % 4;
    for (std::byte& byte : body) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    body[12] = std::byte{0};
    body[13] = static_cast<std::byte>(count);
    Ack out;
    if (!decode(std::span(body).first(ack_bytes(count)), out)) continue;
    ++decoded;
    for (size_t r = 0; r < out.count; ++r) {
      ASSERT_LE(out.ranges[r].first, out.ranges[r].last);
      if (r > 0) {
        ASSERT_LT(out.ranges[r].last + 1, out.ranges[r - 1].first);
      }
    }
  }
  EXPECT_GT(decoded, 1000);
}

}  // namespace
}  // namespace mercury::wire
