// How a session opens and ends, without the session: frames of one side read by the other.
#include "transport/flow/opening.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "transport/flow/ending.h"
#include "transport/flow/mtu_probe.h"

namespace mercury {
namespace {

class OpeningTest : public testing::Test {
 protected:
  static constexpr uint64_t kNowNs = 1'000'000'000;
  static constexpr uint64_t kTimeoutNs = 500'000'000;
  struct Frame {
    wire::Header header;
    std::span<const std::byte> payload;
  };

  OpeningTest() {
    hello_.job = "job";
    hello_.nonce = {9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4, 5, 6, 7, 8};
    hello_.features = wire::kFeatureStreams | 64;
    answer_.nonce = {4, 5, 6};
    answer_.features = wire::kFeatureStreams | 128;
  }
  Frame decoded(uint32_t bytes) {
    Frame frame;
    EXPECT_EQ(wire::decode(std::span(buffer_).first(bytes), frame.header, frame.payload),
              wire::DecodeError::kNone);
    return frame;
  }
  wire::Hello said_hello(uint64_t now_ns = kNowNs) {
    return *wire::decode_hello(decoded(asking_.write_hello(buffer_, now_ns)).payload);
  }

  std::array<std::byte, kBasePayloadBytes> buffer_{};
  wire::Hello hello_;
  wire::HelloAck answer_;
  wire::Key key_{7};
  Opening asking_{11, 1472, kTimeoutNs};
  Opening answering_{22, 9000, kTimeoutNs};
};

TEST_F(OpeningTest, BothSidesComeToTheSameTagAndFeatures) {
  asking_.ask(hello_, key_, kNowNs);
  EXPECT_TRUE(asking_.hello_due());
  EXPECT_EQ(asking_.peer_number(), 0U);
  const wire::Hello asked = said_hello();
  EXPECT_FALSE(asking_.hello_due());
  EXPECT_EQ(asked.session, 11U);
  EXPECT_EQ(asked.max_udp_payload, 1472);  // the port's, as the caller said none

  ASSERT_TRUE(answering_.accept(asked, answer_, key_, kNowNs).ok());
  EXPECT_EQ(answering_.peer_number(), 11U);
  ASSERT_TRUE(answering_.answer_due());
  const Frame frame = decoded(answering_.write_answer(buffer_));
  EXPECT_FALSE(answering_.answer_due());
  EXPECT_TRUE(asking_.knows_hello(frame.header));
  ASSERT_TRUE(asking_.on_answer(*wire::decode_hello_ack(frame.payload)).ok());
  EXPECT_EQ(asking_.peer_number(), 22U);
  EXPECT_EQ(asking_.answer().max_udp_payload, 9000);
  EXPECT_EQ(asking_.deadline_ns(), kNever);  // HELLO is not said again

  EXPECT_EQ(asking_.tag().header, answering_.tag().header);
  EXPECT_EQ(asking_.tag().payload, answering_.tag().payload);
  EXPECT_EQ(asking_.features(), wire::kFeatureStreams);
  EXPECT_EQ(answering_.features(), wire::kFeatureStreams);
}

TEST_F(OpeningTest, HelloIsSaidAgainUntilItExpires) {
  asking_.ask(hello_, key_, kNowNs);
  said_hello();
  const uint64_t retry_ns = asking_.deadline_ns();
  EXPECT_LT(retry_ns, kNowNs + kTimeoutNs);
  asking_.on_timer(retry_ns - 1);
  EXPECT_FALSE(asking_.hello_due());
  asking_.on_timer(retry_ns);
  EXPECT_TRUE(asking_.hello_due());
  EXPECT_EQ(asking_.deadline_ns(), kNowNs + kTimeoutNs);
  EXPECT_FALSE(asking_.expired(kNowNs + kTimeoutNs - 1));
  EXPECT_TRUE(asking_.expired(kNowNs + kTimeoutNs));
}

// 256 that begin together: what comes at once is less each time.
TEST_F(OpeningTest, HellosThatAreSaidTogetherAreSaidAgainApart) {
  constexpr uint64_t kMs = 1'000'000;
  std::map<uint64_t, int> second, third;  // by millisecond
  for (uint32_t i = 0; i < 256; ++i) {
    Opening one(i + 1, 1472, kTimeoutNs);
    hello_.nonce[0] = static_cast<uint8_t>(i);
    one.ask(hello_, key_, kNowNs);
    one.write_hello(buffer_, kNowNs);
    const uint64_t again_ns = one.deadline_ns();
    EXPECT_GE(again_ns, kNowNs + 20 * kMs);
    EXPECT_LT(again_ns, kNowNs + 25 * kMs);
    ++second[(again_ns - kNowNs) / kMs];
    one.on_timer(again_ns);
    one.write_hello(buffer_, again_ns);
    EXPECT_GE(one.deadline_ns(), again_ns + 40 * kMs);
    EXPECT_LT(one.deadline_ns(), again_ns + 50 * kMs);
    ++third[(one.deadline_ns() - kNowNs) / kMs];
  }
  for (const auto& [ms, count] : second) EXPECT_LT(count, 256 / 3) << ms;
  for (const auto& [ms, count] : third) EXPECT_LT(count, 256 / 4) << ms;
}

TEST_F(OpeningTest, OnlyAHelloSaidOnceMeasuresTheRoundTrip) {
  asking_.ask(hello_, key_, kNowNs);
  EXPECT_FALSE(asking_.round_trip_ns(kNowNs).has_value());
  said_hello(kNowNs);
  EXPECT_EQ(asking_.round_trip_ns(kNowNs + 700), 700U);
  asking_.on_timer(asking_.deadline_ns());
  said_hello(kNowNs + 20'000'000);
  EXPECT_FALSE(asking_.round_trip_ns(kNowNs + 20'000'700).has_value());
}

TEST_F(OpeningTest, WhoeverAcceptedWaitsForTheTagAndNoLongerThanTheTimeOut) {
  asking_.ask(hello_, key_, kNowNs);
  ASSERT_TRUE(answering_.accept(said_hello(), answer_, key_, kNowNs).ok());
  EXPECT_FALSE(answering_.confirmed());
  EXPECT_EQ(answering_.deadline_ns(), kNowNs + kTimeoutNs);
  EXPECT_FALSE(answering_.expired(kNowNs + kTimeoutNs - 1));
  EXPECT_TRUE(answering_.expired(kNowNs + kTimeoutNs));
  answering_.confirm();
  EXPECT_TRUE(answering_.confirmed());
}

TEST_F(OpeningTest, AnswersAgainWhomItAnsweredAndNobodyElse) {
  asking_.ask(hello_, key_, kNowNs);
  const wire::Hello asked = said_hello();
  EXPECT_FALSE(answering_.on_hello_again(asked));  // not accepted yet
  ASSERT_TRUE(answering_.accept(asked, answer_, key_, kNowNs).ok());
  answering_.write_answer(buffer_);
  wire::Hello other = asked;
  other.session = 12;
  EXPECT_FALSE(answering_.on_hello_again(other));
  other = asked;
  other.nonce = {3, 2, 1};
  EXPECT_FALSE(answering_.on_hello_again(other));
  EXPECT_FALSE(answering_.answer_due());
  EXPECT_TRUE(answering_.on_hello_again(asked));
  EXPECT_TRUE(answering_.answer_due());
  answer_.session = 22;
  ASSERT_TRUE(asking_.on_answer(answer_).ok());
  other = asked;
  other.session = 22;
  EXPECT_FALSE(asking_.on_hello_again(other));  // who asks answers nobody
}

TEST_F(OpeningTest, AVersionThatWasNotOfferedIsNoAnswer) {
  asking_.ask(hello_, key_, kNowNs);
  said_hello();
  answer_.version = static_cast<uint8_t>(hello_.version_max + 1);
  answer_.session = 22;
  const Status answered = asking_.on_answer(answer_);
  ASSERT_FALSE(answered.ok());
  EXPECT_EQ(answered.error().code, Errc::kVersionMismatch);
  EXPECT_EQ(asking_.peer_number(), 22U);  // and can be told
}

TEST_F(OpeningTest, WithoutAVersionInCommonThePeerIsRefusedByTheNumberOfItsHello) {
  hello_.version_min = hello_.version_max = 200;
  asking_.ask(hello_, key_, kNowNs);
  const wire::Hello asked = said_hello();
  const Status accepted = answering_.accept(asked, answer_, key_, kNowNs);
  ASSERT_FALSE(accepted.ok());
  EXPECT_EQ(accepted.error().code, Errc::kVersionMismatch);
  EXPECT_FALSE(answering_.answer_due());
  const Frame frame = decoded(answering_.write_refusal(buffer_, accepted.error()));
  EXPECT_EQ(frame.header.type, wire::FrameType::kRefuse);
  EXPECT_TRUE(asking_.knows_hello(frame.header));
  const std::optional<wire::Reason> reason = wire::decode_reason(frame.payload);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->session, 11U);
  EXPECT_EQ(reason->text, accepted.error().message);
}

TEST_F(OpeningTest, HearsayIsARefusalOfOurVersionWithoutAnEcho) {
  asking_.ask(hello_, key_, kNowNs);
  std::array<std::byte, wire::kMaxHandshakeBytes> body{};
  const auto hear = [&](uint32_t session, Errc code, uint64_t echo, const char* text) {
    wire::Header header;
    header.type = wire::FrameType::kRefuse;
    header.packet_number = echo;
    EXPECT_FALSE(asking_.knows_hello(header));
    const size_t bytes = wire::encode(wire::Reason{session, code, text}, body);
    asking_.note_hearsay(header, std::span(body).first(bytes));
  };
  hear(12, Errc::kVersionMismatch, 0, "to another session");
  hear(11, Errc::kClosed, 0, "not of the version");
  hear(11, Errc::kVersionMismatch, 1, "a wrong echo");
  EXPECT_EQ(asking_.hearsay(), "");
  hear(11, Errc::kVersionMismatch, 0, "I speak version 1");
  EXPECT_NE(asking_.hearsay().find("I speak version 1"), std::string::npos) << asking_.hearsay();
}

TEST(Ending, OnClosedIsOwedAfterTheLastCopyAndOnce) {
  Ending ending;
  EXPECT_FALSE(ending.owed());
  ending.begin(wire::FrameType::kClose, Error(Errc::kPeerLost, "gone"), 3);
  EXPECT_FALSE(ending.on_said());
  EXPECT_FALSE(ending.on_said());
  EXPECT_FALSE(ending.owed());
  EXPECT_TRUE(ending.on_said());
  EXPECT_TRUE(ending.owed());
  EXPECT_EQ(ending.error().code, Errc::kPeerLost);
  ending.settle();
  EXPECT_FALSE(ending.owed());
}

TEST(Ending, OnClosedIsOwedAtOnceWhereNobodyCanBeTold) {
  Ending ending;
  ending.begin(wire::FrameType::kClose, Error(Errc::kClosed, "closed"), 3);
  ending.skip();
  EXPECT_TRUE(ending.owed());
}

}  // namespace
}  // namespace mercury
