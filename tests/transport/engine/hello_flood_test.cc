// HELLOs of strangers, who write whatever address they like into them: what they cost an engine,
// and whether honest ones get through.
#include <cstring>

#include "tests/transport/engine/echo_lab.h"
#include "transport/engine/handshakes.h"
#include "transport/engine/hello_gate.h"
#include "transport/flow/handshake.h"

namespace mercury::echo {
namespace {

bool is_stranger(const IpAddress& ip) { return ip.v4_bytes()[1] == 66; }
Endpoint stranger(uint32_t number) {
  return {IpAddress::v4(10, 66, static_cast<uint8_t>(number >> 8), static_cast<uint8_t>(number)),
          7470};
}

wire::Hello hello_of(uint32_t number) {
  wire::Hello hello;
  hello.kind = wire::SessionKind::kData;
  hello.job = "echo";
  hello.session = number + 1;
  hello.max_udp_payload = wire::kMinUdpPayload;
  std::memcpy(hello.nonce.data(), &number, sizeof number);
  return hello;
}

std::vector<std::byte> frame_of(const wire::Hello& hello, uint64_t token = 0) {
  std::vector<std::byte> frame(wire::kMinUdpPayload);
  const size_t body = wire::encode(hello, std::span(frame).subspan(sizeof(wire::PlainHeader)));
  frame.resize(finish_frame(frame, wire::FrameType::kHello, 0, token, static_cast<uint32_t>(body)));
  return frame;
}

TEST(HelloGate, ATokenIsGoodForItsHelloAlone) {
  const HelloGate gate(1);
  const wire::Hello hello = hello_of(1);
  const uint64_t token = gate.token(stranger(1), hello, kSecond);
  EXPECT_TRUE(gate.accepts(token, stranger(1), hello, 2 * kSecond));
  EXPECT_FALSE(gate.accepts(token, stranger(2), hello, 2 * kSecond));
  EXPECT_FALSE(gate.accepts(token ^ 1, stranger(1), hello, 2 * kSecond));
  EXPECT_FALSE(gate.accepts(0, stranger(1), hello, 2 * kSecond));
  Endpoint other_port = stranger(1);
  ++other_port.port;
  EXPECT_FALSE(gate.accepts(token, other_port, hello, 2 * kSecond));
  wire::Hello other = hello;
  ++other.session;
  EXPECT_FALSE(gate.accepts(token, stranger(1), other, 2 * kSecond));
  other = hello;
  other.nonce[15] ^= 1;
  EXPECT_FALSE(gate.accepts(token, stranger(1), other, 2 * kSecond));
  EXPECT_FALSE(HelloGate(2).accepts(token, stranger(1), hello, 2 * kSecond)) << "another engine's";
}

TEST(HelloGate, ATokenGrowsOld) {
  const HelloGate gate(1);
  const wire::Hello hello = hello_of(1);
  const uint64_t token = gate.token(stranger(1), hello, 29 * kSecond);
  EXPECT_TRUE(gate.accepts(token, stranger(1), hello, 59 * kSecond));
  EXPECT_FALSE(gate.accepts(token, stranger(1), hello, 61 * kSecond));
}

TEST(HelloGate, WhatATokenIsWrittenAsIsReadAgain) {
  for (const uint64_t token : {uint64_t{1}, uint64_t{0x0123456789abcdef}, ~uint64_t{0}}) {
    EXPECT_EQ(wire::token_of(wire::token_text(token)), token);
  }
  for (const char* text : {"", "1", "123456789012345g", " 123456789012345", "12345678901234567"}) {
    EXPECT_EQ(wire::token_of(text), std::nullopt) << text;
  }
}

class HelloFloodTest : public testing::Test {
 protected:
  HelloFloodTest() {
    lab.b().holds = [](const event::HelloReceived& hello) { return is_stranger(hello.remote.ip); };
  }
  Counters& counters() { return *lab.b().counters; }
  void inject(uint32_t number, uint64_t token = 0) {
    ASSERT_TRUE(lab.network.inject(stranger(number), lab.b().port->info().local,
                                   frame_of(hello_of(number), token)));
  }
  Lab lab{1, {}, 1500};  // so that a pass receives as many frames as it may
};

TEST_F(HelloFloodTest, OneRoundTripWhereNobodyElseAsks) {
  ASSERT_TRUE(lab.connect());
  EXPECT_EQ(counters().get(Counter::kTokensAsked), 0U);
}

TEST_F(HelloFloodTest, StrangersFromManyAddressesTakeFewPlaces) {
  for (uint32_t i = 0; i < 5000; ++i) {
    inject(i);
    lab.run_for(10'000);
  }
  lab.run_for(20 * kMs);
  EXPECT_EQ(counters().get(Gauge::kHandshakes), HelloGate::kWithoutToken);
  EXPECT_GT(counters().get(Counter::kTokensAsked), 4000U);
  EXPECT_TRUE(lab.connect()) << "an honest one shows its address";
  lab.expect_echoes(2, 100'000);
}

// However fast the control plane answers: each takes its time.
TEST_F(HelloFloodTest, FewInASecondAreJudgedWithoutAToken) {
  uint64_t judged = 0;
  lab.b().holds = [this, &judged](const event::HelloReceived& hello) {
    if (!is_stranger(hello.remote.ip)) return false;
    ++judged;
    lab.b().send(command::Refuse{hello.hello, Errc::kNotFound, "no such job"});
    return true;
  };
  constexpr uint32_t kHellos = 1'500;
  for (uint32_t i = 0; i < kHellos; ++i) {
    inject(i);
    lab.run_for(kSecond / kHellos);
  }
  EXPECT_GE(judged, HelloGate::kJudged);
  EXPECT_LE(judged, 2 * HelloGate::kJudged + 1);
  EXPECT_EQ(counters().get(Counter::kTokensAsked), kHellos - judged);
  EXPECT_TRUE(lab.connect()) << "an honest one shows its address";
}

// A flood from one address leaves others their room.
TEST_F(HelloFloodTest, FewInASecondOfOneAddressAreAnswered) {
  constexpr uint32_t kHellos = 20'000;
  for (uint32_t i = 0; i < kHellos; ++i) {
    Endpoint port = stranger(0);
    port.port = static_cast<uint16_t>(i);
    ASSERT_TRUE(lab.network.inject(port, lab.b().port->info().local, frame_of(hello_of(i), i % 2)));
    lab.run_for(10'000);
  }
  const uint64_t answered =
      counters().get(Counter::kTokensAsked) + counters().get(Gauge::kHandshakes);
  EXPECT_LE(answered, HelloGate::kAnswersOfShare + HelloGate::kAnswersOfShare / 5 + 1);
  EXPECT_GE(counters().get(Counter::kDropHello) + answered + 2, kHellos);
  ASSERT_TRUE(lab.connect());
  lab.expect_echoes(2, 100'000);
}

// One from all addresses leaves room for who has a token, which nobody makes up.
TEST_F(HelloFloodTest, SomeInASecondAreAnsweredWhereverTheyComeFrom) {
  constexpr uint32_t kHellos = 40'000;
  for (uint32_t i = 0; i < kHellos; ++i) {
    inject(i, i % 2);
    lab.run_for(10'000);
  }
  const uint64_t most = HelloGate::kAnswers + HelloGate::kAnswers * 2 / 5;  // at once, and in 0.4 s
  EXPECT_LE(counters().get(Counter::kTokensAsked), most);
  EXPECT_GE(counters().get(Counter::kTokensAsked) + HelloGate::kWithoutToken + 1, most);
  const HelloGate same(2);  // as the lab's second host, by its seed
  const uint64_t waiting = counters().get(Gauge::kHandshakes);
  inject(kHellos, same.token(stranger(kHellos), hello_of(kHellos), lab.network.now_ns()));
  lab.run_for(20 * kMs);
  EXPECT_EQ(counters().get(Gauge::kHandshakes), waiting + 1);
}

// He has a token by right, and says the HELLO that it is for again and again.
TEST_F(HelloFloodTest, AFloodWithATokenLeavesOthersWithTokensTheirRoom) {
  const HelloGate same(2);  // as the lab's second host, by its seed
  const uint64_t token = same.token(stranger(0), hello_of(0), lab.network.now_ns());
  const auto flood = [&](uint32_t hellos) {
    for (uint32_t i = 0; i < hellos; ++i) {
      inject(0, token);
      lab.run_for(10'000);
    }
  };
  flood(20'000);
  EXPECT_GE(counters().get(Counter::kDropHello) + 2 * HelloGate::kAnswersOfShare, 20'000U);
  constexpr uint32_t kHonest = 20;
  for (uint32_t i = 1; i <= kHonest; ++i) {
    inject(i, same.token(stranger(i), hello_of(i), lab.network.now_ns()));
    flood(2);
  }
  lab.run_for(20 * kMs);
  EXPECT_EQ(counters().get(Gauge::kHandshakes), 1 + kHonest);
}

// One that opened a session opens no second, and is answered once more each time: not without end.
TEST_F(HelloFloodTest, FewInASecondOfOneSessionAreAnsweredAgain) {
  struct Seen {
    Endpoint source;
    Endpoint target;
    std::vector<std::byte> hello;
    uint64_t answers = 0;
  } seen;
  lab.network.set_tap(
      [](void* context, uint64_t, const Endpoint& source, const Endpoint& target,
         std::span<const std::byte> frame) {
        Seen& so_far = *static_cast<Seen*>(context);
        wire::Header header;
        std::span<const std::byte> payload;
        if (wire::decode(frame, header, payload) != wire::DecodeError::kNone) return;
        so_far.answers += header.type == wire::FrameType::kHelloAck;
        if (header.type != wire::FrameType::kHello || !so_far.hello.empty()) return;
        so_far.source = source;
        so_far.target = target;
        so_far.hello.assign(frame.begin(), frame.end());
      },
      &seen);
  ASSERT_TRUE(lab.connect());
  const uint64_t before = seen.answers;
  for (uint32_t i = 0; i < 5'000; ++i) {
    ASSERT_TRUE(lab.network.inject(seen.source, seen.target, seen.hello));
    lab.run_for(10'000);
  }
  EXPECT_GE(seen.answers, before + HelloGate::kAnswersOfShare / 2);
  EXPECT_LE(seen.answers, before + HelloGate::kAnswersOfShare * 21 / 20 + 2);
  lab.expect_echoes(2, 100'000);
}

// Whoever hears what is sent to his address is let in as before.
TEST_F(HelloFloodTest, ATokenOpensTheGate) {
  for (uint32_t i = 0; i < 200; ++i) {
    inject(i);
    lab.run_for(10'000);
  }
  lab.run_for(20 * kMs);
  ASSERT_EQ(counters().get(Gauge::kHandshakes), HelloGate::kWithoutToken);
  const HelloGate same(2);  // as the lab's second host, by its seed
  inject(150, same.token(stranger(150), hello_of(150), lab.network.now_ns()));
  inject(151, same.token(stranger(150), hello_of(150), lab.network.now_ns()));
  lab.run_for(20 * kMs);
  EXPECT_EQ(counters().get(Gauge::kHandshakes), HelloGate::kWithoutToken + 1);
}

TEST(Handshakes, OneTooManyForgetsTheOldestAlone) {
  Handshakes held(10 * kSecond, 1);
  std::vector<uint64_t> ids;
  for (uint32_t i = 0; i <= Handshakes::kMaxPending; ++i) {
    const PendingHello* const one = held.add(stranger(i), hello_of(i), {}, i);
    ASSERT_NE(one, nullptr);
    ids.push_back(one->id);
  }
  EXPECT_EQ(held.size(), Handshakes::kMaxPending);
  EXPECT_FALSE(held.waits(stranger(0), hello_of(0)));
  EXPECT_FALSE(held.take(ids[0]));
  for (uint32_t i = 1; i <= Handshakes::kMaxPending; ++i) {
    EXPECT_TRUE(held.waits(stranger(i), hello_of(i))) << i;
    EXPECT_TRUE(held.take(ids[i])) << i;
  }
}

// An engine whose control plane reads none of what it is told.
struct UnreadTest : HelloFloodTest {
  void pass() {
    lab.network.advance_to(lab.network.now_ns() + 100'000);
    lab.a().poll(lab.network.now_ns());
    lab.b().engine.poll_once(lab.network.now_ns());
  }
  size_t reports() { return lab.b().engine.reports_waiting(); }
};

TEST_F(UnreadTest, HellosLeaveRoomForWhatOpenSessionsSay) {
  ASSERT_TRUE(lab.connect());
  const HelloGate same(2);
  for (uint32_t i = 0; i < 6'000; ++i) {
    inject(i, same.token(stranger(i), hello_of(i), lab.network.now_ns()));
    pass();
  }
  EXPECT_EQ(reports(), kMostReportsBeforeHello);
  EXPECT_GT(counters().get(Counter::kDropControl), 0U);
  constexpr size_t kSaid = 200;
  for (size_t i = 0; i < kSaid; ++i) {
    lab.a().send(command::SendControl{kToken, std::vector<std::byte>(10)});
    pass();
  }
  for (int i = 0; i < 100; ++i) pass();
  EXPECT_EQ(reports(), kMostReportsBeforeHello + kSaid);
}

// One of another version is refused by the engine itself, to whatever address he wrote.
TEST_F(HelloFloodTest, RefusalsInASecondAreBounded) {
  uint64_t frames = 0;
  lab.network.set_tap([](void* context, uint64_t, const Endpoint&, const Endpoint&,
                         std::span<const std::byte>) { ++*static_cast<uint64_t*>(context); },
                      &frames);
  for (uint32_t i = 0; i < 3000; ++i) {
    wire::Hello hello = hello_of(i);
    hello.version_min = hello.version_max = 9;
    ASSERT_TRUE(lab.network.inject(stranger(i), lab.b().port->info().local, frame_of(hello)));
    lab.run_for(kMs);
  }
  EXPECT_EQ(counters().get(Counter::kSessionsRefused), 3000U);
  EXPECT_GE(frames, 3 * HelloGate::kRefusals);
  EXPECT_LE(frames, 4 * HelloGate::kRefusals);
  EXPECT_EQ(counters().get(Counter::kRefusalsUnsaid), 3000U - frames);
  EXPECT_TRUE(lab.connect());
}

TEST_F(HelloFloodTest, OnePassReadsFewOfThem) {
  uint32_t heard = 0;
  lab.b().holds = [&](const event::HelloReceived&) {
    ++heard;
    return true;
  };
  for (uint32_t i = 0; i < 30; ++i) inject(i);
  lab.network.advance_to(lab.network.now_ns() + kMs);
  lab.b().poll(lab.network.now_ns());
  const uint64_t received = counters().get(Counter::kRxFrames);
  EXPECT_GT(received, HelloGate::kPerPass);
  EXPECT_EQ(heard, HelloGate::kPerPass);
  EXPECT_EQ(counters().get(Counter::kDropHello), received - HelloGate::kPerPass);
  for (uint32_t i = 0; i < 30; ++i) {  // said again, and not all at the same time
    inject(i);
    lab.run_for(10'000);
  }
  EXPECT_EQ(heard, 30U);
}

}  // namespace
}  // namespace mercury::echo
