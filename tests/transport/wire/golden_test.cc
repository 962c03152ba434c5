#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/wire/golden_frames.h"
#include "transport/wire/ack.h"
#include "transport/wire/control.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"
#include "transport/wire/part.h"
#include "transport/wire/path_data.h"
#include "transport/wire/seal.h"
#include "transport/wire/source_ports.h"
#include "transport/wire/stream.h"

namespace mercury::wire {
namespace {

using Bytes = std::vector<std::byte>;

Proof golden_proof() {
  Proof proof;
  for (uint8_t i = 0; i < proof.size(); ++i) proof[i] = static_cast<uint8_t>(0x40 + i);
  return proof;
}

Hello golden_hello() {
  Hello hello;
  hello.version_min = 1;
  hello.version_max = 3;
  hello.kind = SessionKind::kData;
  hello.role = 0;
  hello.session = 0x00c0ffee;
  hello.rank = 2;
  hello.lane = 1;
  hello.incarnation = 0x5eed0001;
  hello.max_udp_payload = 8972;
  hello.job = "mnist-1";
  for (uint8_t i = 0; i < hello.nonce.size(); ++i) hello.nonce[i] = i;
  hello.proof = golden_proof();
  return hello;
}

HelloAck golden_hello_ack() {
  HelloAck ack{1, 0, 0x0badf00d, 1472, 0x5eed0002, {}, golden_proof()};
  for (uint8_t i = 0; i < ack.nonce.size(); ++i) ack.nonce[i] = static_cast<uint8_t>(0x10 + i);
  return ack;
}

HelloAck golden_ack_of_seals() {
  HelloAck ack = golden_hello_ack();
  ack.features = kFeatureSeals;
  ack.confirmation.emplace();
  for (uint8_t i = 0; i < sizeof(Proof); ++i) (*ack.confirmation)[i] = 0x60 + i;
  return ack;
}

Ack golden_ack() {
  Ack ack;
  ack.delay_us = 250;
  ack.count = 3;
  ack.marked = 7;
  ack.ranges[0] = {995, 1000};
  ack.ranges[1] = {990, 990};
  ack.ranges[2] = {100, 900};
  return ack;
}

template <class Body>
Bytes encoded(const Body& body) {
  Bytes bytes(kMaxHandshakeBytes + ack_bytes(kMaxAckRanges, kMaxRefusedRanges));
  bytes.resize(encode(body, bytes));
  return bytes;
}

Bytes elements(std::initializer_list<float> values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

Header plain(FrameType type, uint16_t flags, uint32_t session, uint64_t number) {
  Header header;
  header.type = type;
  header.flags = flags;
  header.session = session;
  header.packet_number = number;
  return header;
}

Header ack_header() {
  Header header = plain(FrameType::kAck, 0, 0x0badf00d, 7);
  header.grant = 586;  // 75,008 bytes
  header.idle_grant = 73;
  return header;
}

Header chunk(FrameType type, uint16_t flags, uint64_t number, uint32_t index) {
  const bool push = type == FrameType::kDatagram0;
  Header header = plain(type, flags, push ? 0x0badf00d : 0x00c0ffee, number);
  header.words = {6, 17, index};
  header.priority = 42;
  header.last_word = push ? 0x5eed0001U : 0x5eed0002U;
  return header;
}

Header ack_of_refused_header() {
  Header header = ack_header();
  header.packet_number = 17;
  return header;
}

Ack golden_ack_of_refused() {
  Ack ack = golden_ack();
  ack.refused = 2;
  ack.refused_ranges[0] = {998, 999};
  ack.refused_ranges[1] = {500, 500};
  return ack;
}

Bytes stream_body(bool end) {
  Bytes body(kStreamHeaderBytes);
  encode_stream(5, end, 0x0000000200000010, body.data());
  for (char c : {'h', 'i'}) body.push_back(static_cast<std::byte>(c));
  return body;
}

template <class Body>
Bytes stream_body(const Body& value) {
  Bytes body(kStreamHeaderBytes);
  encode(value, body.data());
  return body;
}

Header part_header() {
  Header header = plain(FrameType::kPart, 0, 0x0badf00d, 72);
  header.grant = 42;
  header.idle_grant = 8;
  return header;
}

Bytes eight_bytes() {
  Bytes body(kPathDataBytes);
  encode_path_data(0x0123456789abcdef, body.data());
  return body;
}

Bytes part_body() {
  Bytes body(kPartHeaderBytes);
  encode_part(1188, 8972, body.data());
  for (char c : {'p', 'a', 'r', 't'}) body.push_back(static_cast<std::byte>(c));
  return body;
}

struct Row {
  const char* name;
  Header header;  // payload_bytes and payload_crc follow from the payload
  Bytes payload;
  uint32_t payload_tag = 0;
  Bytes seal = {};
  uint32_t crc_of_plain = 0;  // where `payload` is a ciphertext
  uint32_t payload_crc() const {
    return crc_of_plain != 0 ? crc_of_plain : crc32c(payload) ^ payload_tag;
  }
};

constexpr uint32_t kTag = 0x7a61675f, kPayloadTag = 0x54414721;

Row source_ports() {
  Bytes body(kSourcePortsBytes);
  encode_source_ports({7478, 3}, body.data());
  return {"source_ports", plain(FrameType::kSourcePorts, kFlagAckNow, 0x0badf00d, 75), body};
}

// Of the session that the golden frames with seals are of.
Row sealed(const char* name, Header header, Bytes payload) {
  header.flags |= kFlagSealed;
  header.session = 0x0badf00f;
  header.tag = kTag;
  header.payload_bytes = static_cast<uint16_t>(kSealBytes + payload.size());
  header.payload_crc = crc32c(payload) ^ kPayloadTag;
  Bytes frame(header_bytes(header.type)), seal(kSealBytes);
  encode(header, frame.data());
  SealSecret secret;
  for (uint8_t i = 0; i < secret.size(); ++i) secret[i] = i;
  Bytes behind(kSealBytes);  // the header
  behind.insert(behind.end(), payload.begin(), payload.end());
  FrameSeal(secret).seal(header.packet_number, frame, payload, seal.data(),
                         seal_piece(header, behind));
  return {name, header, std::move(payload), kPayloadTag, std::move(seal)};
}

// The same, encrypted.
Row encrypted(const char* name, const Header& plain_header, const Bytes& payload) {
  Row row = sealed(name, plain_header, payload);
  SealSecret secret;
  for (uint8_t i = 0; i < secret.size(); ++i) secret[i] = i;
  FrameSeal key(secret);
  const uint64_t number = row.header.packet_number;
  row.header.flags |= kFlagEncrypted;
  row.crc_of_plain = row.header.payload_crc ^= key.crc_mask(number);
  Bytes frame(header_bytes(row.header.type)), out(kSealBytes + payload.size());
  encode(row.header, frame.data());
  key.encrypt(number, frame, payload, out.data());
  row.seal.assign(out.begin(), out.begin() + kSealBytes);
  row.payload.assign(out.begin() + kSealBytes, out.end());
  return row;
}

// The same frames in a session with seals.
void add_sealed(std::vector<Row>& all) {
  Header answer = plain(FrameType::kHelloAck, 0, 0x00c0ffee, echo_of(golden_hello().nonce));
  all.push_back({"hello_ack_of_seals", answer, encoded(golden_ack_of_seals())});
  const std::pair<const char*, const char*> pairs[] = {
      {"sealed_push", "tagged_push"},        {"sealed_ping", "ping"},
      {"sealed_control", "control"},         {"sealed_stream_end", "stream_end"},
      {"sealed_reset_token", "reset_token"}, {"sealed_part", "part"}};
  for (const auto& [name, plain_name] : pairs) {
    const Row row = *std::find_if(all.begin(), all.end(), [&](const Row& one) {
      return std::string(one.name) == plain_name;
    });
    all.push_back(sealed(name, row.header, row.payload));
    if (name == std::string("sealed_push")) {
      all.push_back(encrypted("encrypted_push", row.header, row.payload));
    } else if (name == std::string("sealed_control")) {
      all.push_back(encrypted("encrypted_control", row.header, row.payload));
    }
  }
}

std::vector<Row> rows() {
  Bytes control(kControlHeaderBytes);
  encode_control_offset(0x100000000, control.data());
  for (char c : {'\0', '\0', '\0', '\5', 'h', 'e', 'l', 'l', 'o'}) {
    control.push_back(static_cast<std::byte>(c));
  }
  Bytes partial = {std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0},
                   std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0b1011}};
  const Bytes sums = elements({3.0F, -6.0F});
  partial.insert(partial.end(), sums.begin(), sums.end());
  std::vector<Row> all = {
      {"hello", plain(FrameType::kHello, 0, 0, 0), encoded(golden_hello())},
      {"hello_ack", plain(FrameType::kHelloAck, 0, 0x00c0ffee, echo_of(golden_hello().nonce)),
       encoded(golden_hello_ack())},
      {"refuse", plain(FrameType::kRefuse, 0, 0x00c0ffee, echo_of(golden_hello().nonce)),
       encoded(Reason{0x00c0ffee, Errc::kWrongSecret, "wrong secret for job mnist-1"})},
      {"close", plain(FrameType::kClose, 0, 0x0badf00d, 9),
       encoded(Reason{0x00c0ffee, Errc::kClosed, "program ended"})},
      {"ack", ack_header(), encoded(golden_ack())},
      {"ping", plain(FrameType::kPing, kFlagAckNow, 0x0badf00d, 8), {}},
      {"mtu_probe", plain(FrameType::kPing, kFlagAckNow, 0x0badf00d, 11), Bytes(24)},
      {"control", plain(FrameType::kControl, 0, 0x0badf00d, 10), control},
      {"push", chunk(FrameType::kDatagram0, kFlagAckNow, 0x0102030405060708, 3),
       elements({1.0F, -2.0F, 0.5F, 3.25F})},
      {"result", chunk(FrameType::kDatagram1, 0, 0x1112131415161718, 3),
       elements({4.0F, -8.0F, 2.0F, 13.0F})},
      {"partial_result", chunk(FrameType::kDatagram1, kFlagService, 0x1112131415161719, 4),
       partial},
      {"tagged_push", chunk(FrameType::kDatagram0, kFlagAckNow, 0x0102030405060708, 3),
       elements({1.0F, -2.0F, 0.5F, 3.25F}), kPayloadTag},
      {"push_of_nothing", chunk(FrameType::kDatagram0, 0, 0x0102030405060709, 4), {}},
      {"stream", plain(FrameType::kStream, 0, 0x0badf00d, 12), stream_body(false)},
      {"stream_end", plain(FrameType::kStream, kFlagAckNow, 0x0badf00d, 13), stream_body(true)},
      {"stream_credit", plain(FrameType::kStreamCredit, 0, 0x0badf00d, 14),
       stream_body(StreamCredit{5, 0x0000000200040010})},
      {"stream_reset", plain(FrameType::kStreamReset, kFlagAckNow, 0x0badf00d, 15),
       stream_body(StreamReset{5, Errc::kPeerLeft, 0x0000000200000012})},
      {"refuse_with_token", plain(FrameType::kRefuse, 0, 0x00c0ffee, echo_of(golden_hello().nonce)),
       encoded(Reason{0x00c0ffee, Errc::kRetry, token_text(0x0123456789abcdef)})},
      {"hello_with_token", plain(FrameType::kHello, 0, 0, 0x0123456789abcdef),
       encoded(golden_hello())},
      {"ack_of_refused", ack_of_refused_header(), encoded(golden_ack_of_refused())},
      {"reset_token", plain(FrameType::kResetToken, 0, 0x0badf00d, 18), eight_bytes()},
      {"reset", plain(FrameType::kReset, 0, 0x00c0ffee, 0xfedcba9876543210), {}},
      {"part", part_header(), part_body()},
      {"path_challenge", plain(FrameType::kPathChallenge, 0, 0x0badf00d, 73), eight_bytes()},
      {"path_response", plain(FrameType::kPathResponse, 0, 0x0badf00d, 74), eight_bytes()},
      source_ports()};
  all[8].header.half_word = 2;   // rank
  all[9].header.half_word = 4;   // contributors
  all[10].header.half_word = 3;  // contributors
  all[11].header.half_word = 2;
  all[11].header.session = 0x0badf00e;
  all[11].header.tag = kTag;
  all[12].header.half_word = 2;
  add_sealed(all);
  return all;
}

TEST(Golden, EncodingGivesTheseBytes) {
  ASSERT_EQ(rows().size(), kGoldenFrames.size());
  for (const Row& row : rows()) {
    Header header = row.header;
    header.payload_bytes = static_cast<uint16_t>(row.seal.size() + row.payload.size());
    header.payload_crc = row.payload_crc();
    Bytes frame(header_bytes(header.type));
    encode(header, frame.data());
    frame.insert(frame.end(), row.seal.begin(), row.seal.end());
    frame.insert(frame.end(), row.payload.begin(), row.payload.end());
    EXPECT_EQ(frame, golden(row.name)) << row.name;
  }
}

TEST(Golden, DecodingGivesTheseValues) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    const Bytes frame = golden(row.name);
    Header header;
    std::span<const std::byte> payload;
    ASSERT_EQ(decode(frame, header, payload), DecodeError::kNone);
    EXPECT_EQ(header.type, row.header.type);
    EXPECT_EQ(header.flags, row.header.flags);
    EXPECT_EQ(header.session, row.header.session);
    EXPECT_EQ(header.tag, row.header.tag);
    EXPECT_EQ(header.packet_number, row.header.packet_number);
    EXPECT_EQ(header.words, row.header.words);
    EXPECT_EQ(header.priority, row.header.priority);
    EXPECT_EQ(header.half_word, row.header.half_word);
    EXPECT_EQ(header.last_word, row.header.last_word);
    EXPECT_EQ(header.grant, row.header.grant);
    EXPECT_EQ(header.idle_grant, row.header.idle_grant);
    EXPECT_EQ(header.payload_bytes, payload.size());
    const std::span<const std::byte> seal = payload.first(row.seal.size());
    EXPECT_EQ(Bytes(seal.begin(), seal.end()), row.seal);
    payload = payload.subspan(seal.size());
    EXPECT_EQ(Bytes(payload.begin(), payload.end()), row.payload);
    EXPECT_EQ(header.payload_crc, row.payload_crc());
  }
}

// The payload of a golden frame, which the test above has checked.
Bytes payload_of(const char* name) {
  const Bytes frame = golden(name);
  return {frame.begin() + sizeof(PlainHeader), frame.end()};
}

TEST(Golden, BodiesDecodeToTheseValues) {
  const auto hello = decode_hello(payload_of("hello"));
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(encoded(*hello), encoded(golden_hello()));
  EXPECT_EQ(hello->version_min, 1);
  EXPECT_EQ(hello->version_max, 3);
  EXPECT_EQ(hello->kind, SessionKind::kData);
  EXPECT_EQ(hello->role, 0);
  EXPECT_EQ(hello->session, 0x00c0ffeeU);
  EXPECT_EQ(hello->max_udp_payload, 8972);
  EXPECT_EQ(hello->nonce, golden_hello().nonce);

  const auto answer = decode_hello_ack(payload_of("hello_ack"));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->version, 1);
  EXPECT_EQ(answer->session, 0x0badf00dU);
  EXPECT_EQ(answer->max_udp_payload, 1472);
  EXPECT_EQ(answer->incarnation, 0x5eed0002U);
  EXPECT_FALSE(answer->confirmation.has_value());
  const auto of_seals = decode_hello_ack(payload_of("hello_ack_of_seals"));
  ASSERT_TRUE(of_seals.has_value());
  EXPECT_EQ(of_seals->features, kFeatureSeals);
  EXPECT_EQ(of_seals->confirmation, golden_ack_of_seals().confirmation);
  EXPECT_EQ(answer->nonce, golden_hello_ack().nonce);
  EXPECT_EQ(answer->proof, golden_proof());

  const auto refuse = decode_reason(payload_of("refuse"));
  ASSERT_TRUE(refuse.has_value());
  EXPECT_EQ(refuse->code, Errc::kWrongSecret);
  EXPECT_EQ(refuse->text, "wrong secret for job mnist-1");

  Ack ack;
  ASSERT_TRUE(decode(payload_of("ack"), ack));
  EXPECT_EQ(encoded(ack), encoded(golden_ack()));
  ASSERT_TRUE(decode(payload_of("ack_of_refused"), ack));
  EXPECT_EQ(encoded(ack), encoded(golden_ack_of_refused()));

  const Bytes stream = payload_of("control");
  const auto piece = decode_control(stream);
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->offset, 0x100000000U);
  EXPECT_EQ(piece->bytes.size(), 9U);
}

TEST(Golden, BodiesOfStreamsDecodeToTheseValues) {
  for (const bool end : {false, true}) {
    const Bytes body = payload_of(end ? "stream_end" : "stream");
    const auto bytes = decode_stream(body);
    ASSERT_TRUE(bytes.has_value());
    EXPECT_EQ(bytes->stream, 5U);
    EXPECT_EQ(bytes->end, end);
    EXPECT_EQ(bytes->offset, 0x200000010U);
    EXPECT_EQ(bytes->bytes.size(), 2U);
  }
  const auto credit = decode_stream_credit(payload_of("stream_credit"));
  ASSERT_TRUE(credit.has_value());
  EXPECT_EQ(credit->stream, 5U);
  EXPECT_EQ(credit->limit, 0x200040010U);
  const auto reset = decode_stream_reset(payload_of("stream_reset"));
  ASSERT_TRUE(reset.has_value());
  EXPECT_EQ(reset->stream, 5U);
  EXPECT_EQ(reset->code, Errc::kPeerLeft);
  EXPECT_EQ(reset->sent_bytes, 0x200000012U);
}

TEST(StreamBody, MalformedOnesAreRefused) {
  Bytes body = stream_body(false);
  EXPECT_FALSE(decode_stream(std::span(body).first(kStreamHeaderBytes))) << "no bytes and no end";
  EXPECT_FALSE(decode_stream(std::span(body).first(kStreamHeaderBytes - 1)));
  encode_stream(0, false, 0, body.data());
  EXPECT_FALSE(decode_stream(body)) << "the control stream's bytes are in CONTROL";
  encode_stream(5, false, kMaxStreamBytes - 1, body.data());
  EXPECT_FALSE(decode_stream(body)) << "its last byte lies too far";
  encode_stream(5, false, ~uint64_t{0}, body.data());
  EXPECT_FALSE(decode_stream(body));
  encode_stream(5, true, kMaxStreamBytes, body.data());
  EXPECT_TRUE(decode_stream(std::span(body).first(kStreamHeaderBytes)));
  EXPECT_FALSE(decode_stream_credit(body)) << "too long";
  EXPECT_FALSE(decode_stream_credit(stream_body(StreamCredit{5, kMaxStreamBytes + 1})));
  EXPECT_TRUE(decode_stream_credit(stream_body(StreamCredit{0, 100})));
  EXPECT_FALSE(decode_stream_reset(stream_body(StreamReset{0, Errc::kClosed, 1})));
  EXPECT_FALSE(decode_stream_reset(stream_body(StreamReset{5, Errc::kClosed, ~uint64_t{0}})));
  for (const uint16_t code : {uint16_t{0}, uint16_t{999}}) {
    const auto reset = decode_stream_reset(stream_body(StreamReset{5, static_cast<Errc>(code), 1}));
    ASSERT_TRUE(reset.has_value());
    EXPECT_EQ(reset->code, Errc::kPeerLeft) << "a reason of a later version";
  }
}

TEST(Golden, EveryTruncationIsRefused) {
  for (const GoldenFrame& row : kGoldenFrames) {
    const Bytes frame = bytes_of_hex(row.hex);
    const size_t header_end = header_bytes(static_cast<FrameType>(frame[3]));
    for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
      Header header;
      std::span<const std::byte> payload;
      const DecodeError error = decode(std::span(frame).first(bytes), header, payload);
      EXPECT_EQ(error, bytes < header_end ? DecodeError::kTruncated : DecodeError::kBadLength)
          << row.name << " cut to " << bytes;
    }
  }
}

TEST(Golden, EveryBitFlipIsDetected) {
  for (const Row& row : rows()) {
    const Bytes frame = golden(row.name);
    for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
      Bytes flipped = frame;
      flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      Header header;
      std::span<const std::byte> payload;
      const DecodeError error = decode(flipped, header, payload);
      if (bit / 8 < header_bytes(static_cast<FrameType>(frame[3]))) {
        EXPECT_TRUE(error != DecodeError::kNone ||
                    (is_tagged(header.type) && header.tag != row.header.tag))
            << row.name << " header bit " << bit;
      } else {
        EXPECT_EQ(error, DecodeError::kNone) << row.name << " payload bit " << bit;
        EXPECT_NE(crc32c(payload) ^ row.payload_tag, header.payload_crc)
            << row.name << " payload bit " << bit;
      }
    }
  }
}

}  // namespace
}  // namespace mercury::wire
