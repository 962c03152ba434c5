#include "transport/wire/header.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "tests/transport/wire/golden_frames.h"
#include "transport/wire/control.h"
#include "transport/wire/crc32c.h"

namespace mercury::wire {
namespace {

using Bytes = std::vector<std::byte>;

DecodeError error_of(std::span<const std::byte> frame) {
  Header header;
  std::span<const std::byte> payload;
  return decode(frame, header, payload);
}

// Of a session whose tag is zero.
bool is_intact(std::span<const std::byte> frame) {
  Header header;
  std::span<const std::byte> payload;
  return decode(frame, header, payload) == DecodeError::kNone && header.tag == 0;
}

// Makes the header CRC fit again, so that a test meets the check behind it.
void sign(Bytes& frame) {
  const size_t bytes = header_bytes(static_cast<FrameType>(frame[3]));
  const Be32 zero(0);
  std::memcpy(&frame[offsetof(CommonHeader, header_crc)], &zero, sizeof zero);
  const Be32 crc(crc32c(frame.data(), bytes));
  std::memcpy(&frame[offsetof(CommonHeader, header_crc)], &crc, sizeof crc);
}

struct WrongField {
  const char* description;
  size_t offset;
  uint8_t value;
  DecodeError error;
};

TEST(Header, EachWrongFieldHasItsError) {
  const WrongField rows[] = {
      {"magic, first byte", 0, 0x4e, DecodeError::kBadMagic},
      {"magic, second byte", 1, 0x54, DecodeError::kBadMagic},
      {"version 0", 2, 0, DecodeError::kBadVersion},
      {"version 1", 2, 1, DecodeError::kBadVersion},
      {"version 3", 2, 3, DecodeError::kBadVersion},
      {"type 0", 3, 0, DecodeError::kBadType},
      {"type 19", 3, 19, DecodeError::kBadType},
      {"type 255", 3, 255, DecodeError::kBadType},
      {"payload one byte longer than said", 7, 15, DecodeError::kBadLength},
      {"payload one byte shorter than said", 7, 17, DecodeError::kBadLength},
      {"payload said to be huge", 6, 0xff, DecodeError::kBadLength},
  };
  for (const WrongField& row : rows) {
    Bytes frame = golden("push");
    frame[row.offset] = static_cast<std::byte>(row.value);
    sign(frame);
    EXPECT_EQ(error_of(frame), row.error) << row.description;
  }
}

TEST(Header, WrongCrcIsNamedOnlyAfterTheFieldsThatSayWhatTheFrameIs) {
  Bytes frame = golden("refuse");
  frame[24] ^= std::byte{1};  // the payload's CRC
  EXPECT_EQ(error_of(frame), DecodeError::kBadHeaderCrc);
  frame[2] = std::byte{9};
  EXPECT_EQ(error_of(frame), DecodeError::kBadVersion);
}

// Hosts of any two versions can agree, or tell each other why not.
TEST(Header, HandshakesAreOfVersion1ForEver) {
  for (const char* name : {"hello", "hello_ack", "refuse"}) {
    Bytes frame = golden(name);
    EXPECT_EQ(frame[2], std::byte{1}) << name;
    EXPECT_EQ(error_of(frame), DecodeError::kNone) << name;
    frame[2] = std::byte{kVersion};
    sign(frame);
    EXPECT_EQ(error_of(frame), DecodeError::kBadVersion) << name;
  }
}

// A frame of an open session is judged by whoever knows the session's tag.
TEST(Header, ADamagedFrameOfASessionHasAnotherTag) {
  Bytes frame = golden("tagged_push");
  Header header;
  std::span<const std::byte> payload;
  ASSERT_EQ(decode(frame, header, payload), DecodeError::kNone);
  const uint32_t tag = header.tag;
  frame[24] ^= std::byte{1};  // round
  ASSERT_EQ(decode(frame, header, payload), DecodeError::kNone);
  EXPECT_NE(header.tag, tag);
}

TEST(Header, NothingIsLeftOfTheFrameThatWasDecodedBefore) {
  Header message;
  message.type = FrameType::kDatagram0;
  message.flags = 0xffff;
  message.words.fill(~uint32_t{0});
  message.session = message.last_word = message.payload_crc = ~uint32_t{0};
  message.packet_number = ~uint64_t{0};
  message.priority = message.half_word = 0xffff;
  Header plain;
  plain.type = FrameType::kAck;
  plain.session = 1;
  plain.grant = plain.idle_grant = 0xffff;
  const auto frame_of = [](const Header& header) {
    Bytes frame(header_bytes(header.type));
    encode(header, frame.data());
    return frame;
  };
  const auto fields_of = [](const Header& h) {
    return std::tuple(h.type, h.flags, h.payload_bytes, h.session, h.tag, h.packet_number, h.words,
                      h.priority, h.half_word, h.last_word, h.payload_crc, h.grant, h.idle_grant);
  };
  Header reused;
  for (const Header* next : {&message, &plain, &message}) {
    const Bytes frame = frame_of(*next);
    std::span<const std::byte> payload;
    ASSERT_EQ(decode(frame, reused, payload), DecodeError::kNone);
    EXPECT_EQ(fields_of(reused), fields_of(*next));
  }
}

TEST(Header, NothingMayFollowThePayload) {
  for (const GoldenFrame& row : kGoldenFrames) {
    Bytes frame = bytes_of_hex(row.hex);
    frame.resize(frame.size() + 1);
    EXPECT_EQ(error_of(frame), DecodeError::kBadLength) << row.name;
  }
}

TEST(Header, AMessageCutInTheUpperHalfOfItsHeaderIsTruncated) {
  const Bytes frame = golden("push");
  EXPECT_EQ(error_of(std::span(frame).first(sizeof(PlainHeader))), DecodeError::kTruncated);
  EXPECT_EQ(error_of(std::span(frame).first(sizeof(DatagramHeader) - 1)), DecodeError::kTruncated);
  EXPECT_EQ(error_of({}), DecodeError::kTruncated);
}

TEST(Header, UnknownFlagsAndReservedBytesAreIgnored) {
  Bytes frame = golden("ping");
  frame[4] = std::byte{0x80};   // flags
  frame[31] = std::byte{0xff};  // reserved
  sign(frame);
  Header header;
  std::span<const std::byte> payload;
  ASSERT_EQ(decode(frame, header, payload), DecodeError::kNone);
  EXPECT_EQ(header.flags, 0x8000 | kFlagAckNow);
}

TEST(Header, ExtremesRoundTrip) {
  for (const bool ones : {false, true}) {
    const uint64_t n = ones ? ~uint64_t{0} : 0;
    const Header in{FrameType::kDatagram1,
                    static_cast<uint16_t>(n),
                    0,
                    static_cast<uint32_t>(n),
                    static_cast<uint32_t>(n),
                    n,
                    {static_cast<uint32_t>(n), static_cast<uint32_t>(n), static_cast<uint32_t>(n)},
                    static_cast<uint16_t>(n),
                    static_cast<uint16_t>(n),
                    static_cast<uint32_t>(n),
                    static_cast<uint32_t>(n)};
    Bytes frame(sizeof(DatagramHeader));
    encode(in, frame.data());
    Header out;
    std::span<const std::byte> payload;
    ASSERT_EQ(decode(frame, out, payload), DecodeError::kNone);
    EXPECT_TRUE(payload.empty());
    EXPECT_EQ(out.packet_number, n);
    EXPECT_EQ(out.session, in.session);
    EXPECT_EQ(out.tag, in.tag);
    EXPECT_EQ(out.words, in.words);
    EXPECT_EQ(out.half_word, in.half_word);
    EXPECT_EQ(out.last_word, in.last_word);
    EXPECT_EQ(out.payload_crc, in.payload_crc);
  }
}

TEST(Header, LargestPayloadDecodes) {
  Header header;
  header.type = FrameType::kDatagram0;
  header.payload_bytes = 65535;
  Bytes frame(sizeof(DatagramHeader) + 65535);
  encode(header, frame.data());
  EXPECT_EQ(error_of(frame), DecodeError::kNone);
}

TEST(Header, EncodeWritesNothingBehindTheHeader) {
  for (const FrameType type : {FrameType::kPing, FrameType::kDatagram0}) {
    Bytes frame(64, std::byte{0xee});
    Header header;
    header.type = type;
    encode(header, frame.data());
    for (size_t i = header_bytes(type); i < frame.size(); ++i) ASSERT_EQ(frame[i], std::byte{0xee});
  }
}

TEST(Header, RandomBytesNeverDecode) {
  std::mt19937 random(7);
  for (int i = 0; i < 100'000; ++i) {
    Bytes frame(random() % 80);
    for (std::byte& byte : frame) byte = static_cast<std::byte>(random());
    if (frame.size() > 4 && i % 2 == 0) {
      frame[0] = std::byte{0x4d};
      frame[1] = std::byte{0x55};
      frame[2] = std::byte{1};
      frame[3] = static_cast<std::byte>(1 + random() % kMaxFrameType);
    }
    ASSERT_FALSE(is_intact(frame)) << "frame " << i;
  }
}

// A short burst of errors is the usual damage; CRC-32C detects every burst of up to 32 bits.
TEST(Header, EveryBurstOfUpTo32BitsIsDetected) {
  const Bytes frame = golden("push");
  std::mt19937 random(11);
  for (size_t start = 0; start + 32 <= sizeof(DatagramHeader) * 8; ++start) {
    Bytes damaged = frame;
    uint32_t pattern = static_cast<uint32_t>(random()) | 1;
    for (size_t bit = start; pattern != 0; ++bit, pattern >>= 1) {
      if ((pattern & 1) != 0) damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    EXPECT_FALSE(is_intact(damaged)) << "burst at bit " << start;
  }
}

TEST(Control, NeedsAtLeastOneByteBehindItsOffset) {
  Bytes payload(kControlHeaderBytes);
  encode_control_offset(~uint64_t{0}, payload.data());
  for (size_t bytes = 0; bytes <= payload.size(); ++bytes) {
    EXPECT_FALSE(decode_control(std::span(payload).first(bytes)).has_value()) << bytes;
  }
  payload.push_back(std::byte{1});
  const auto piece = decode_control(payload);
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->offset, ~uint64_t{0});
  EXPECT_EQ(piece->bytes.size(), 1U);
}

}  // namespace
}  // namespace mercury::wire
