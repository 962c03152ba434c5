// What a peer hears that did not hear of a session's end.
#include <gtest/gtest.h>

#include "tests/transport/engine/echo_lab.h"
#include "transport/engine/farewells.h"

namespace mercury::echo {
namespace {

sim::Faults nothing_arrives() {
  sim::Faults faults;
  faults.loss = 1;
  return faults;
}

// `a` ends the session while nothing arrives, so `b` knows nothing of it.
struct Unheard : Lab {
  explicit Unheard(uint64_t seed, uint32_t features = wire::kFeatureStreams) : Lab(seed) {
    b().features = features;
    a().connect(kToken, b().port->info().local, features);
    EXPECT_TRUE(run([&] { return !a().opened.empty() && !b().opened.empty(); }));
    expect_echoes(1, 1000);
    run_for(10 * kMs);
    network.set_faults(nothing_arrives());
    a().send(command::CloseSession{kToken, Errc::kClosed, "the program ended"});
    run_for(10 * kMs);
    EXPECT_EQ(a().closed.count(kToken), 1U);
    EXPECT_TRUE(b().closed.empty());
    network.set_faults({});
  }
};

TEST(Farewell, APeerThatDidNotHearOfTheEndHearsOfItWhenItSpeaks) {
  Unheard lab(1);
  // It has nothing to say but that it lives, every quarter of the peer time-out.
  const uint64_t from_ns = lab.network.now_ns();
  ASSERT_TRUE(lab.run([&] { return !lab.b().closed.empty(); }));
  EXPECT_LT(lab.network.now_ns() - from_ns, 3 * kSecond);
  EXPECT_EQ(lab.b().closed.begin()->second, Errc::kClosed);
  EXPECT_EQ(lab.b().closed_text.begin()->second, "the program ended");
  EXPECT_EQ(lab.a().counters->get(Counter::kClosesRepeated), 1U);
  lab.run_for(20 * kSecond);
  EXPECT_EQ(lab.a().counters->get(Counter::kClosesRepeated), 1U) << "nobody speaks any more";
}

// The last frame that `b` sent, and where from and to.
struct Last {
  explicit Last(Lab& lab) : of(lab.b().port->info().local) { lab.network.set_tap(see, this); }
  static void see(void* context, uint64_t, const Endpoint& source, const Endpoint& target,
                  std::span<const std::byte> payload) {
    Last& last = *static_cast<Last*>(context);
    if (source != last.of) return;
    last.target = target;
    last.frame.assign(payload.begin(), payload.end());
  }
  Endpoint of;
  Endpoint target;
  std::vector<std::byte> frame;
};

// The forger has read a frame and knows the session's tag by it, and sends in the peer's name.
class FarewellToForgers : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(SealedAndEncrypted, FarewellToForgers,
                         testing::Values(0U,
                                         wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption));

TEST_P(FarewellToForgers, AForgedFrameIsAnsweredNothingAndTheHonestOneIs) {
  Unheard lab(2, wire::kFeatureStreams | wire::kFeatureSeals | GetParam());
  ASSERT_EQ(lab.a().counters->get(Counter::kSessionsSealed), 1U);
  Last last(lab);
  lab.network.block(sim::HostId(1), sim::HostId(0));  // what `b` says is heard by him alone
  ASSERT_TRUE(lab.run([&] { return !last.frame.empty(); }));
  ASSERT_TRUE(lab.b().closed.empty());
  wire::Header header;
  std::span<const std::byte> payload;
  ASSERT_EQ(wire::decode(last.frame, header, payload), wire::DecodeError::kNone);
  ASSERT_NE(header.flags & wire::kFlagSealed, 0);
  ASSERT_GE(payload.size(), wire::kSealBytes);
  const size_t head = wire::header_bytes(header.type);
  // Another number below that seal; without the seal; with a seal of one other bit.
  std::vector<std::vector<std::byte>> forgeries(3, last.frame);
  wire::Header other = header;
  ++other.packet_number;
  wire::encode(other, forgeries[0].data());
  forgeries[1].resize(head);
  other = header;
  other.flags = 0;
  other.payload_bytes = 0;
  wire::encode(other, forgeries[1].data());
  forgeries[2][head] ^= std::byte{1};
  const uint64_t absent = lab.a().counters->get(Counter::kDropNoSession);
  for (const auto& forged : forgeries) lab.network.inject(last.of, last.target, forged);
  lab.run_for(10 * kMs);
  EXPECT_EQ(lab.a().counters->get(Counter::kDropNoSession), absent + forgeries.size());
  EXPECT_EQ(lab.a().counters->get(Counter::kClosesRepeated), 0U);
  EXPECT_TRUE(lab.b().closed.empty());

  lab.network.inject(last.of, last.target, last.frame);
  ASSERT_TRUE(lab.run([&] { return !lab.b().closed.empty(); }, 10 * kMs));
  EXPECT_EQ(lab.b().closed.begin()->second, Errc::kClosed);
  EXPECT_EQ(lab.b().closed_text.begin()->second, "the program ended");
  EXPECT_EQ(lab.a().counters->get(Counter::kClosesRepeated), 1U);
  EXPECT_EQ(lab.b().counters->get(Counter::kDropSeal), 0U);
}

// Else two frames of the session would have one packet number, which seals must not have.
TEST(Farewell, EachAnswerHasTheSameBytesWithSealsToo) {
  Unheard lab(3, wire::kFeatureStreams | wire::kFeatureSeals);
  Last last(lab);
  lab.network.block(sim::HostId(1), sim::HostId(0));
  ASSERT_TRUE(lab.run([&] { return !last.frame.empty(); }));
  const std::vector<std::byte> honest = last.frame;
  const Endpoint source = last.of, target = last.target;
  last.of = target;  // listens to `a`
  last.frame.clear();
  lab.network.set_faults(nothing_arrives());
  std::vector<std::vector<std::byte>> answers;
  for (int i = 0; i < 3; ++i) {
    last.frame.clear();
    lab.network.inject(source, target, honest);
    lab.run_for(300 * kMs);
    answers.push_back(last.frame);
  }
  ASSERT_FALSE(answers[0].empty());
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

TEST(Farewell, AStrangerIsAnsweredNothing) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  farewells.keep(17, {peer, 0xfeed, true, nullptr}, close, 0);
  wire::Header header;
  header.session = 17;
  header.tag = 0xfeed;
  Endpoint stranger = peer;
  stranger.port = 7471;
  EXPECT_TRUE(farewells.answer(header, {}, stranger, 1).empty());
  wire::Header forged = header;
  forged.tag ^= 1;
  EXPECT_TRUE(farewells.answer(forged, {}, peer, 1).empty());
  forged = header;
  forged.session = 18;
  EXPECT_TRUE(farewells.answer(forged, {}, peer, 1).empty());
  forged = header;
  forged.type = wire::FrameType::kHelloAck;
  EXPECT_TRUE(farewells.answer(forged, {}, peer, 1).empty());
  EXPECT_EQ(farewells.answer(header, {}, peer, 1).size(), close.size());
}

TEST(Farewell, ACloseIsNotAnsweredSoNoTwoSidesAnswerEachOther) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  farewells.keep(17, {peer, 0xfeed, true, nullptr}, close, 0);
  wire::Header header;
  header.session = 17;
  header.tag = 0xfeed;
  header.type = wire::FrameType::kClose;
  EXPECT_TRUE(farewells.answer(header, {}, peer, 1).empty());
}

TEST(Farewell, AnswersBecomeSeldomAndEnd) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  farewells.keep(17, {peer, 0xfeed, true, nullptr}, close, 0);
  wire::Header header;
  header.session = 17;
  header.tag = 0xfeed;
  int answers = 0;
  for (uint64_t now_ns = 0; now_ns < kSecond; now_ns += 10'000) {  // a hundred thousand a second
    answers += !farewells.answer(header, {}, peer, now_ns).empty();
  }
  EXPECT_GE(answers, 8);
  EXPECT_LE(answers, 13);
  EXPECT_FALSE(farewells.answer(header, {}, peer, 9 * kSecond).empty());
  EXPECT_TRUE(farewells.answer(header, {}, peer, 10 * kSecond).empty());
  farewells.expire(10 * kSecond);
  EXPECT_EQ(farewells.size(), 0U);
}

TEST(Farewell, OfMoreThanAreKeptTheOldestIsForgotten) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  wire::Header header;
  header.tag = 0xfeed;
  for (uint32_t number = 1; number <= Farewells::kMost + 1; ++number) {
    farewells.keep(number, {peer, 0xfeed, true, nullptr}, close, number);
  }
  EXPECT_EQ(farewells.size(), Farewells::kMost);
  header.session = 1;
  EXPECT_TRUE(farewells.answer(header, {}, peer, 5000).empty());
  header.session = 2;
  EXPECT_FALSE(farewells.answer(header, {}, peer, 5000).empty());
}

TEST(Farewell, ThoseThatWereNeverHeardTakeNoOthersPlaces) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  farewells.keep(1, {peer, 0xfeed, true, nullptr}, close, 0);
  for (uint32_t number = 2; number <= Farewells::kMostUnheard + 3; ++number) {
    farewells.keep(number, {peer, 0xfeed, false, nullptr}, close, number);
  }
  EXPECT_EQ(farewells.size(), Farewells::kMostUnheard + 1);
  wire::Header header;
  header.tag = 0xfeed;
  for (const auto& [number, kept] : {std::pair(1U, true), {2U, false}, {3U, false}, {4U, true}}) {
    header.session = number;
    EXPECT_EQ(!farewells.answer(header, {}, peer, 5000).empty(), kept) << number;
  }
}

// A job with a thousand sessions ended so long ago.
TEST(Farewell, FewAreForgottenAtOnce) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  constexpr size_t kAll = Farewells::kMost + Farewells::kMostUnheard;
  for (uint32_t number = 1; number <= kAll; ++number) {
    farewells.keep(number, {peer, 0xfeed, number <= Farewells::kMost, nullptr}, close, 0);
  }
  ASSERT_EQ(farewells.size(), kAll);
  for (size_t left = kAll; left > 0; left -= Farewells::kForgottenAtOnce) {
    EXPECT_EQ(farewells.size(), left);
    farewells.expire(10 * kSecond);
  }
  EXPECT_EQ(farewells.size(), 0U);
  // Nor as others take their places.
  for (uint32_t number = 1; number <= kAll; ++number) {
    farewells.keep(number, {peer, 0xfeed, number <= Farewells::kMost, nullptr}, close, 0);
  }
  farewells.keep(kAll + 1, {peer, 0xfeed, true, nullptr}, close, 20 * kSecond);
  EXPECT_EQ(farewells.size(), kAll);
}

// It had HELLO_ACK, and what it said then was lost, as was the CLOSE.
TEST(Farewell, WhoWasNeverHeardHearsOfTheEndWhenItSpeaks) {
  for (const uint32_t features : {0U, uint32_t{wire::kFeatureSeals}}) {
    SCOPED_TRACE(features);
    Lab lab(4);
    lab.b().features = features;
    lab.a().connect(kToken, lab.b().port->info().local, features);
    ASSERT_TRUE(lab.run([&] { return lab.b().engine.session_count() == 1; }));
    lab.network.block(sim::HostId(0), sim::HostId(1));
    ASSERT_TRUE(lab.run([&] { return !lab.a().opened.empty(); }));
    lab.network.set_faults(nothing_arrives());
    const Token token(lab.b().next_token - 1);
    lab.b().send(command::CloseSession{token, Errc::kAgain, "others asked for it since"});
    lab.run_for(10 * kMs);
    ASSERT_TRUE(lab.b().opened.empty());
    ASSERT_EQ(lab.b().closed.count(token), 1U);
    ASSERT_TRUE(lab.a().closed.empty());
    lab.network.set_faults({});
    lab.network.unblock(sim::HostId(0), sim::HostId(1));
    const uint64_t from_ns = lab.network.now_ns();
    ASSERT_TRUE(lab.run([&] { return !lab.a().closed.empty(); }));
    EXPECT_LT(lab.network.now_ns() - from_ns, 3 * kSecond);
    EXPECT_EQ(lab.a().closed[kToken], Errc::kAgain);
    EXPECT_EQ(lab.a().closed_text[kToken], "others asked for it since");
  }
}

TEST(Farewell, WhoIsHeardTooLateHearsThatItMayAskAgain) {
  EngineConfig config;
  config.session.handshake_timeout_ns = kSecond;
  Lab lab(5, {}, 9000, config);
  lab.a().connect(kToken, lab.b().port->info().local);
  ASSERT_TRUE(lab.run([&] { return lab.b().engine.session_count() == 1; }));
  lab.network.block(sim::HostId(0), sim::HostId(1));
  ASSERT_TRUE(lab.run([&] { return lab.b().engine.session_count() == 0; }, 2 * kSecond));
  ASSERT_EQ(lab.b().closed.begin()->second, Errc::kTimedOut);
  ASSERT_EQ(lab.a().opened.size(), 1U);
  ASSERT_TRUE(lab.a().closed.empty());
  lab.network.unblock(sim::HostId(0), sim::HostId(1));
  ASSERT_TRUE(lab.run([&] { return !lab.a().closed.empty(); }, 3 * kSecond));
  EXPECT_EQ(lab.a().closed[kToken], Errc::kAgain);
}

}  // namespace
}  // namespace mercury::echo
