#include "transport/wire/hello.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

namespace mercury::wire {
namespace {

Hello valid_hello() {
  Hello hello;
  hello.session = 5;
  hello.job = "digits-1.a_B";
  hello.rank = 3;
  hello.max_udp_payload = 1472;
  return hello;
}
HelloAck valid_hello_ack() {
  HelloAck ack;
  ack.session = 6;
  ack.max_udp_payload = 1472;
  return ack;
}

template <class Body>
std::vector<std::byte> encode_whole(const Body& body) {
  std::vector<std::byte> bytes(kMaxHandshakeBytes);
  bytes.resize(encode(body, bytes));
  return bytes;
}

TEST(Hello, AcceptsAllThatTheRulesAllow) {
  Hello hello = valid_hello();
  hello.job = std::string(kMaxJobNameBytes, 'x');
  hello.rank = 0xffff;
  hello.version_max = 255;
  hello.kind = SessionKind::kData;
  hello.role = 0xff;
  hello.max_udp_payload = kMinUdpPayload;
  const auto out = decode_hello(encode_whole(hello));
  ASSERT_TRUE(out.has_value());
  EXPECT_EQ(out->job, hello.job);
  EXPECT_EQ(out->role, 0xff);
  EXPECT_EQ(out->rank, 0xffff);
  EXPECT_EQ(out->kind, SessionKind::kData);
  EXPECT_EQ(out->version_max, 255);
}

TEST(Hello, RefusesEachValueOutOfRange) {
  const struct {
    const char* description;
    std::function<void(Hello&)> spoil;
  } rows[] = {
      {"session 0", [](Hello& h) { h.session = 0; }},
      {"version 0", [](Hello& h) { h.version_min = 0; }},
      {"versions the wrong way round", [](Hello& h) { h.version_min = 3; }},
      {"unknown kind", [](Hello& h) { h.kind = static_cast<SessionKind>(2); }},
      {"payload below IPv6's least", [](Hello& h) { h.max_udp_payload = kMinUdpPayload - 1; }},
      {"no name", [](Hello& h) { h.job = ""; }},
      {"name with a blank", [](Hello& h) { h.job = "a b"; }},
      {"name with a slash", [](Hello& h) { h.job = "../etc"; }},
      {"name with a NUL", [](Hello& h) { h.job = std::string("a\0b", 3); }},
      {"name with an escape", [](Hello& h) { h.job = "\x1b[2J"; }},
      {"name with a byte above 127", [](Hello& h) { h.job = "\xc3\xa4"; }},
  };
  for (const auto& row : rows) {
    Hello hello = valid_hello();
    row.spoil(hello);
    EXPECT_FALSE(decode_hello(encode_whole(hello)).has_value()) << row.description;
  }
}

TEST(Hello, NameTooLongIsNotEncodedAndNotDecoded) {
  Hello hello = valid_hello();
  hello.job = std::string(kMaxJobNameBytes + 1, 'x');
  EXPECT_TRUE(encode_whole(hello).empty());
  hello.job.pop_back();
  std::vector<std::byte> body = encode_whole(hello);
  body.push_back(std::byte{'x'});
  body[23] = std::byte{kMaxJobNameBytes + 1};  // bytes of the name
  EXPECT_FALSE(decode_hello(body).has_value());
}

template <class Body, class Decode>
void expect_only_this_length(const Body& body, Decode decode_body) {
  std::vector<std::byte> bytes = encode_whole(body);
  ASSERT_TRUE(decode_body(bytes).has_value());
  for (size_t shorter = 0; shorter < bytes.size(); ++shorter) {
    EXPECT_FALSE(decode_body(std::span(bytes).first(shorter)).has_value()) << shorter;
  }
  bytes.push_back(std::byte{'x'});
  EXPECT_FALSE(decode_body(bytes).has_value());
}

TEST(Handshake, EveryOtherLengthIsRefused) {
  expect_only_this_length(valid_hello(), decode_hello);
  expect_only_this_length(valid_hello_ack(), decode_hello_ack);
  expect_only_this_length(Reason{4, Errc::kClosed, "bye"}, decode_reason);
  expect_only_this_length(Reason{4, Errc::kClosed, ""}, decode_reason);
}

TEST(Handshake, EncodesNothingWithoutRoom) {
  std::vector<std::byte> room(kMaxHandshakeBytes);
  const auto largest = [&](const auto& body) { return encode(body, room); };
  const Reason reason{4, Errc::kClosed, std::string(kMaxReason, 'x')};
  for (size_t bytes = 0; bytes < largest(valid_hello()); ++bytes) {
    EXPECT_EQ(encode(valid_hello(), std::span(room).first(bytes)), 0U);
  }
  for (size_t bytes = 0; bytes < largest(valid_hello_ack()); ++bytes) {
    EXPECT_EQ(encode(valid_hello_ack(), std::span(room).first(bytes)), 0U);
  }
  for (size_t bytes = 0; bytes < largest(reason); ++bytes) {
    EXPECT_EQ(encode(reason, std::span(room).first(bytes)), 0U);
  }
}

TEST(HelloAck, RefusesEachValueOutOfRange) {
  HelloAck ack = valid_hello_ack();
  ack.session = 0;
  EXPECT_FALSE(decode_hello_ack(encode_whole(ack)).has_value());
  ack = valid_hello_ack();
  ack.version = 0;
  EXPECT_FALSE(decode_hello_ack(encode_whole(ack)).has_value());
  ack = valid_hello_ack();
  ack.max_udp_payload = kMinUdpPayload - 1;
  EXPECT_FALSE(decode_hello_ack(encode_whole(ack)).has_value());
}

TEST(Reason, TextCannotSteerATerminal) {
  const auto out =
      decode_reason(encode_whole(Reason{4, Errc::kWrongSecret, "bad \x1b[2J\n\x7f\xff"}));
  ASSERT_TRUE(out.has_value());
  EXPECT_EQ(out->code, Errc::kWrongSecret);
  EXPECT_EQ(out->text, "bad ?[2J???");
}

TEST(Reason, LongTextIsCut) {
  const auto out = decode_reason(encode_whole(Reason{4, Errc::kClosed, std::string(1000, 'x')}));
  ASSERT_TRUE(out.has_value());
  EXPECT_EQ(out->text, std::string(kMaxReason, 'x'));
}

TEST(Reason, RefusesCodesWithoutAName) {
  for (const uint16_t code : std::initializer_list<uint16_t>{6, 100, 0xffff}) {
    EXPECT_FALSE(decode_reason(encode_whole(Reason{4, static_cast<Errc>(code), "x"})).has_value());
  }
}

// Whatever decodes encodes to the same bytes again, except those that decoding ignores or replaces.
TEST(Handshake, RandomBodiesKeepTheRules) {
  std::mt19937 random(5);
  const std::vector<std::byte> valid = encode_whole(valid_hello());
  int decoded = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> body = valid;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      body[random() % body.size()] = static_cast<std::byte>(random());
    }
    body.resize(body.size() - (random() % 8 == 0 ? random() % body.size() : 0));
    const auto hello = decode_hello(body);
    if (!hello) continue;
    ++decoded;
    ASSERT_NE(hello->session, 0U);
    ASSERT_LE(hello->version_min, hello->version_max);
    ASSERT_EQ(encode_whole(*hello), body);
  }
  EXPECT_GT(decoded, 1000);
}

}  // namespace
}  // namespace mercury::wire
