#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "transport/wire/ack.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"

namespace mercury::wire {
namespace {

std::vector<std::byte> frame_of(const Header& header, size_t payload_bytes) {
  std::vector<std::byte> frame(header_bytes(header.type) + payload_bytes, std::byte{0x5a});
  encode(header, frame.data());
  return frame;
}

Header push() {
  Header header;
  header.type = FrameType::kPush;
  header.flags = kFlagAckNow;
  header.payload_bytes = 100;
  header.session = 0x01020304;
  header.packet_number = 0x1122334455667788;
  header.round = 9;
  header.tensor = 10;
  header.chunk = 11;
  header.priority = 12;
  header.sender = 13;
  header.incarnation = 14;
  header.payload_crc = 15;
  return header;
}

TEST(Header, RoundTrips) {
  const Header in = push();
  Header out;
  std::span<const std::byte> payload;
  const auto frame = frame_of(in, 100);
  ASSERT_EQ(decode(frame, out, payload), DecodeError::kNone);
  EXPECT_EQ(out.type, in.type);
  EXPECT_EQ(out.flags, in.flags);
  EXPECT_EQ(out.session, in.session);
  EXPECT_EQ(out.packet_number, in.packet_number);
  EXPECT_EQ(out.round, 9U);
  EXPECT_EQ(out.tensor, 10U);
  EXPECT_EQ(out.chunk, 11U);
  EXPECT_EQ(out.priority, 12U);
  EXPECT_EQ(out.sender, 13U);
  EXPECT_EQ(out.incarnation, 14U);
  EXPECT_EQ(out.payload_crc, 15U);
  EXPECT_EQ(payload.size(), 100U);
}

TEST(Header, RefusesEveryTruncation) {
  const auto frame = frame_of(push(), 100);
  Header header;
  std::span<const std::byte> payload;
  for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
    EXPECT_NE(decode(std::span(frame).first(bytes), header, payload), DecodeError::kNone) << bytes;
  }
}

TEST(Header, DetectsEverySingleBitFlip) {
  const auto frame = frame_of(push(), 100);
  Header header;
  std::span<const std::byte> payload;
  for (size_t bit = 0; bit < sizeof(ChunkHeader) * 8; ++bit) {
    auto flipped = frame;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(decode(flipped, header, payload), DecodeError::kNone) << "bit " << bit;
  }
}

TEST(Header, AcceptsEthernetPaddingAndNothingElseBehindThePayload) {
  Header ping;
  ping.type = FrameType::kPing;
  Header out;
  std::span<const std::byte> payload;
  auto frame = frame_of(ping, 14);
  EXPECT_EQ(decode(frame, out, payload), DecodeError::kNone);
  EXPECT_TRUE(payload.empty());
  frame = frame_of(ping, 400);
  EXPECT_EQ(decode(frame, out, payload), DecodeError::kBadLength);
}

TEST(Header, RandomBytesNeverDecode) {
  std::mt19937 random(7);
  Header header;
  std::span<const std::byte> payload;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> frame(random() % 80);
    for (std::byte& byte : frame) byte = static_cast<std::byte>(random());
    if (frame.size() > 4) {
      frame[0] = std::byte{0x4d};
      frame[1] = std::byte{0x55};
      frame[2] = std::byte{1};
    }
    ASSERT_NE(decode(frame, header, payload), DecodeError::kNone);
  }
}

TEST(Ack, RoundTripsAndRefusesWhatCannotBe) {
  Ack ack;
  ack.delay_us = 77;
  ack.count = 3;
  ack.ranges[0] = {100, 110};
  ack.ranges[1] = {50, 50};
  ack.ranges[2] = {0, 48};
  std::array<std::byte, ack_bytes(kMaxAckRanges)> body;
  const size_t bytes = encode(ack, body);
  ASSERT_EQ(bytes, ack_bytes(3));
  Ack out;
  ASSERT_TRUE(decode(std::span(body).first(bytes), out));
  ASSERT_EQ(out.count, 3);
  EXPECT_EQ(out.delay_us, 77U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(out.ranges[i].first, ack.ranges[i].first);
    EXPECT_EQ(out.ranges[i].last, ack.ranges[i].last);
  }
  EXPECT_FALSE(decode(std::span(body).first(bytes - 1), out));
  body[7] = std::byte{3};  // the largest number is now 3: the range reaches below zero
  EXPECT_FALSE(decode(std::span(body).first(bytes), out));
}

TEST(Hello, RoundTripsAndRefusesBadNamesAndLengths) {
  Hello hello;
  hello.session = 5;
  hello.job = "digits-1.a_B";
  hello.rank = 3;
  hello.incarnation = 9;
  hello.nonce.fill(7);
  hello.proof.fill(8);
  std::array<std::byte, kMaxHandshakeBytes> body;
  const size_t bytes = encode(hello, body);
  const auto out = decode_hello(std::span(body).first(bytes));
  ASSERT_TRUE(out.has_value());
  EXPECT_EQ(out->job, hello.job);
  EXPECT_EQ(out->rank, 3);
  EXPECT_EQ(out->incarnation, 9U);
  EXPECT_EQ(out->proof, hello.proof);
  for (size_t shorter = 0; shorter < bytes; ++shorter) {
    EXPECT_FALSE(decode_hello(std::span(body).first(shorter)).has_value());
  }
  for (const char* bad : {"", "a b", "a/b", "\x1b[2J"}) {
    hello.job = bad;
    EXPECT_FALSE(decode_hello(std::span(body).first(encode(hello, body))).has_value()) << bad;
  }
}

TEST(Reason, TextCannotSteerATerminal) {
  Reason reason{4, Errc::kWrongSecret, "bad \x1b[2J"};
  std::array<std::byte, kMaxHandshakeBytes> body;
  const auto out = decode_reason(std::span(body).first(encode(reason, body)));
  ASSERT_TRUE(out.has_value());
  EXPECT_EQ(out->code, Errc::kWrongSecret);
  EXPECT_EQ(out->text, "bad ?[2J");
}

}  // namespace
}  // namespace mercury::wire
