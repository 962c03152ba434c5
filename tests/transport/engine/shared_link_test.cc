// Engines that send over one link: it is never idle while one of them has something to send, they
// have equal parts of it however late their threads wake up, and none waits for one that stands
// still.
#include "transport/engine/shared_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "transport/engine/pacer.h"

namespace mercury {
namespace {

constexpr uint64_t kRate = 50'000'000;  // 400 Mb/s: 20 ns a byte
constexpr uint64_t kByteNs = 1'000'000'000 / kRate;
constexpr uint64_t kBound = 64 * 1024;
constexpr uint32_t kFrame = 1538;
constexpr uint64_t kNever = ~uint64_t{0};

// An engine as the pacer sees it, in virtual time.
struct Sender {
  Sender(std::shared_ptr<SharedLink> link, uint64_t wakes_late_ns, bool gathers,
         uint64_t of_rate = kRate)
      : pacer(of_rate, kBound, std::move(link), gathers), late_ns(wakes_late_ns) {}
  // What it may send, sends it, and says when its next pass begins.
  void pass(uint64_t now_ns) {
    pacer.begin_pass(now_ns, worked && pass_ns > 0);
    worked = false;
    wakes_ns = kNever;
    while (bytes < wanted) {
      if (!pacer.allows(now_ns)) {
        pacer.note_waiting();
        wakes_ns = std::max(pacer.ready_at_ns(), now_ns) + late_ns;
        break;
      }
      pacer.sent(kFrame, now_ns);
      bytes += kFrame;
      worked = true;
    }
    if (worked && pass_ns > 0) wakes_ns = now_ns + pass_ns;
  }
  Pacer pacer;
  uint64_t late_ns;      // after it could have sent: at least 1
  uint64_t pass_ns = 0;  // what a pass takes that has sent something
  uint64_t wanted = kNever;
  uint64_t bytes = 0;
  uint64_t wakes_ns = 0;
  bool worked = false;
};

class SharedLinkTest : public testing::TestWithParam<bool> {
};  // whether what its engines send gathers

INSTANTIATE_TEST_SUITE_P(Sends, SharedLinkTest, testing::Bool(),
                         [](const auto& one) { return one.param ? "Gathered" : "FrameByFrame"; });

class Engines {
 public:
  explicit Engines(bool gathers, uint64_t rate = kRate) : gathers_(gathers), rate_(rate) {}
  Sender& add(uint64_t wakes_late_ns) {
    return *senders_.emplace_back(std::make_unique<Sender>(link_, wakes_late_ns, gathers_, rate_));
  }
  void run_until(uint64_t until_ns) {
    for (;;) {
      Sender& next = **std::ranges::min_element(
          senders_, {}, [](const auto& sender) { return sender->wakes_ns; });
      if (next.wakes_ns >= until_ns) break;
      now_ns_ = std::max(now_ns_, next.wakes_ns);
      next.pass(now_ns_);
      const uint64_t free_at_ns = link_->clock().free_at_ns();
      const uint64_t ahead_ns = free_at_ns - std::min(free_at_ns, now_ns_);
      const uint64_t pass_ns = std::max(longest_pass_ns_, next.pass_ns);
      longest_pass_ns_ = pass_ns;
      ASSERT_LE(bytes_in(ahead_ns), kBound + bytes_in(pass_ns) + kFrame * (senders_.size() + 1))
          << "at " << now_ns_;
    }
    now_ns_ = until_ns;
  }
  uint64_t sent() const {
    uint64_t bytes = 0;
    for (const auto& sender : senders_) bytes += sender->bytes;
    return bytes;
  }
  uint64_t carried() const { return bytes_in(now_ns_); }

 private:
  uint64_t bytes_in(uint64_t ns) const { return ns * (rate_ / 1'000'000) / 1000; }

  const bool gathers_;
  const uint64_t rate_;
  uint64_t longest_pass_ns_ = 0;
  std::shared_ptr<SharedLink> link_ = std::make_shared<SharedLink>();
  std::vector<std::unique_ptr<Sender>> senders_;
  uint64_t now_ns_ = 0;
};

constexpr uint64_t kSecond = 1'000'000'000;

TEST_P(SharedLinkTest, EachHasAnEqualPartHoweverLateItWakesUp) {
  for (const uint64_t late_ns : {uint64_t{1}, uint64_t{50'000}, uint64_t{500'000}}) {
    Engines engines(GetParam());
    const Sender& prompt = engines.add(1);
    const Sender& late = engines.add(late_ns);
    engines.run_until(10 * kSecond);
    EXPECT_GE(engines.sent(), engines.carried()) << "the link has been idle";
    EXPECT_NEAR(static_cast<double>(prompt.bytes), static_cast<double>(late.bytes),
                kBound + SharedLink::kTurnBytes)
        << late_ns;
  }
}

TEST_P(SharedLinkTest, WhoHasNothingToSendLeavesItsPartToTheOthers) {
  Engines engines(GetParam());
  Sender& first = engines.add(1);
  Sender& second = engines.add(1);
  second.wanted = 0;
  engines.run_until(kSecond);
  EXPECT_GE(first.bytes, engines.carried());
  // It has saved nothing meanwhile.
  second.wanted = kNever;
  second.wakes_ns = kSecond;
  const uint64_t before = first.bytes;
  engines.run_until(kSecond + kSecond / 10);
  EXPECT_NEAR(static_cast<double>(first.bytes - before), static_cast<double>(second.bytes),
              kBound + SharedLink::kTurnBytes);
  // What it wants is less than its part.
  second.wanted = second.bytes;
  for (uint64_t ms = 101; ms <= 200; ++ms) {
    second.wanted += 10 * kFrame;
    second.wakes_ns = kSecond + ms * 1'000'000 - 1'000'000;
    engines.run_until(kSecond + ms * 1'000'000);
  }
  EXPECT_GE(second.bytes + 50 * kFrame, second.wanted);
  EXPECT_GE(engines.sent(), engines.carried());
}

TEST_P(SharedLinkTest, NobodyWaitsForAThreadThatStandsStill) {
  Engines engines(GetParam());
  const Sender& first = engines.add(1);
  Sender& second = engines.add(1);
  engines.run_until(kSecond);
  ASSERT_NE(second.wakes_ns, kNever) << "it is to stand still where the others could wait for it";
  second.wakes_ns = kNever;
  const uint64_t before = first.bytes;
  engines.run_until(2 * kSecond);
  EXPECT_GE(engines.sent(), engines.carried());
  EXPECT_GE(first.bytes - before, kSecond / kByteNs - kBound);
}

TEST_P(SharedLinkTest, WhoStoodStillGetsLittleOfWhatItMissed) {
  Engines engines(GetParam());
  Sender& first = engines.add(1);
  Sender& second = engines.add(1);
  Sender& third = engines.add(1);
  third.wakes_ns = kNever;
  engines.run_until(kSecond);
  second.wakes_ns = kNever;
  engines.run_until(2 * kSecond);
  second.wakes_ns = 2 * kSecond;
  uint64_t before = first.bytes;
  engines.run_until(2 * kSecond + 10'000'000);
  EXPECT_GE(first.bytes - before + SharedLink::kArrearsBytes + kBound, 10'000'000 / kByteNs / 2);
  third.wakes_ns = 2 * kSecond + 10'000'000;
  before = second.bytes;
  engines.run_until(3 * kSecond);
  EXPECT_NEAR(static_cast<double>(second.bytes - before), static_cast<double>(third.bytes),
              2 * kBound);
}

// The time of a pass is what the link carries meanwhile: more than the bound on these links.
TEST_P(SharedLinkTest, PassesThatTakeTimeLeaveNobodyBehindAndTheLinkBusy) {
  for (const uint64_t rate : {12'500'000'000ULL, 50'000'000'000ULL}) {
    for (const uint64_t late_ns : {1ULL, 5'000ULL}) {
      Engines engines(GetParam(), rate);
      Sender& first = engines.add(1);
      Sender& second = engines.add(late_ns);
      first.pass_ns = second.pass_ns = 14'000;
      engines.run_until(kSecond / 10);
      EXPECT_GE(engines.sent(), engines.carried() * 999 / 1000) << rate << ' ' << late_ns;
      EXPECT_GE(first.bytes, engines.sent() / 4) << rate << ' ' << late_ns;
      EXPECT_GE(second.bytes, engines.sent() / 4) << rate << ' ' << late_ns;
      second.wakes_ns = kNever;
      const uint64_t before = first.bytes;
      const uint64_t carried = engines.carried();
      engines.run_until(kSecond / 5);
      EXPECT_GE(first.bytes - before, (engines.carried() - carried) * 999 / 1000);
    }
  }
}

TEST_P(SharedLinkTest, EachKnowsThatTheLinkWasIdleWhoeverSentThen) {
  const auto link = std::make_shared<SharedLink>();
  Sender first(link, 1, GetParam()), second(link, 1, GetParam());
  first.pacer.sent(kFrame, 0);
  const uint32_t before = first.pacer.pauses();
  second.pacer.sent(kFrame, kSecond);
  first.pacer.sent(kFrame, kSecond);
  EXPECT_EQ(first.pacer.pauses(), before + 1);
  EXPECT_EQ(second.pacer.pauses(), first.pacer.pauses());
}

TEST_P(SharedLinkTest, WhoseRateIsNoLongerKnownWaitsForNothing) {
  const auto link = std::make_shared<SharedLink>();
  Sender first(link, 1, GetParam()), second(link, 1, GetParam());
  first.wanted = second.wanted = SharedLink::kTurnBytes;
  first.pass(1);
  second.wanted = kNever;
  second.pass(1);
  first.wanted = kNever;
  first.pass(link->clock().free_at_ns() - 1);
  second.pacer.set_rate(0, 2);
  first.bytes = 0;
  first.pass(kSecond);
  EXPECT_GT(first.bytes, kBound - kFrame) << "half of the bound would be left to the other";
}

TEST_P(SharedLinkTest, OneThatIsSlowAndManyThatAreNot) {
  Engines engines(GetParam());
  std::vector<const Sender*> senders;
  for (uint64_t i = 0; i < 8; ++i)
    senders.push_back(&engines.add(i == 0 ? 400'000 : 1 + i * 3'000));
  engines.run_until(10 * kSecond);
  EXPECT_GE(engines.sent(), engines.carried());
  for (const Sender* sender : senders) {
    EXPECT_NEAR(static_cast<double>(sender->bytes), static_cast<double>(engines.sent()) / 8,
                kBound + SharedLink::kTurnBytes);
  }
}

TEST_P(SharedLinkTest, APlaceIsTakenAgainAndThoseWithoutAreStillPaced) {
  const auto link = std::make_shared<SharedLink>();
  for (int times = 0; times < 3; ++times) {
    std::vector<std::unique_ptr<Sender>> senders;
    for (uint32_t i = 0; i < SharedLink::kTurns + 2; ++i) {
      senders.push_back(std::make_unique<Sender>(link, 1, GetParam()));
    }
    EXPECT_EQ(link->engines(), SharedLink::kTurns + 2);
    const uint64_t now_ns = link->clock().free_at_ns() + 1;
    for (auto& sender : senders) sender->pass(now_ns);
    EXPECT_GT(senders[0]->bytes, kBound - kFrame);
    for (size_t i = 1; i < senders.size(); ++i) EXPECT_EQ(senders[i]->bytes, 0U) << i;
  }
  EXPECT_EQ(link->engines(), 0U);
}

TEST_P(SharedLinkTest, ThreadsLoseNothingOfWhatOthersGaveIt) {
  const auto link = std::make_shared<SharedLink>();
  constexpr uint64_t kFrames = 100'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&link] {
      Sender sender(link, 1, GetParam(), kSecond);  // a byte per nanosecond
      for (uint64_t frame = 0; frame < kFrames; ++frame) {
        sender.pacer.begin_pass(0, false);
        sender.pacer.allows(0);
        sender.pacer.sent(kFrame, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(link->clock().free_at_ns(), 4 * kFrames * kFrame);
}

// Engines of which each says that peers send to it for a millisecond when it divides.
class Receivers {
 public:
  explicit Receivers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      engines.push_back(std::make_unique<Pacer>(kRate, kBound, link));
      engines.back()->note_receives(true);
    }
  }
  uint64_t divide(size_t engine, bool hears = true) {
    const uint64_t part = engines[engine]->part_of_link(now_ns);
    engines[engine]->note_hears(hears ? now_ns + 1'000'000 : 0);
    return part;
  }
  std::shared_ptr<SharedLink> link = std::make_shared<SharedLink>();
  std::vector<std::unique_ptr<Pacer>> engines;
  uint64_t now_ns = 1'000'000'000;
};

TEST(SharedLink, ThoseToWhichPeersSendHaveEqualPartsOfAll) {
  Receivers receivers(4);
  EXPECT_EQ(receivers.divide(0), kRate / 4) << "the others may begin with it";
  EXPECT_EQ(receivers.divide(0), kRate);
  EXPECT_EQ(receivers.divide(1), kRate / 4);
  EXPECT_EQ(receivers.divide(0), kRate / 2);
  EXPECT_EQ(receivers.divide(1, false), kRate / 2);
  EXPECT_EQ(receivers.divide(0), kRate) << "the other's peers are silent";
  EXPECT_EQ(receivers.divide(1), kRate / 4);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 4; ++i) receivers.divide(i);
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(receivers.divide(i), kRate / 4);
  receivers.engines[2]->note_receives(false);
  EXPECT_EQ(receivers.engines[3]->idle_part(), kRate / 3);
  receivers.engines.erase(receivers.engines.begin() + 1);
  EXPECT_EQ(receivers.divide(0), kRate / 3) << "another has ended";
  EXPECT_EQ(Pacer(kRate, kBound).part_of_link(0), kRate) << "nobody else sends over its link";
}

// An engine to which nothing comes divides nothing.
TEST(SharedLink, WhatAnEngineDoesNotSayAgainIsNotLeftToItForLong) {
  Receivers receivers(2);
  receivers.divide(0);
  receivers.divide(1);
  receivers.now_ns += 900'000;
  EXPECT_EQ(receivers.divide(0), kRate / 2);
  receivers.now_ns += 200'000;
  EXPECT_EQ(receivers.divide(0), kRate);
  EXPECT_EQ(receivers.divide(1), kRate / 2) << "it begins anew";
  EXPECT_EQ(receivers.divide(0), kRate / 2);
}

}  // namespace
}  // namespace mercury
