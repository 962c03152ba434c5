// Sessions whose peer moves, as the session sees it: what it has learnt of one path does not count
// on another.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tests/transport/flow/pipe.h"
#include "transport/flow/adaptive_window.h"
#include "transport/flow/mtu_probe.h"

namespace mercury::test {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint16_t kLargest = 8900;

// An open session with seals over a path of kLargest bytes.
struct Lab {
  static SessionConfig config(uint64_t peer_timeout_ns = SessionConfig().peer_timeout_ns) {
    SessionConfig config;
    config.max_udp_payload = kLargest;
    config.peer_timeout_ns = peer_timeout_ns;
    return config;
  }
  explicit Lab(uint64_t peer_timeout_ns = SessionConfig().peer_timeout_ns)
      : net(1, config(peer_timeout_ns), config()) {
    net.with_seals();
    net.features |= wire::kFeatureMoves | wire::kFeatureParts;
    net.host[1].answer.features |= wire::kFeatureMoves | wire::kFeatureParts;
  }
  void open() {
    net.connect();
    ASSERT_TRUE(net.run([&] { return net.host[1].opened == 1 && here().path != 0; }, kSecond));
    net.run_for(100 * kMillisecond);
  }
  Host& here() { return net.host[0]; }
  Session& session() { return *here().session; }
  // To another port, and to another address if `other_address`.
  void move(bool other_address, uint16_t largest = kLargest) {
    ++moves;
    Endpoint to = here().remote();
    if (other_address) to.ip = IpAddress::v4(10, 0, 1, moves);
    to.port = static_cast<uint16_t>(to.port + moves);
    session().move(to, largest, std::nullopt, net.now_ns);
    here().blocked = false;
  }
  bool all_arrive() {
    return net.run([&] { return here().all_acked(); }, 10 * kSecond);
  }

  Net net;
  uint8_t moves = 0;
};

// So many are on the way that their loss would halve a window.
TEST(SessionMove, WhatIsLostWhereThePeerWasIsNotTheNewPathsLoss) {
  for (const bool other_address : {true, false}) {
    SCOPED_TRACE(other_address);
    Lab lab;
    lab.open();
    lab.here().queue_chunks(2'000);
    ASSERT_TRUE(lab.all_arrive());
    const uint64_t before = lab.session().window_bytes();
    ASSERT_GT(before, 200U * kChunkPayload);
    lab.net.weather.down = true;
    lab.here().queue_chunks(200);
    lab.net.run_for(kMillisecond / 10);
    ASSERT_EQ(lab.here().in_flight.size(), 200U);
    lab.move(other_address);
    EXPECT_EQ(lab.session().bytes_in_flight(), 0U)
        << "what was sent elsewhere fills no window here";
    lab.net.weather.down = false;
    const uint64_t begin = other_address ? AdaptiveWindow::kFirstBytes : before;
    EXPECT_EQ(lab.session().window_bytes(), begin);
    uint64_t least = begin;
    ASSERT_TRUE(lab.net.run(
        [&] {
          least = std::min(least, lab.session().window_bytes());
          return lab.here().all_acked();
        },
        10 * kSecond));
    EXPECT_EQ(lab.here().lost, 200) << "it comes again";
    EXPECT_EQ(least, begin);
  }
}

// An acknowledgement of what was sent before is under way as the peer moves.
TEST(SessionMove, ARoundTripThatBeganBeforeIsNone) {
  for (const bool other_address : {true, false}) {
    SCOPED_TRACE(other_address);
    Lab lab;
    lab.net.weather.delay_ns = 100 * kMillisecond;
    lab.open();
    lab.net.run_for(kSecond);
    lab.net.weather.delay_ns = 150 * kMillisecond;
    lab.here().queue_chunks(1);
    lab.net.run_for(280 * kMillisecond);
    ASSERT_FALSE(lab.here().all_acked());
    lab.move(other_address);
    const uint64_t known_ns = lab.session().smoothed_rtt_ns();
    ASSERT_TRUE(lab.net.run([&] { return lab.here().all_acked(); }, 25 * kMillisecond));
    EXPECT_EQ(lab.session().smoothed_rtt_ns(), known_ns);
    lab.net.run_for(kSecond);
    EXPECT_GT(lab.session().smoothed_rtt_ns(), known_ns + kMillisecond)
        << "but of what is sent now";
  }
}

// What was sent before is acknowledged after the peer has moved.
TEST(SessionMove, AcknowledgementsOfThePathBeforeOpenNoWindow) {
  Lab lab;
  lab.net.weather.delay_ns = 10 * kMillisecond;
  lab.open();
  lab.here().queue_chunks(2'000);
  ASSERT_TRUE(lab.all_arrive());
  lab.here().queue_chunks(100);
  lab.net.run_for(15 * kMillisecond);
  ASSERT_FALSE(lab.here().all_acked());
  lab.move(true);
  ASSERT_TRUE(lab.net.run([&] { return lab.here().all_acked(); }, 10 * kMillisecond));
  EXPECT_EQ(lab.session().window_bytes(), AdaptiveWindow::kFirstBytes);
}

// It was marked on its way, and is acknowledged together with what was not.
TEST(SessionMove, MarksOfThePathBeforeCutNoWindow) {
  Lab lab;
  lab.net.weather.delay_ns = 10 * kMillisecond;
  lab.open();
  lab.here().queue_chunks(2'000);
  ASSERT_TRUE(lab.all_arrive());
  lab.net.mark = true;
  lab.here().queue_chunks(100);
  lab.net.run_for(5 * kMillisecond);
  lab.net.weather.down = true;  // acknowledgements alone: the chunks are on their way
  lab.net.run_for(10 * kMillisecond);
  ASSERT_EQ(lab.net.host[1].session->marked_frames(), 100U);
  lab.net.weather.down = lab.net.mark = false;
  lab.move(true);
  lab.here().queue_chunks(20);
  ASSERT_TRUE(lab.net.run(
      [&] {
        EXPECT_GE(lab.session().window_bytes(), AdaptiveWindow::kFirstBytes);
        return lab.here().all_acked();
      },
      kSecond));
}

// Together the losses of both paths last for longer than a peer time-out.
TEST(SessionMove, LossesOfThePathBeforeMakeTheNextOneNotHopeless) {
  Lab lab(2 * kSecond);
  lab.open();
  lab.net.weather.largest_frame = 600;
  lab.here().queue_chunks(3);
  lab.net.run_for(3 * kSecond / 2);
  lab.move(true);
  lab.net.run_for(kSecond);
  EXPECT_EQ(lab.here().closed, 0);
  lab.net.weather.largest_frame = 65'535;
  EXPECT_TRUE(lab.all_arrive());
}

// It was silent where it was before, and is far away now.
TEST(SessionMove, WhoHasMovedHasTimeToAnswer) {
  Lab lab(2 * kSecond);
  lab.open();
  lab.net.weather.down = true;
  lab.net.run_for(17 * kSecond / 10);
  ASSERT_EQ(lab.here().closed, 0);
  lab.net.weather.down = false;
  lab.net.weather.delay_ns = 200 * kMillisecond;
  lab.move(true);
  lab.net.run_for(kSecond);
  EXPECT_EQ(lab.here().closed, 0);
}

// That the path before was found as narrow again and again says nothing of this one.
TEST(SessionMove, ANarrowPathToAnotherAddressIsSoonProbedAgain) {
  Lab lab;
  lab.net.weather.largest_frame = 1300;
  lab.open();
  lab.net.run_for(200 * kSecond);
  lab.move(true);
  lab.net.run_for(kSecond);
  ASSERT_LE(lab.session().path_payload(), 1300);
  lab.net.weather.largest_frame = 65'535;
  lab.net.run_for(SessionConfig().peer_timeout_ns * 5 / 4);
  EXPECT_EQ(lab.session().path_payload(), kLargest);
}

TEST(SessionMove, AnotherAddressIsMeasuredAnewAndAnotherPortIsNot) {
  for (const bool other_address : {true, false}) {
    SCOPED_TRACE(other_address);
    Lab lab;
    lab.open();
    ASSERT_EQ(lab.session().path_payload(), kLargest);
    lab.net.weather.largest_frame = 4000;
    lab.move(other_address);
    lab.net.run_for(kSecond);
    const uint16_t path = lab.session().path_payload();
    EXPECT_LE(path, other_address ? 4000 : kLargest);
    EXPECT_GE(path, other_address ? 4000 - kProbeGranularityBytes : kLargest);
  }
}

TEST(SessionMove, NothingAboveWhatThePortSendsThereIsTried) {
  Lab lab;
  lab.open();
  size_t most = 0;
  lab.net.tap = [&](int from, std::span<const std::byte> frame) {
    if (from == 0) most = std::max(most, frame.size());
  };
  lab.move(true, 1400);
  lab.net.run_for(kSecond);
  EXPECT_EQ(lab.session().path_payload(), 1400);
  EXPECT_EQ(most, 1400U);
}

// A probe of the path before is acknowledged when the next one is measured.
TEST(SessionMove, AProbeOfThePathBeforeProvesNothing) {
  Lab lab;
  lab.open();
  lab.net.weather.delay_ns = 50 * kMillisecond;
  lab.move(true);
  lab.net.run_for(10 * kMillisecond);  // a probe of kLargest bytes is under way
  lab.move(true);
  lab.net.weather.largest_frame = 3000;
  lab.net.run_for(10 * kSecond);
  EXPECT_LE(lab.session().path_payload(), 3000);
}

// Whoever holds a frame up brings it in later, from wherever he likes.
TEST(SessionMove, OnlyTheNewestFrameSaysWhereThePeerIs) {
  Lab lab;
  lab.open();
  Bytes held;
  lab.net.tap = [&](int from, std::span<const std::byte> frame) {
    const bool datagram = from == 0 && wire::is_datagram(static_cast<wire::FrameType>(frame[3]));
    lab.net.weather.down = datagram && held.empty();
    if (lab.net.weather.down) held.assign(frame.begin(), frame.end());
  };
  const auto is_newest = [&] {
    wire::Header header;
    std::span<const std::byte> payload;
    EXPECT_EQ(wire::decode(held, header, payload), wire::DecodeError::kNone);
    return lab.net.host[1].session->open_newest(header, payload).has_value();
  };
  lab.here().queue_chunks(1);
  ASSERT_TRUE(lab.net.run([&] { return !held.empty(); }, kSecond));
  EXPECT_TRUE(is_newest());
  held.back() ^= std::byte{1};
  EXPECT_FALSE(is_newest()) << "its seal does not fit";
  held.back() ^= std::byte{1};
  lab.here().queue_chunks(1);
  ASSERT_TRUE(lab.all_arrive());
  EXPECT_FALSE(is_newest()) << "others have come since";
}

// All records of what may be under way of the session's own are in use: an answer to a challenge
// needs none.
TEST(SessionMove, AChallengeIsAnsweredWithoutARecord) {
  SentPool nothing(0, 1);  // but what each session has for itself
  Lab lab;
  lab.here().session =
      std::make_unique<Session>(SessionSlot(7), 11, lab.here().remote(), Lab::config(), nothing,
                                nullptr, lab.here(), lab.here().counters);
  lab.net.connect();
  ASSERT_TRUE(lab.net.run([&] { return lab.net.host[1].opened == 1; }, kSecond));
  lab.net.weather.down = true;
  for (uint32_t i = 0; i < 2 * kSentBlockRecords; ++i) {
    ASSERT_TRUE(lab.session().send_control(Bytes(10)));
    lab.here().pump();
  }
  ASSERT_FALSE(lab.session().has_pending(lab.net.now_ns)) << "more waits, and needs a record each";
  Bytes challenge(wire::kMinUdpPayload);
  challenge.resize(lab.net.host[1].session->build_challenge(challenge, 0x1234));
  lab.here().receive(challenge);
  Bytes answer(kLargest);
  ASSERT_TRUE(lab.session().has_pending(lab.net.now_ns));
  ASSERT_GT(lab.session().build(answer, lab.net.now_ns), 0U);
  EXPECT_EQ(static_cast<wire::FrameType>(answer[3]), wire::FrameType::kPathResponse);
}

}  // namespace
}  // namespace mercury::test
