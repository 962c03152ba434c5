// Engines all of whose sessions are taken: who is refused for good, and who finds room when he asks
// again.
#include <cstring>

#include "tests/transport/engine/echo_lab.h"
#include "transport/flow/handshake.h"

namespace mercury::echo {
namespace {

EngineConfig with_sessions(uint32_t sessions) {
  EngineConfig config;
  config.max_sessions = sessions;
  return config;
}

class FullTable : public testing::Test {
 protected:
  // Somebody's HELLO, which the lab's second host accepts: he says nothing more.
  void says_hello(uint32_t number) {
    send_hello(number);
    lab.run_for(kMs);
  }
  void send_hello(uint32_t number) {
    wire::Hello hello;
    hello.kind = wire::SessionKind::kData;
    hello.features = wire::kFeatureStreams;
    hello.job = "echo";
    hello.session = number;
    hello.max_udp_payload = wire::kMinUdpPayload;
    std::memcpy(hello.nonce.data(), &number, sizeof number);
    std::vector<std::byte> frame(wire::kMinUdpPayload);
    const size_t body = wire::encode(hello, std::span(frame).subspan(sizeof(wire::PlainHeader)));
    frame.resize(finish_frame(frame, wire::FrameType::kHello, 0, 0, static_cast<uint32_t>(body)));
    const Endpoint from{IpAddress::v4(10, 66, 0, static_cast<uint8_t>(number)), 7470};
    ASSERT_TRUE(lab.network.inject(from, Lab::at(1), frame));
  }
  uint64_t count(Counter counter) { return lab.b().counters->get(counter); }
  // What `a` hears of the session `token`, kOk while it has it.
  Errc asks(uint64_t token, const Endpoint& remote = Lab::at(1)) {
    lab.a().connect(Token(token), remote);
    lab.run_for(10 * kMs);
    return lab.a().closed.contains(Token(token)) ? lab.a().closed.at(Token(token)) : Errc::kOk;
  }
  static constexpr uint32_t kSessions = 4;
  Lab lab{1, {}, 1500, with_sessions(kSessions)};
};

TEST_F(FullTable, RefusesOneMoreAndSaysWhy) {
  lab.start(0, {}, 1);  // which has more
  for (uint64_t token = 1; token <= kSessions; ++token) ASSERT_EQ(asks(token), Errc::kOk);
  EXPECT_EQ(asks(9), Errc::kLimit);
  EXPECT_EQ(lab.a().closed_text.at(Token(9)),
            "all sessions of the engine are open (engine.max_sessions = 4)");
  lab.a().send(command::CloseSession{Token(1), Errc::kClosed, "enough"});
  lab.run_for(kMs);
  EXPECT_EQ(asks(10), Errc::kOk);
  EXPECT_EQ(lab.b().engine.session_count(), kSessions);
}

TEST_F(FullTable, OnTheSideThatAsks) {
  lab.start(1, {}, 2);
  for (uint64_t token = 1; token <= kSessions; ++token) ASSERT_EQ(asks(token), Errc::kOk);
  EXPECT_EQ(asks(9), Errc::kLimit);
  EXPECT_EQ(lab.a().closed_text.at(Token(9)),
            "on this host all sessions of the engine are open (engine.max_sessions = 4)");
}

// Whoever repeats members' HELLOs from the wire takes all sessions that there are, for a while.
TEST_F(FullTable, ThoseThatShowNothingGiveWay) {
  ASSERT_EQ(asks(kToken.value), Errc::kOk);
  uint32_t strangers = 0;
  while (strangers < 20) says_hello(++strangers);
  for (uint64_t token = 1; token < kSessions; ++token) {
    says_hello(++strangers);
    ASSERT_EQ(lab.b().engine.session_count(), kSessions);
    EXPECT_EQ(asks(token), Errc::kOk);
  }
  EXPECT_EQ(count(Counter::kSessionsDisplaced), strangers);
  says_hello(++strangers);
  EXPECT_EQ(asks(30), Errc::kLimit) << "those that are left have shown who they are";
  EXPECT_EQ(lab.b().engine.session_count(), kSessions);
  EXPECT_EQ(lab.b().opened.size(), kSessions);
  lab.expect_echoes(1, 1'000);  // in the first, which has stayed
}

// A member that connects to its own host's server needs two places, one after the other: were they
// free for a while, strangers would have them before it asks again.
TEST_F(FullTable, TheyGiveWayToBothEndsOfASessionWithinTheHost) {
  for (uint32_t stranger = 1; stranger <= kSessions; ++stranger) says_hello(stranger);
  ASSERT_EQ(lab.b().engine.session_count(), kSessions);
  lab.b().connect(kToken, Lab::at(1));
  lab.run_for(10 * kMs);
  EXPECT_FALSE(lab.b().closed.contains(kToken)) << lab.b().closed_text[kToken];
  EXPECT_EQ(lab.b().opened.size(), 2);
  EXPECT_EQ(lab.b().engine.session_count(), kSessions);
}

// Those that come at once have had no answer yet: none of them gives way to another.
TEST_F(FullTable, WhoCameInThisPassKeepsHisPlace) {
  for (uint32_t stranger = 1; stranger <= kSessions + 3; ++stranger) send_hello(stranger);
  lab.run_for(kMs);
  EXPECT_EQ(lab.b().engine.session_count(), kSessions);
  EXPECT_EQ(count(Counter::kSessionsDisplaced), 0U);
  EXPECT_EQ(count(Counter::kSessionsRefused), 3U);
  says_hello(kSessions + 4);
  EXPECT_EQ(count(Counter::kSessionsDisplaced), 1U);
}

// Without a frame in which to say so to who gives way, nobody does.
TEST_F(FullTable, NobodyGivesWayUntold) {
  sim::SimPortConfig port;
  port.tx_queue_bytes = 1;
  lab.start(1, with_sessions(kSessions), 2, {}, port);
  for (uint32_t stranger = 1; stranger <= kSessions; ++stranger) says_hello(stranger);
  EXPECT_EQ(lab.b().engine.session_count(), kSessions);
  for (uint32_t stranger = 11; stranger <= 13; ++stranger) send_hello(stranger);
  lab.run_for(kMs);
  EXPECT_EQ(count(Counter::kSessionsDisplaced), 1U);
  EXPECT_EQ(lab.b().engine.session_count(), kSessions);
  for (uint32_t stranger = 14; stranger <= 16; ++stranger) says_hello(stranger);
  EXPECT_EQ(count(Counter::kSessionsDisplaced), 4U);
}

// One that ends leaves its place in a pass or two: whoever asks in the same breath asks again.
TEST_F(FullTable, OneThatEndsMakesRoom) {
  lab.start(1, {}, 2);
  for (uint64_t token = 1; token <= kSessions; ++token) ASSERT_EQ(asks(token + 6), Errc::kOk);
  lab.a().send(command::CloseSession{kToken, Errc::kClosed, "again"});
  EXPECT_EQ(asks(20), Errc::kAgain);
  EXPECT_EQ(asks(21), Errc::kOk);
}

}  // namespace
}  // namespace mercury::echo
