// Workers that are lost and come back before their job has begun.
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

class GatheringTest : public RunningTest {
 protected:
  GatheringTest() : RunningTest(kMinute) {}
  // Worker 1 is there, and a second one that says it is worker 1; then the last one that was
  // missing comes.
  ProgramModel& second_and_last(bool first_is_lost) {
    JobPolicy servers = serving();
    servers.peer_timeout_ns = hosts.peer_timeout_ns;
    for (int host : {1, 2, 5}) hosts.add(host, 1, not_serving());
    for (int host : {3, 4}) hosts.add(host, 1, servers);
    b = &opens(2, request(1));
    hosts.run_for(kSecond);
    if (first_is_lost) hosts.kill(2);
    ProgramModel& second = opens(5, request(1));
    hosts.run_for(kSecond);
    EXPECT_EQ(second.opens, 0) << second.open_text;
    a = &opens(1, request(0));
    hosts.run_for(kSecond);
    EXPECT_EQ(a->opens, 0) << a->open_text;
    return second;
  }
};

TEST_F(GatheringTest, ANextLifeWaitsForTheEndOfItsLastOne) {
  ProgramModel& again = second_and_last(true);
  hosts.run_for(Hosts::kPeerTimeoutNs);
  ASSERT_TRUE(a->is_open() && again.is_open()) << a->open_text << again.open_text;
  EXPECT_EQ(again.opened.rank, 1);
  b = &again;
  end();
}

TEST_F(GatheringTest, ALivingWorkerKeepsItsPlace) {
  ProgramModel& second = second_and_last(false);
  hosts.run_for(15 * kSecond);
  EXPECT_EQ(second.open_code, Errc::kRankTaken) << second.open_text;
  EXPECT_TRUE(says(second.open_text, "there already")) << second.open_text;
  ASSERT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
  end();
}

// Half as long again as a loss takes to be noticed.
TEST_F(GatheringTest, HowLongANextLifeWaitsFollowsThePeerTimeout) {
  hosts.peer_timeout_ns = 16 * kSecond;
  ProgramModel& again = second_and_last(true);
  hosts.run_for(hosts.peer_timeout_ns);
  ASSERT_TRUE(a->is_open() && again.is_open()) << a->open_text << again.open_text;
  b = &again;
  end();
}

TEST_F(GatheringTest, SoDoesHowLongTheOthersWaitForALivingOne) {
  hosts.peer_timeout_ns = 4 * kSecond;
  ProgramModel& second = second_and_last(false);
  hosts.run_for(3 * kSecond);
  EXPECT_EQ(a->opens, 0) << "the second one has waited for 5 s";
  hosts.run_for(2 * kSecond);
  EXPECT_EQ(second.open_code, Errc::kRankTaken) << second.open_text;
  ASSERT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
  end();
}

// However many come that say they are worker 1, and whatever is left of the others' time limits.
TEST_F(GatheringTest, TheOthersWaitSoLongAtMost) {
  for (uint64_t limit_s : {20, 60}) {
    SCOPED_TRACE(limit_s);
    hosts = Hosts();
    for (int host : {1, 2, 5}) hosts.add(host, 1, not_serving());
    for (int host : {3, 4}) hosts.add(host, 1, serving());
    const auto limited = [&](int rank) {
      OpenJob open = request(rank);
      open.timeout_ns = limit_s * kSecond;
      return open;
    };
    b = &opens(2, limited(1));
    hosts.run_for(10 * kSecond);
    ProgramModel* others[] = {&opens(5, limited(1)), nullptr, nullptr};
    hosts.run_for(kSecond / 10);
    a = &opens(1, limited(0));
    hosts.run_for(7 * kSecond);
    others[1] = &opens(5, limited(1));
    EXPECT_EQ(a->opens, 0) << a->open_text;
    hosts.run_for(2 * kSecond);
    others[2] = &opens(5, limited(1));
    hosts.run_for(8 * kSecond);
    ASSERT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
    for (int i : {0, 1}) EXPECT_EQ(others[i]->open_code, Errc::kRankTaken) << others[i]->open_text;
    others[2]->gone();  // it waits where the job began before it came
    end();
    if (HasFatalFailure()) return;
  }
}

// Who has said no rank leaves the one that is asked for.
TEST_F(GatheringTest, WhosePlaceIsFreeTakesIt) {
  for (int host : {1, 2, 5}) hosts.add(host, 1, not_serving());
  hosts.add(3, 1, serving());
  ProgramModel& first = opens(1, request(0));
  a = &opens(2, request(-1));
  hosts.run_for(kSecond);
  b = &opens(5, request(1));  // all two are there
  hosts.run_for(kSecond);
  first.gone();
  hosts.run_for(kSecond);
  hosts.add(4, 1, serving());
  hosts.run_for(20 * kSecond);
  ASSERT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
  EXPECT_EQ(b->opened.rank, 1);
  end();
}

TEST_F(GatheringTest, OneThatWaitedAndWentHoldsNobodyUp) {
  second_and_last(false).gone();
  hosts.run_for(kSecond);
  ASSERT_TRUE(a->is_open() && b->is_open()) << a->open_text << b->open_text;
  end();
}

}  // namespace
}  // namespace mercury::test
