#include "transport/flow/send_gate.h"

#include <gtest/gtest.h>

#include <set>

#include "transport/flow/sent_pool.h"
#include "transport/wire/header.h"

namespace mercury {
namespace {

struct Ignore {
  void packet_acked(const SentRecord&) noexcept {}
  void packet_lost(const SentRecord&, LossCause) noexcept {}
};

class SendGateTest : public testing::Test {
 protected:
  static constexpr uint64_t kWindow = 8000;
  static constexpr uint64_t kRttNs = 1'000'000;
  static constexpr uint64_t kNowNs = 1'000'000'000;

  bool can_send(uint32_t bytes) const { return gate_.can_send(bytes, limit_, flight_, now_ns_); }
  void send(uint32_t bytes) {
    flight_.on_sent(SentKind::kData, next_++, SentTag(), bytes, now_ns_);
    gate_.on_sent(bytes, limit_, flight_, now_ns_);
  }
  void ack_all() {
    const NumberRange all{0, next_ - 1};
    Ignore ignore;
    flight_.on_ack(std::span(&all, 1), 0, now_ns_, ignore);
  }
  bool opened() { return gate_.opened(limit_, flight_, now_ns_); }
  uint64_t deadline_ns() const { return gate_.deadline_ns(flight_); }

  SentPool pool_;
  LossDetector flight_{{.initial_rtt_ns = kRttNs}, {pool_}};
  SendLimit limit_{FixedWindow(kWindow)};
  SendGate gate_;
  uint64_t next_ = 0;
  uint64_t now_ns_ = kNowNs;
};

TEST_F(SendGateTest, FramesLeaveUpToTheLimitAndAfterThatWhenOneIsAcknowledged) {
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(can_send(1000));
    send(1000);
  }
  EXPECT_FALSE(opened());  // nobody was refused
  EXPECT_FALSE(can_send(1000));
  EXPECT_FALSE(opened());
  EXPECT_EQ(deadline_ns(), kNever);  // time does not help
  ack_all();
  EXPECT_TRUE(opened());
  EXPECT_FALSE(opened());  // said once
}

TEST_F(SendGateTest, TheSmallestFrameThatWasRefusedOpensIt) {
  send(7000);
  EXPECT_FALSE(can_send(3000));
  EXPECT_FALSE(can_send(1001));
  EXPECT_FALSE(can_send(2000));
  EXPECT_FALSE(opened());
  limit_ = SendLimit(FixedWindow(kWindow + 1));
  EXPECT_TRUE(opened());
}

TEST_F(SendGateTest, AboveTheLimitOneFrameAtATimeAtItsInterval) {
  ASSERT_TRUE(can_send(16'000));
  send(16'000);
  EXPECT_FALSE(can_send(16'000));
  ack_all();
  EXPECT_FALSE(opened());  // not before its interval is over
  const uint64_t due_ns = deadline_ns();
  EXPECT_GT(due_ns, kNowNs);
  now_ns_ = due_ns - 1;
  EXPECT_FALSE(can_send(16'000));
  now_ns_ = due_ns;
  EXPECT_TRUE(opened());
  EXPECT_TRUE(can_send(16'000));
}

TEST_F(SendGateTest, AsksAtEachQuarterOfAFullLimitAndWhereTheNextDoesNotFit) {
  std::string asked;
  for (int i = 0; i < 8; ++i) {
    send(1000);
    asked += gate_.ask_now() ? 'A' : '.';
  }
  // Nothing below half of the limit: what is in flight is acknowledged soon enough. Then a quarter
  // of it, 2,000 bytes, from one question to the next; the last fills it.
  EXPECT_EQ(asked, "...A.A.A");
}

TEST_F(SendGateTest, AsksWhereTheNextDoesNotFitHoweverLittleWasSentSince) {
  for (int i = 0; i < 6; ++i) send(1000);
  ASSERT_TRUE(gate_.ask_now());
  send(1200);
  EXPECT_TRUE(gate_.ask_now());
}

TEST_F(SendGateTest, ABurstAboveTheLimitBeginsAtARandomTimeThatIsDrawnOnce) {
  std::set<uint64_t> starts;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SendGate gate;
    gate.begin_burst(16'000, limit_, flight_, kNowNs, seed);
    gate.begin_burst(16'000, limit_, flight_, kNowNs + 1, seed + 1);  // asked again
    gate.can_send(16'000, limit_, flight_, 0);                        // refused
    const uint64_t start_ns = gate.deadline_ns(flight_);
    EXPECT_GE(start_ns, kNowNs);
    EXPECT_LE(start_ns, kNowNs + 2 * kRttNs);
    starts.insert(start_ns);
    SendGate alone;
    alone.begin_burst(16'000, limit_, flight_, kNowNs, seed);
    alone.can_send(16'000, limit_, flight_, 0);
    EXPECT_EQ(alone.deadline_ns(flight_), start_ns);
  }
  EXPECT_GT(starts.size(), 90U);
}

TEST_F(SendGateTest, EachBurstDrawsItsStart) {
  for (int burst = 0; burst < 3; ++burst) {
    gate_.begin_burst(16'000, limit_, flight_, now_ns_, 5);
    can_send(16'000);
    const uint64_t start_ns = deadline_ns();
    EXPECT_GT(start_ns, now_ns_);
    now_ns_ = start_ns;
    send(16'000);
    now_ns_ += kRttNs;
    ack_all();
    now_ns_ += 1'000'000'000;
  }
}

TEST_F(SendGateTest, ABurstOfFramesWithinTheLimitWaitsForNothing) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    gate_.begin_burst(1000, limit_, flight_, now_ns_, seed);
    EXPECT_TRUE(can_send(16'000)) << seed;
  }
}

TEST_F(SendGateTest, AGapBetweenTwoFramesIsNoPause) {
  limit_.take_grants(0, 1);
  send(1000);
  ack_all();
  now_ns_ += 1'000'000;
  gate_.begin_burst(1000, limit_, flight_, now_ns_, 1);
  EXPECT_EQ(limit_.bytes(), kWindow);
  now_ns_ += 1'000'000'000;
  gate_.begin_burst(1000, limit_, flight_, now_ns_, 1);
  EXPECT_EQ(limit_.bytes(), wire::kGrantUnitBytes);  // the idle grant
}

}  // namespace
}  // namespace mercury
