// How sessions open, refuse, close and time out.
#include "tests/transport/flow/pipe.h"
#include "transport/flow/handshake.h"

namespace mercury::test {
namespace {

void expect_nothing_in_flight(Net& net) {
  for (Host& host : net.host) {
    EXPECT_EQ(host.session->bytes_in_flight(), 0U);
    EXPECT_EQ(host.pool.blocks_in_use(), 0U);
  }
}

TEST(SessionOpen, OpensWithoutLossInOneRoundTrip) {
  Net net(1);
  net.host[1].answer.incarnation = 77;
  net.connect();
  ASSERT_TRUE(net.run([&] { return net.host[0].opened == 1; }, 100'001));
  EXPECT_EQ(net.host[0].session->state(), Session::State::kOpen);
  EXPECT_EQ(net.host[1].session->state(), Session::State::kOpen);
  EXPECT_EQ(net.host[0].session->peer_number(), 22U);
  EXPECT_EQ(net.host[1].session->peer_number(), 11U);
  EXPECT_EQ(net.host[0].session->answer().incarnation, 77U);
  EXPECT_EQ(net.host[0].session->answer().version, wire::kVersion);
  EXPECT_LE(net.host[0].session->smoothed_rtt_ns(), 100'000U) << "the handshake is a first sample";
}

TEST(SessionOpen, OpensUnderLossDuplicationReorderingAndCorruption) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed);
    net.weather = {.loss = 0.2, .duplication = 0.2, .corruption = 0.05, .jitter_ns = 30'000'000};
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    net.run_for(2 * kSecond);
    EXPECT_EQ(net.host[0].opened, 1);
    EXPECT_EQ(net.host[0].closed + net.host[1].closed, 0);
  }
}

TEST(SessionOpen, SaysHelloWithBackOffAndGivesUpInTime) {
  Net net(1);
  net.weather.down = true;
  std::vector<uint64_t> times;
  net.tap = [&](int, std::span<const std::byte>) { times.push_back(net.now_ns); };
  net.connect();
  const uint64_t start = net.now_ns;
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, 11 * kSecond));
  EXPECT_EQ(net.now_ns - start, 10 * kSecond);
  EXPECT_EQ(net.host[0].closed_code, Errc::kTimedOut);
  EXPECT_EQ(net.host[0].closed_text, "no answer from 10.0.0.2:7470 within 10 s");
  ASSERT_GE(times.size(), 7U);
  uint64_t wait = 20'000'000;
  for (size_t i = 1; i < times.size(); ++i) {
    EXPECT_GE(times[i] - times[i - 1], wait);
    EXPECT_LT(times[i] - times[i - 1], wait + wait / 4);
    wait = std::min<uint64_t>(wait * 2, 500'000'000);
  }
  net.run_for(kSecond);
  EXPECT_EQ(net.host[0].closed, 1);
  EXPECT_EQ(net.host[0].session->next_deadline_ns(), kNever);
}

TEST(SessionOpen, ARefusalCarriesItsCodeAndText) {
  Net net(1);
  net.host[1].hello_hook = [&](const wire::Hello& hello) {
    Bytes frame(1232);
    const wire::Reason reason{hello.session, Errc::kWrongSecret, "the secret differs"};
    frame.resize(write_refusal(frame, wire::echo_of(hello.nonce), reason));
    net.send(1, frame);
  };
  net.connect();
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, kSecond));
  EXPECT_EQ(net.host[0].closed_code, Errc::kWrongSecret);
  EXPECT_EQ(net.host[0].closed_text, "the secret differs");
  EXPECT_EQ(net.host[0].session->state(), Session::State::kClosed);
  EXPECT_EQ(net.host[0].opened, 0);
  EXPECT_EQ(net.host[0].counters.get(Counter::kSessionsRefused), 1U);
}

TEST(SessionOpen, ARefusalForAnotherNumberIsIgnored) {
  Net net(1);
  net.connect();
  net.host[0].pump();
  const wire::Reason reason{12345, Errc::kWrongSecret, "not for you"};
  Bytes body(512);
  body.resize(wire::encode(reason, body));
  net.host[0].session->on_frame(
      plain_header(wire::FrameType::kRefuse, body, wire::echo_of(Net::kNonce), {}), body,
      net.now_ns);
  EXPECT_EQ(net.host[0].session->state(), Session::State::kConnecting);
  EXPECT_EQ(net.host[0].counters.get(Counter::kDropHandshake), 1U);
}

// A host that many ask at the same time wants to see that we hear it.
TEST(SessionOpen, ATokenIsSaidWithTheNextHelloAtOnce) {
  Net net(1);
  net.connect();
  net.host[0].pump();
  Session& session = *net.host[0].session;
  const auto hears = [&](const std::string& text) {
    Bytes body(512);
    body.resize(wire::encode(wire::Reason{11, Errc::kRetry, text}, body));
    session.on_frame(plain_header(wire::FrameType::kRefuse, body, wire::echo_of(Net::kNonce), {}),
                     body, net.now_ns);
  };
  ASSERT_FALSE(session.has_pending(net.now_ns));
  for (uint64_t token = 1; token <= 16; ++token) {
    hears(wire::token_text(token));
    ASSERT_TRUE(session.has_pending(net.now_ns));
    Bytes frame(1472);
    frame.resize(session.build(frame, net.now_ns));
    wire::Header header;
    std::span<const std::byte> payload;
    ASSERT_EQ(wire::decode(frame, header, payload), wire::DecodeError::kNone);
    EXPECT_EQ(header.type, wire::FrameType::kHello);
    EXPECT_EQ(header.packet_number, token);
    EXPECT_FALSE(session.has_pending(net.now_ns));
  }
  // What is none, one that was said, and more than anybody needs.
  for (const std::string& text :
       {std::string("no token"), wire::token_text(16), wire::token_text(17)}) {
    hears(text);
    EXPECT_FALSE(session.has_pending(net.now_ns)) << text;
  }
  EXPECT_EQ(net.host[0].counters.get(Counter::kDropHandshake), 3U);
  EXPECT_EQ(net.host[0].counters.get(Counter::kSessionsRefused), 0U);
  EXPECT_EQ(session.state(), Session::State::kConnecting);
  ASSERT_TRUE(net.run_until_open());
}

// From somebody off the path, who has found port and session number but not seen the HELLO.
TEST(SessionOpen, AnswersOfOneWhoHasNotSeenTheHelloChangeNothing) {
  for (const Errc code : {Errc::kWrongSecret, Errc::kVersionMismatch}) {
    Net net(1);
    net.connect();
    net.host[0].pump();
    Session& session = *net.host[0].session;
    Bytes refusal(512);
    refusal.resize(wire::encode(wire::Reason{11, code, "go away"}, refusal));
    wire::HelloAck answer;
    answer.session = 33;
    answer.max_udp_payload = 1472;
    Bytes ack(512);
    ack.resize(wire::encode(answer, ack));
    uint64_t forged = 0;
    for (const uint64_t echo : {uint64_t{0}, uint64_t{1}, wire::echo_of(Net::kNonce) ^ 1}) {
      session.on_frame(plain_header(wire::FrameType::kRefuse, refusal, echo, {}), refusal,
                       net.now_ns);
      session.on_frame(plain_header(wire::FrameType::kHelloAck, ack, echo, {}), ack, net.now_ns);
      forged += 2;
    }
    EXPECT_EQ(net.host[0].counters.get(Counter::kDropForgedAnswer), forged);
    EXPECT_EQ(session.state(), Session::State::kConnecting);
    EXPECT_EQ(session.peer_number(), 0U);
    ASSERT_TRUE(net.run_until_open());
    net.run_for(kSecond);
    EXPECT_EQ(net.host[0].closed + net.host[1].closed, 0);
    EXPECT_EQ(session.peer_number(), 22U);
  }
}

TEST(SessionOpen, VersionsWithoutOverlapAreRefusedNamingBothRanges) {
  Net net(1);
  wire::Hello hello;
  hello.job = "job";
  hello.version_min = 3;
  hello.version_max = 4;
  net.host[0].session->connect(hello, net.key, net.now_ns);
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1 && net.host[1].closed == 1; }, kSecond));
  for (const Host& host : net.host) {
    EXPECT_EQ(host.closed_code, Errc::kVersionMismatch);
    EXPECT_EQ(host.closed_text,
              "the connecting side speaks wire version 3 to 4, the answering side 2");
  }
}

SessionConfig speaking(wire::Versions versions) {
  SessionConfig config;
  config.versions = versions;
  return config;
}

TEST(SessionOpen, AHostOfTwoVersionsMeetsOneOfTheOlderAlone) {
  const SessionConfig older = speaking({2, 2}), newer = speaking({2, 3});
  for (const bool newer_asks : {true, false}) {
    Net net(1, newer_asks ? newer : older, newer_asks ? older : newer);
    int others = 0;  // frames of a version that the older host does not read
    net.tap = [&](int, std::span<const std::byte> frame) {
      const auto type = static_cast<wire::FrameType>(frame[3]);
      others += frame[2] != std::byte{type > wire::FrameType::kRefuse ? uint8_t{2} : uint8_t{1}};
    };
    net.connect();
    ASSERT_TRUE(net.run_until_open());
    for (Host& host : net.host) {
      EXPECT_EQ(host.session->answer().version, 2);
      host.queue_chunks(200);
    }
    ASSERT_TRUE(
        net.run([&] { return net.host[0].all_acked() && net.host[1].all_acked(); }, kSecond));
    for (const Host& host : net.host) EXPECT_EQ(host.delivered.size(), 200U);
    EXPECT_EQ(others, 0);
  }
}

TEST(SessionOpen, WhoAnswersNamesItsOwnVersionsWhereNoneIsCommon) {
  constexpr struct {
    wire::Versions asking, answering;
    std::string_view text;
  } kCases[] = {
      {{3, 3}, {2, 2}, "the connecting side speaks wire version 3, the answering side 2"},
      {{2, 2}, {3, 3}, "the connecting side speaks wire version 2, the answering side 3"},
      {{4, 5}, {2, 3}, "the connecting side speaks wire version 4 to 5, the answering side 2 to 3"},
      {{2, 2}, {3, 4}, "the connecting side speaks wire version 2, the answering side 3 to 4"},
  };
  for (const auto& [asking, answering, text] : kCases) {
    Net net(1, speaking(asking), speaking(answering));
    net.connect();
    ASSERT_TRUE(
        net.run([&] { return net.host[0].closed == 1 && net.host[1].closed == 1; }, kSecond));
    for (const Host& host : net.host) {
      EXPECT_EQ(host.closed_code, Errc::kVersionMismatch);
      EXPECT_EQ(host.closed_text, text);
    }
  }
}

TEST(SessionOpen, TheHighestCommonVersionIsChosen) {
  wire::Hello hello;
  hello.version_min = 1;
  hello.version_max = 200;
  const auto version = negotiate_version(hello, {});
  ASSERT_TRUE(version.has_value());
  EXPECT_EQ(*version, wire::kVersion);
  EXPECT_EQ(*negotiate_version(hello, {2, 3}), 3);
}

TEST(SessionOpen, AnAnswerInAVersionThatWasNotOfferedClosesBothSides) {
  Net net(1);
  net.host[1].hello_hook = [&](const wire::Hello&) {
    wire::HelloAck answer;
    answer.version = 9;
    answer.session = 22;
    answer.max_udp_payload = 1472;
    Bytes body(512);
    body.resize(wire::encode(answer, body));
    net.host[0].session->on_frame(
        plain_header(wire::FrameType::kHelloAck, body, wire::echo_of(Net::kNonce), {}), body,
        net.now_ns);
  };
  net.connect();
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, kSecond));
  EXPECT_EQ(net.host[0].closed_code, Errc::kVersionMismatch);
}

TEST(SessionClose, ReachesThePeerWithCodeAndText) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(50);
  net.host[0].pump();
  EXPECT_GT(net.host[0].session->bytes_in_flight(), 0U);
  net.host[0].session->close(Errc::kPeerLeft, "the program ended", net.now_ns);
  EXPECT_EQ(net.host[0].session->state(), Session::State::kClosing);
  EXPECT_EQ(net.host[0].closed, 0) << "only from on_timer";
  ASSERT_TRUE(net.run([&] { return net.host[1].closed == 1; }, kSecond));
  net.run_for(20 * kSecond);
  for (const Host& host : net.host) {
    EXPECT_EQ(host.closed, 1);
    EXPECT_EQ(host.closed_code, Errc::kPeerLeft);
    EXPECT_EQ(host.closed_text, "the program ended");
    EXPECT_EQ(host.session->state(), Session::State::kClosed);
    EXPECT_EQ(host.session->next_deadline_ns(), kNever);
    EXPECT_FALSE(host.session->has_pending(net.now_ns));
    EXPECT_FALSE(host.session->can_send(1));
  }
  EXPECT_FALSE(net.host[0].session->send_control(Bytes(1)).ok());
  expect_nothing_in_flight(net);
}

TEST(SessionClose, OfBothSidesAtOnceIsToldOnceEach) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  for (Host& host : net.host) host.session->close(Errc::kClosed, "done", net.now_ns);
  for (Host& host : net.host) host.session->close(Errc::kClosed, "again", net.now_ns);
  net.run_for(20 * kSecond);
  for (const Host& host : net.host) {
    EXPECT_EQ(host.closed, 1);
    EXPECT_EQ(host.closed_text, "done");
  }
}

TEST(SessionClose, WhileConnectingEndsAtOnce) {
  Net net(1);
  net.weather.down = true;
  net.connect();
  net.run_for(kSecond);
  net.host[0].session->close(Errc::kClosed, "changed my mind", net.now_ns);
  EXPECT_TRUE(net.run([&] { return net.host[0].closed == 1; }, 1));
  EXPECT_EQ(net.host[0].closed_text, "changed my mind");
}

TEST(SessionClose, FromWithinAnEventIsSafe) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[1].control_hook = [&](const Bytes&) {
    net.host[1].session->close(Errc::kTensorMismatch, "no", net.now_ns);
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(net.host[0].session->send_control(Bytes(10)).ok());
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, kSecond));
  EXPECT_EQ(net.host[1].messages.size(), 1U) << "nothing is delivered after close";
  EXPECT_EQ(net.host[0].closed_code, Errc::kTensorMismatch);
}

TEST(SessionTime, KeepaliveHoldsAnIdleSessionOpen) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  const uint64_t before = net.host[0].frames_sent + net.host[1].frames_sent;
  net.run_for(1000 * kSecond);
  EXPECT_EQ(net.host[0].closed + net.host[1].closed, 0);
  const uint64_t frames = net.host[0].frames_sent + net.host[1].frames_sent - before;
  EXPECT_LE(frames, 2 * 2 * 400U + 4) << "at most a PING and an ACK each way per quarter time-out";
  expect_nothing_in_flight(net);
}

TEST(SessionTime, KeepaliveHoldsAnIdleSessionOpenUnderLoss) {
  Net net(5);
  net.weather.loss = 0.2;
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(2000 * kSecond);
  EXPECT_EQ(net.host[0].closed + net.host[1].closed, 0);
}

TEST(SessionTime, ASilentPeerIsLostInTime) {
  SessionConfig config;
  config.peer_timeout_ns = 2 * kSecond;
  Net net(1, config, config);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(1000);
  net.run_for(1'000'000);
  net.weather.down = true;
  const uint64_t start = net.now_ns;
  const uint64_t sent = net.host[0].frames_sent;
  ASSERT_TRUE(net.run([&] { return net.host[0].closed == 1; }, 3 * kSecond));
  EXPECT_LE(net.now_ns - start, 2 * kSecond + 1'000'000);
  EXPECT_EQ(net.host[0].closed_code, Errc::kPeerLost);
  EXPECT_EQ(net.host[0].closed_text, "nothing heard from 10.0.0.2:7470 for 2 s");
  EXPECT_EQ(net.host[0].counters.get(Counter::kPeersLost), 1U);
  EXPECT_LT(net.host[0].frames_sent - sent, 300U) << "a dead path is not flooded";
  net.run_for(5 * kSecond);
  EXPECT_EQ(net.host[1].closed_code, Errc::kPeerLost);
  expect_nothing_in_flight(net);
}

TEST(SessionTime, AnEngineThatStoodStillListensBeforeItJudges) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond);
  net.now_ns += 100 * kSecond;  // the machine was suspended
  net.run_for(30 * kSecond);
  EXPECT_EQ(net.host[0].closed + net.host[1].closed, 0);
}

TEST(SessionTime, AHealedPathCarriesOn) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.host[0].queue_chunks(2000);
  net.run_for(1'000'000);
  net.weather.down = true;
  net.run_for(5 * kSecond);
  net.weather.down = false;
  EXPECT_TRUE(net.run([&] { return net.host[0].all_acked(); }, 600'000'000));
  EXPECT_EQ(net.host[0].closed, 0);
}

}  // namespace
}  // namespace mercury::test
