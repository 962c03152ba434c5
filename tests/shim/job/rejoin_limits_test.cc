// Limits of jobs that workers come back to: who is let in, how many wait, and for how long.
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

// --- coming back -----------------------------------------------------------------------------

class ReturnLimitsTest : public RunningTest {
 protected:
  ReturnLimitsTest() : RunningTest(kMinute) {}
  void start() {  // and host 5, from which others come
    JobPolicy policy = not_serving();
    policy.max_jobs = 1000;
    hosts.add(5, 1, policy);
    RunningTest::start(1, serving(), policy);
  }
};

TEST_F(ReturnLimitsTest, AServerMoreIsRefused) {
  start();
  ProgramModel& server = opens(5, job(Role::kServer, -1, 2, 2, {address(3), address(4)}));
  hosts.run_for(kSecond);
  EXPECT_EQ(server.open_code, Errc::kRankTaken);
  EXPECT_TRUE(says(server.open_text, "has all its servers")) << server.open_text;
  EXPECT_TRUE(a->status().ok() && b->status().ok());
  end();
}

TEST_F(ReturnLimitsTest, OtherSizesAndOptionsAreRefused) {
  start();
  b->gone();
  hosts.run_for(kSecond);
  OpenJob sizes = request(1);
  sizes.workers = 3;
  OpenJob options = request(1);
  options.terms.rejoin_ms = to_ms(kSecond);
  OpenJob secret = request(1);
  secret.secret = "another";
  ProgramModel& larger = opens(5, sizes);
  ProgramModel& shorter = opens(5, options);
  ProgramModel& stranger = opens(5, secret);
  hosts.run_for(kSecond);
  EXPECT_EQ(larger.open_code, Errc::kWrongSizes) << larger.open_text;
  EXPECT_EQ(shorter.open_code, Errc::kWrongSizes) << shorter.open_text;
  EXPECT_EQ(stranger.open_code, Errc::kUnknownJob) << stranger.open_text;
  b = &opens(2, request(1));  // the place is still there
  hosts.run_for(kSecond);
  EXPECT_TRUE(b->is_open()) << b->open_text;
  end();
}

// Each holds memory of the coordinator for as long as it likes to wait.
TEST_F(ReturnLimitsTest, SoManyMayWaitForAPlace) {
  start();
  constexpr int kMost = 256;
  std::vector<ProgramModel*> waiting;
  for (int i = 0; i < kMost; ++i) {
    waiting.push_back(&opens(5, request(1)));
    hosts.run_for(kSecond / 100);
    ASSERT_EQ(waiting.back()->opens, 0) << i << waiting.back()->open_text;
  }
  ProgramModel& more = opens(5, request(1));
  hosts.run_for(kSecond / 100);
  EXPECT_EQ(more.open_code, Errc::kAgain);
  EXPECT_TRUE(says(more.open_text, "too many workers wait")) << more.open_text;
  b->gone();
  hosts.run_for(kSecond);
  EXPECT_TRUE(waiting.front()->is_open()) << waiting.front()->open_text;
  hosts.run_for(kMinute);
  for (int i = 1; i < kMost; ++i) EXPECT_EQ(waiting[i]->open_code, Errc::kRankTaken) << i;
  b = waiting.front();
  end();
}

// It got the place and vanished: others have it when its own time limit has passed, which is
// before its host is given up for lost.
TEST_F(ReturnLimitsTest, APlaceIsHeldNoLongerThanTheTimeLimitOfWhoHasIt) {
  for (int steps = 0; steps < 60; ++steps) {
    SCOPED_TRACE(testing::Message() << "killed after " << steps << " steps");
    hosts = Hosts();
    start();
    b->gone();
    hosts.run_for(kSecond);
    OpenJob brief = request(1);
    brief.timeout_ns = 3 * kSecond;
    opens(2, brief);
    for (int i = 0; i < steps; ++i) hosts.step();
    hosts.kill(2);
    ProgramModel& next = opens(5, request(1));
    hosts.run_for(4 * kSecond);
    // But one that was told to start is in the job until its host is lost.
    if (!next.is_open()) hosts.run_for(Hosts::kPeerTimeoutNs);
    ASSERT_TRUE(next.is_open()) << next.open_text;
    ASSERT_TRUE(a->status().ok()) << a->status().error().message;
    b = &next;
    end();
    if (HasFailure()) return;
  }
}

// --- coming back to a job with a quorum ------------------------------------------------------

class QuorumLimitsTest : public JobTest {
 protected:
  // `workers` on hosts 1 to `workers`, of which two are enough; host 9 serves.
  void start(uint16_t workers, uint64_t seed) {
    hosts = Hosts(seed);
    size = workers;
    w.clear();
    for (int i = 1; i <= workers; ++i) hosts.add(i, 1, not_serving());
    hosts.add(9, 1, serving());
    for (int i = 0; i < workers; ++i) w.push_back(&opens(i + 1, request(i)));
    hosts.run_for(kSecond);
    for (ProgramModel* p : w) ASSERT_TRUE(p->is_open()) << p->open_text;
  }
  OpenJob request(int rank) {
    OpenJob open = job(Role::kWorker, rank, size, 1, {address(9)});
    open.terms.quorum = 2;
    open.terms.patience_ms = to_ms(kSecond / 10);
    return open;
  }
  uint16_t size = 0;
  std::vector<ProgramModel*> w;
};

TEST_F(QuorumLimitsTest, LostHostsFailItByNameWhoeverNoticesFirst) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    start(3, seed);
    hosts.kill(2);
    hosts.kill(3);
    hosts.run_for(Hosts::kPeerTimeoutNs + kSecond);
    ASSERT_FALSE(w[0]->status().ok());
    const Error why = w[0]->status().error();
    EXPECT_EQ(why.code, Errc::kPeerLost) << why.message;
    EXPECT_TRUE(says(why.message, "worker 1 of 3") || says(why.message, "worker 2 of 3"))
        << why.message;
    w[0]->close();
    expect_nothing_left();
    if (HasFailure()) return;
  }
}

TEST_F(QuorumLimitsTest, WhoComesBackWhenItIsEndingIsToldSo) {
  start(3, 1);
  w[2]->gone();
  hosts.run_for(kSecond);
  w[0]->close();  // one is left, which is none too many
  hosts.run_for(kSecond);
  ProgramModel& late = opens(3, request(2));
  hosts.run_for(kSecond);
  EXPECT_EQ(late.open_code, Errc::kPeerLeft);
  EXPECT_TRUE(says(late.open_text, "it is ending")) << late.open_text;
  w[1]->close();
  expect_nothing_left();
}

// Two come back, and at each point of that so many leave in order that the job ends.
TEST_F(QuorumLimitsTest, EndsInOrderWhileTwoComeBack) {
  for (int steps = 0; steps < 120; ++steps) {
    SCOPED_TRACE(testing::Message() << "left after " << steps << " steps");
    start(4, static_cast<uint64_t>(steps));
    w[2]->gone();
    w[3]->gone();
    hosts.run_for(kSecond);
    ProgramModel& c = opens(3, request(2));
    ProgramModel& d = opens(4, request(3));
    for (int i = 0; i < steps; ++i) hosts.step();
    for (ProgramModel* p : {w[0], w[1]}) p->close();
    hosts.run_for(20 * kSecond);
    for (ProgramModel* p : {w[0], w[1]}) EXPECT_EQ(p->closes, 1);
    for (ProgramModel* p : {&c, &d}) {
      if (p->is_open()) {
        p->close();
      } else if (p->opens == 1) {
        EXPECT_EQ(p->open_code, Errc::kPeerLeft) << p->open_text;
      } else {
        p->gone();  // it may have come when no such job was left, and waits for a new one
      }
    }
    expect_nothing_left();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace mercury::test
