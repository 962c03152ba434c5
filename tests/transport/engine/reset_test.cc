// What a peer hears of a host that was started again and knows none of its sessions any more, and
// what strangers can make of it.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/transport/engine/echo_lab.h"
#include "transport/engine/reset_tokens.h"
#include "transport/flow/handshake.h"

namespace mercury::echo {
namespace {

constexpr uint32_t kFeatures = wire::kFeatureStreams | wire::kFeatureResets;
constexpr uint32_t kSealed = kFeatures | wire::kFeatureSeals;
constexpr uint32_t kEncrypted = kSealed | wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption;

ResetKeys life(unsigned char number) {
  ResetKeys keys;
  keys.own = ResetKey{number};
  if (number > 1) keys.last = ResetKey{static_cast<unsigned char>(number - 1)};
  return keys;
}

// `a`, which may connect to `b`, and what RESETs `b` sends.
struct Restarts : Lab {
  explicit Restarts(uint32_t of_a = kFeatures, uint32_t of_b = kFeatures, uint64_t seed = 1)
      : Lab(seed, {}, 9000, of(life(1))), offered(of_a) {
    b().features = of_b;
    network.set_tap(see, this);
  }
  static EngineConfig of(const ResetKeys& keys) {
    EngineConfig config;
    config.reset_keys = keys;
    return config;
  }
  static void see(void* context, uint64_t, const Endpoint& source, const Endpoint& target,
                  std::span<const std::byte> frame) {
    Restarts& lab = *static_cast<Restarts*>(context);
    const auto type = static_cast<wire::FrameType>(frame[3]);
    lab.tokens += type == wire::FrameType::kResetToken ? 1 : 0;
    if (source == lab.at_b() && target == lab.at_a() && type == wire::FrameType::kReset) {
      lab.resets.emplace_back(frame.begin(), frame.end());
    }
  }
  void open(Token token = kToken) {
    const size_t before = a().opened.size();
    a().connect(token, at_b(), offered);
    ASSERT_TRUE(run([&] { return a().opened.size() > before; }));
    run_for(10 * kMs);  // both have said their tokens
  }
  // Another life of `b`, on the same address, after the last one ended without a word.
  void restart(const ResetKeys& keys = life(2), uint64_t seed = 99) {
    const uint32_t features = b().features;
    start(1, of(keys), seed);
    b().features = features;
  }
  static Endpoint at_a() { return at(0); }
  static Endpoint at_b() { return at(1); }
  // `b`'s number of the first session of a life with this seed.
  static uint32_t number_at_b(uint64_t seed = 2) {
    SessionTable table(EngineConfig{}.max_sessions, seed);
    SessionSlot slot;
    EXPECT_TRUE(table.allocate(slot, Token()));
    return table.number_of(slot);
  }
  // Somebody sends `b` a PING of a session in `a`'s name.
  void ask_in_the_name_of_a(uint32_t number) {
    std::array<std::byte, 64> frame{};
    const uint32_t bytes = finish_frame(frame, wire::FrameType::kPing, number, 5, 0);
    network.inject(at_a(), at_b(), std::span(frame).first(bytes));
    run_for(kMs);
  }
  bool lives(Token token = kToken) {
    a().done.clear();
    a().send(StartEcho{token, 1, 1000});
    return run([&] { return !a().done.empty(); }, kSecond) && a().closed.count(token) == 0;
  }
  uint64_t count(Counter counter) { return a().counters->get(counter); }

  const uint32_t offered;
  uint64_t tokens = 0;  // RESET_TOKENs that were sent
  std::vector<std::vector<std::byte>> resets;
};

class Reset : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(PlainAndSealed, Reset, testing::Values(kFeatures, kSealed, kEncrypted));

TEST_P(Reset, APeerLearnsOfARestartInARoundTripOfItsNextFrame) {
  Restarts lab(GetParam(), GetParam());
  lab.open();
  ASSERT_TRUE(lab.lives());
  lab.restart();
  lab.a().send(StartEcho{kToken, 1, 1000});
  const uint64_t from_ns = lab.network.now_ns();
  ASSERT_TRUE(lab.run([&] { return lab.a().closed.count(kToken) == 1; }));
  EXPECT_LT(lab.network.now_ns() - from_ns, kMs);
  EXPECT_EQ(lab.a().closed[kToken], Errc::kPeerLost);
  EXPECT_NE(lab.a().closed_text[kToken].find("was started again"), std::string::npos);
  EXPECT_EQ(lab.count(Counter::kResetsReceived), 1U);
  EXPECT_EQ(lab.resets.front().size(), 32U) << "no frame is smaller";
}

TEST_P(Reset, SoDoesThePeerOfWhoHadAsked) {
  Restarts lab(GetParam(), GetParam());
  lab.open();
  lab.start(0, Restarts::of(life(2)), 99);
  ASSERT_TRUE(lab.run([&] { return !lab.b().closed.empty(); }, 3 * kSecond));
  EXPECT_EQ(lab.b().closed.begin()->second, Errc::kPeerLost);
  EXPECT_EQ(lab.b().counters->get(Counter::kResetsReceived), 1U);
}

TEST_P(Reset, WhoIsIdleLearnsOfItWhenItAsks) {
  Restarts lab(GetParam(), GetParam());
  lab.open();
  lab.restart();
  const uint64_t from_ns = lab.network.now_ns();
  ASSERT_TRUE(lab.run([&] { return lab.a().closed.count(kToken) == 1; }));
  EXPECT_LT(lab.network.now_ns() - from_ns, 3 * kSecond) << "a quarter of the peer time-out";
}

TEST_P(Reset, TokensThatAreLostAreToldAgain) {
  uint64_t again = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Restarts lab(GetParam(), GetParam(), seed);
    sim::Faults faults;
    faults.loss = 0.2;
    lab.network.set_faults(faults);
    lab.open();
    lab.run_for(kSecond);
    lab.network.set_faults({});
    lab.run_for(kSecond);
    ASSERT_TRUE(lab.lives()) << seed;
    lab.restart();
    ASSERT_TRUE(lab.run([&] { return lab.a().closed.count(kToken) == 1; }, 3 * kSecond)) << seed;
    EXPECT_EQ(lab.count(Counter::kResetsReceived), 1U) << seed;
    again += lab.tokens - 2;
  }
  EXPECT_GE(again, 10U) << "of 80 a fifth is lost";
}

// Without the last life's key, or the feature on both sides, silence says it.
TEST_P(Reset, WhereOneLacksItSilenceTells) {
  const uint32_t without = GetParam() & ~uint32_t{wire::kFeatureResets};
  struct Row {
    uint32_t of_a, of_b;
    ResetKeys next;
    const char* what;
  };
  ResetKeys lost = life(9), first = life(1);
  for (const Row& row : {Row{without, GetParam(), life(2), "an older release asks"},
                         Row{GetParam(), without, life(2), "an older release answers"},
                         Row{GetParam(), GetParam(), lost, "another's key"},
                         Row{GetParam(), GetParam(), first, "no key is left"}}) {
    Restarts lab(row.of_a, row.of_b);
    lab.open();
    ASSERT_TRUE(lab.lives()) << row.what;
    lab.restart(row.next);
    lab.run_for(5 * kSecond);
    EXPECT_TRUE(lab.a().closed.empty()) << row.what;
    EXPECT_EQ(lab.count(Counter::kResetsReceived), 0U) << row.what;
    EXPECT_EQ(lab.resets.empty(), !row.next.last) << row.what;
    ASSERT_TRUE(lab.run([&] { return lab.a().closed.count(kToken) == 1; })) << row.what;
    EXPECT_EQ(lab.a().closed[kToken], Errc::kPeerLost) << row.what;
  }
}

// Who reads all frames asks, in the peer's name and beforehand, for the session that will be.
TEST_P(Reset, WhatIsToldToWhoAsksEndsNoSessionOfThisLife) {
  Restarts lab(GetParam(), GetParam());
  lab.restart(life(2), 2);
  const uint32_t number = lab.number_at_b();
  lab.ask_in_the_name_of_a(number);
  ASSERT_EQ(lab.resets.size(), 1U) << "it is not known yet";
  lab.open();
  lab.ask_in_the_name_of_a(number);
  EXPECT_EQ(lab.resets.size(), 1U) << "now it is";
  lab.network.inject(lab.at_b(), lab.at_a(), lab.resets[0]);
  ASSERT_TRUE(lab.lives());
  EXPECT_EQ(lab.count(Counter::kDropForgedAnswer), 1U);
  EXPECT_EQ(lab.count(Counter::kResetsReceived), 0U);
}

// The next session even has the number that the last one had.
TEST_P(Reset, OneThatWasHeardIsGoodForNothingAgain) {
  Restarts lab(GetParam(), GetParam());
  lab.open();
  lab.restart(life(2), 2);
  ASSERT_TRUE(lab.run([&] { return lab.a().closed.count(kToken) == 1; }));
  const std::vector<std::byte> heard = lab.resets.at(0);
  constexpr Token kNext{8};
  lab.open(kNext);
  lab.network.inject(lab.at_b(), lab.at_a(), heard);
  ASSERT_TRUE(lab.lives(kNext));
  EXPECT_EQ(lab.count(Counter::kDropForgedAnswer), 1U);
  EXPECT_EQ(lab.count(Counter::kResetsReceived), 1U);
}

TEST_P(Reset, AStrangerEndsNothing) {
  Restarts lab(GetParam(), GetParam());
  lab.open();
  const uint32_t number = lab.number_at_b();
  const uint64_t right = *ResetTokens(life(1)).own(number, lab.at_a());
  const auto say = [&](const Endpoint& from, uint32_t session, uint64_t token) {
    std::array<std::byte, 64> frame{};
    const uint32_t bytes = finish_frame(frame, wire::FrameType::kReset, session, token, 0);
    lab.network.inject(from, lab.at_a(), std::span(frame).first(bytes));
    lab.run_for(kMs);
  };
  Endpoint other = lab.at_b();
  other.port = 7471;
  for (int bit = 0; bit < 64; ++bit) say(lab.at_b(), number, right ^ uint64_t{1} << bit);
  EXPECT_EQ(lab.count(Counter::kDropForgedAnswer), 64U);
  say(lab.at_b(), number, 0);
  say(lab.at_b(), number + 1, right);
  say(other, number, right);
  EXPECT_EQ(lab.count(Counter::kResetsReceived), 0U);
  ASSERT_TRUE(lab.lives());
  say(lab.at_b(), number, right);  // so what the others lacked is what was wrong with them
  EXPECT_EQ(lab.count(Counter::kResetsReceived), 1U);
  EXPECT_EQ(lab.a().closed.count(kToken), 1U);
}

// A RESET is never answered, so no two hosts answer each other.
TEST(ResetTest, NothingIsSaidToAReset) {
  Restarts lab;
  lab.restart();
  std::array<std::byte, 64> frame{};
  const uint32_t bytes = finish_frame(frame, wire::FrameType::kReset, 12345, 678, 0);
  for (int i = 0; i < 100; ++i) {
    lab.network.inject(lab.at_a(), lab.at_b(), std::span(frame).first(bytes));
    lab.run_for(10'000);
  }
  EXPECT_EQ(lab.b().counters->get(Counter::kResetsSent), 0U);
  EXPECT_EQ(lab.b().counters->get(Counter::kDropNoSession), 100U);
  EXPECT_EQ(lab.b().counters->get(Counter::kTxFrames), 0U);
}

TEST(ResetTokensTest, ATokenIsOfOneLifeOneSessionAndOneAddress) {
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  Endpoint neighbour = peer;
  neighbour.port = 7471;
  const ResetTokens tokens(life(7)), again(life(7)), other(life(8));
  EXPECT_EQ(tokens.own(5, peer), again.own(5, peer));
  const std::set<uint64_t> different{*tokens.own(5, peer), *tokens.own(6, peer),
                                     *tokens.own(5, neighbour), *other.own(5, peer)};
  EXPECT_EQ(different.size(), 4U);
}

TEST(ResetTokensTest, OnlyTheNextLifeSaysWhatThisOneTold) {
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  ResetTokens tokens(life(7)), next(life(8)), without(life(1));
  EXPECT_EQ(next.answer(5, peer, 0), tokens.own(5, peer));
  EXPECT_NE(tokens.answer(5, peer, 0), tokens.own(5, peer));
  EXPECT_EQ(without.answer(5, peer, 0), std::nullopt);
  EXPECT_EQ(ResetTokens({}).own(5, peer), std::nullopt);
}

TEST(ResetTokensTest, ASecondHasSoManyAnswers) {
  ResetTokens tokens(life(7));
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  uint64_t answered = 0;
  for (uint64_t now_ns = kSecond; now_ns < 3 * kSecond; now_ns += kSecond / 10'000) {
    answered += tokens.answer(5, peer, now_ns).has_value() ? 1 : 0;
  }
  EXPECT_LE(answered, 3 * ResetTokens::kMost);
  EXPECT_GE(answered, 2 * ResetTokens::kMost);
}

}  // namespace
}  // namespace mercury::echo
