// Only who knows the session's tag is heard.
#include <gtest/gtest.h>

#include "tests/transport/flow/pipe.h"

namespace mercury::test {
namespace {

constexpr std::array kTagged = {wire::FrameType::kClose, wire::FrameType::kAck,
                                wire::FrameType::kPing, wire::FrameType::kControl};

TEST(SessionTag, IsTheSameAtBothEndsAndFollowsKeyAndNonces) {
  Net net(1);
  net.host[1].answer.nonce[5] = 77;
  net.connect();
  ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, kSecond));
  const FrameTag tag = net.host[0].session->tag();
  EXPECT_EQ(tag.header, net.host[1].session->tag().header);
  EXPECT_EQ(tag.payload, net.host[1].session->tag().payload);

  wire::Key key = net.key;
  wire::Nonce asked = Net::kNonce;
  wire::Nonce answered{};
  answered[5] = 77;
  EXPECT_EQ(derive_frame_tag(key, asked, answered).header, tag.header);
  EXPECT_NE(derive_frame_tag(key, answered, asked).header, tag.header);
  asked[0] ^= 1;
  EXPECT_NE(derive_frame_tag(key, asked, answered).header, tag.header);
  asked[0] ^= 1;
  key[31] = 1;
  EXPECT_NE(derive_frame_tag(key, asked, answered).header, tag.header);
}

TEST(SessionTag, FramesWithoutItChangeNothing) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond / 10);
  Host& host = net.host[0];
  Bytes close(64);
  close.resize(wire::encode(wire::Reason{22, Errc::kClosed, "go away"}, close));
  const FrameTag tag = host.session->tag();
  uint64_t number = 1'000'000;
  for (const wire::FrameType type : kTagged) {
    for (const FrameTag forged : {FrameTag{}, FrameTag{tag.header ^ 1, tag.payload},
                                  FrameTag{tag.header, tag.payload ^ (1U << 31)}}) {
      host.session->on_frame(plain_header(type, close, ++number, forged), close, net.now_ns);
    }
  }
  EXPECT_EQ(host.counters.get(Counter::kDropHeaderCrc), 2 * kTagged.size());
  EXPECT_EQ(host.counters.get(Counter::kDropPayloadCrc), kTagged.size());
  EXPECT_EQ(host.session->state(), Session::State::kOpen);
  EXPECT_TRUE(host.session->is_new(1'000'001)) << "a forged packet number counts as seen";

  host.session->on_frame(plain_header(wire::FrameType::kClose, close, ++number, tag), close,
                         net.now_ns);
  EXPECT_EQ(host.session->state(), Session::State::kClosed);
}

// Even with the tag: an acknowledgement of it would end the session at the honest peer.
TEST(SessionTag, ANumberThatNoPeerCanHaveComeToChangesNothing) {
  Net net(1);
  net.connect();
  ASSERT_TRUE(net.run_until_open());
  net.run_for(kSecond / 10);
  Host& host = net.host[0];
  const FrameTag tag = host.session->tag();
  const Bytes nothing;
  for (const uint64_t number : {uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}}) {
    const wire::Header ping =
        plain_header(wire::FrameType::kPing, nothing, number, tag, wire::kFlagAckNow);
    host.session->on_frame(ping, nothing, net.now_ns);
    EXPECT_FALSE(host.session->is_new(number));
    EXPECT_EQ(host.session->reason_of_drop(number), Counter::kDropFarAhead);
  }
  EXPECT_EQ(host.counters.get(Counter::kDropFarAhead), 3U);
  net.run_for(kSecond);
  EXPECT_EQ(net.host[0].closed + net.host[1].closed, 0);
  EXPECT_EQ(host.session->state(), Session::State::kOpen);
}

TEST(SessionTag, ARepeatedHelloOpensNothingAndIsForgotten) {
  Net net(1);
  net.connect();
  Bytes hello;
  net.tap = [&](int from, std::span<const std::byte> frame) {
    if (from == 0 && hello.empty()) hello.assign(frame.begin(), frame.end());
  };
  net.host[0].pump();
  net.weather.down = true;  // whoever repeats the HELLO cannot answer what is asked back
  Host& passive = net.host[1];
  passive.receive(hello);
  const uint64_t begin_ns = net.now_ns;
  for (int i = 0; i < 30 && passive.closed == 0; ++i) {
    net.run_for(kSecond / 2);
    passive.receive(hello);
  }
  EXPECT_EQ(passive.opened, 0);
  EXPECT_EQ(passive.closed, 1);
  EXPECT_EQ(passive.closed_code, Errc::kTimedOut);
  EXPECT_LE(net.now_ns - begin_ns, 11 * kSecond) << "repeating it kept the session";
}

TEST(SessionTag, ClosedBeforeItOpenedItSaysSoOnceAndCountsNothing) {
  Net net(1);
  net.connect();
  Host& passive = net.host[1];
  ASSERT_TRUE(net.run([&] { return passive.session->peer_number() != 0; }, kSecond));
  passive.session->close(Errc::kClosed, "somebody else", net.now_ns);
  const uint64_t before = passive.frames_sent;
  net.host[0].stalled = true;
  net.run_for(kSecond);
  EXPECT_EQ(passive.frames_sent, before + 1);
  EXPECT_EQ(passive.closed, 1);
  EXPECT_EQ(passive.opened, 0);
  EXPECT_EQ(passive.counters.get(Counter::kSessionsOpened), 0U);
  EXPECT_EQ(passive.counters.get(Counter::kSessionsClosed), 0U);
}

// The path carries less than both ports: what shows the key must not wait for the MTU's search.
TEST(SessionTag, OpensInOneAndAHalfRoundTripsWhereTheFirstProbeIsTooLarge) {
  SessionConfig config;
  config.max_udp_payload = 8900;
  Net net(1, config, config);
  net.weather.largest_frame = 1300;
  net.connect();
  ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, 200'000));
}

TEST(SessionTag, APeerWithAnotherKeyIsNotHeard) {
  Net net(1);
  net.host[1].hello_hook = [&](const wire::Hello& hello) {
    if (net.host[1].session->peer_number() != 0) return;
    net.host[1].session->accept(hello, net.host[1].answer, wire::Key{8}, net.now_ns);
  };
  net.connect();
  net.run_for(3 * kSecond);
  EXPECT_EQ(net.host[1].opened, 0);
  EXPECT_GT(net.host[1].counters.get(Counter::kDropHeaderCrc), 0U);
  ASSERT_TRUE(net.run([&] { return net.host[1].closed == 1; }, 20 * kSecond));
  EXPECT_EQ(net.host[1].closed_code, Errc::kTimedOut);
}

TEST(SessionTag, ThePassiveSideOpensAlthoughFirstFramesAreLost) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Net net(seed);
    net.weather = {.loss = 0.3};
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1; }, 10 * kSecond));
    net.run_for(kSecond);
    EXPECT_EQ(net.host[1].opened, 1);
  }
}

}  // namespace
}  // namespace mercury::test
