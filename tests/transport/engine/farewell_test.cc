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
  explicit Unheard(uint64_t seed) : Lab(seed) {
    EXPECT_TRUE(connect());
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

TEST(Farewell, AStrangerIsAnsweredNothing) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  farewells.keep(17, peer, 0xfeed, close, 0);
  wire::Header header;
  header.session = 17;
  header.tag = 0xfeed;
  Endpoint stranger = peer;
  stranger.port = 7471;
  EXPECT_TRUE(farewells.answer(header, stranger, 1).empty());
  wire::Header forged = header;
  forged.tag ^= 1;
  EXPECT_TRUE(farewells.answer(forged, peer, 1).empty());
  forged = header;
  forged.session = 18;
  EXPECT_TRUE(farewells.answer(forged, peer, 1).empty());
  forged = header;
  forged.type = wire::FrameType::kHelloAck;
  EXPECT_TRUE(farewells.answer(forged, peer, 1).empty());
  EXPECT_EQ(farewells.answer(header, peer, 1).size(), close.size());
}

TEST(Farewell, ACloseIsNotAnsweredSoNoTwoSidesAnswerEachOther) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  farewells.keep(17, peer, 0xfeed, close, 0);
  wire::Header header;
  header.session = 17;
  header.tag = 0xfeed;
  header.type = wire::FrameType::kClose;
  EXPECT_TRUE(farewells.answer(header, peer, 1).empty());
}

TEST(Farewell, AnswersBecomeSeldomAndEnd) {
  Farewells farewells(10 * kSecond);
  const Endpoint peer{IpAddress::v4(10, 0, 0, 2), 7470};
  const std::array<std::byte, 40> close{};
  farewells.keep(17, peer, 0xfeed, close, 0);
  wire::Header header;
  header.session = 17;
  header.tag = 0xfeed;
  int answers = 0;
  for (uint64_t now_ns = 0; now_ns < kSecond; now_ns += 10'000) {  // a hundred thousand a second
    answers += !farewells.answer(header, peer, now_ns).empty();
  }
  EXPECT_GE(answers, 8);
  EXPECT_LE(answers, 13);
  EXPECT_FALSE(farewells.answer(header, peer, 9 * kSecond).empty());
  EXPECT_TRUE(farewells.answer(header, peer, 10 * kSecond).empty());
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
    farewells.keep(number, peer, 0xfeed, close, number);
  }
  EXPECT_EQ(farewells.size(), Farewells::kMost);
  header.session = 1;
  EXPECT_TRUE(farewells.answer(header, peer, 5000).empty());
  header.session = 2;
  EXPECT_FALSE(farewells.answer(header, peer, 5000).empty());
}

}  // namespace
}  // namespace mercury::echo
