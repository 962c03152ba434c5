#include "shim/runtime/scheduling.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

namespace mercury {
namespace {

int nice_of_this_thread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

bool may_be_urgent() {
  rlimit limit{};
  getrlimit(RLIMIT_NICE, &limit);
  return geteuid() == 0 || limit.rlim_cur >= 40;
}

void in_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(Scheduling, NormalIsForEverybodyAndKeepsTheNiceness) {
  in_thread([] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 5), 0);
    const Status done = set_scheduling(Scheduling::kNormal);
    EXPECT_TRUE(done) << done.error().message;
    EXPECT_EQ(nice_of_this_thread(), 5);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  });
}

TEST(Scheduling, UrgentAndRealtimeAreOfTheThreadAlone) {
  if (!may_be_urgent()) GTEST_SKIP() << "needs root, or CAP_SYS_NICE";
  const int before = nice_of_this_thread();
  in_thread([] {
    EXPECT_TRUE(set_scheduling(Scheduling::kUrgent));
    EXPECT_EQ(nice_of_this_thread(), -20);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  });
  in_thread([] {
    EXPECT_TRUE(set_scheduling(Scheduling::kRealtime));
    EXPECT_EQ(sched_getscheduler(0), SCHED_RR);
  });
  EXPECT_TRUE(check_scheduling(Scheduling::kRealtime));
  EXPECT_EQ(nice_of_this_thread(), before);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

// Whoever started the process under chrt, or systemd's CPUSchedulingPolicy, meant it.
TEST(Scheduling, ARealtimePolicyOfTheAdministratorStays) {
  if (!may_be_urgent()) GTEST_SKIP() << "needs root, or CAP_SYS_NICE";
  for (const int policy : {SCHED_RR, SCHED_FIFO}) {
    const std::string name = policy == SCHED_RR ? "SCHED_RR" : "SCHED_FIFO";
    for (const Scheduling wanted :
         {Scheduling::kNormal, Scheduling::kUrgent, Scheduling::kRealtime}) {
      in_thread([&] {
        const sched_param chosen{3};
        ASSERT_EQ(sched_setscheduler(0, policy, &chosen), 0);
        EXPECT_TRUE(set_scheduling(wanted));
        sched_param now{};
        EXPECT_EQ(sched_getscheduler(0), policy);
        ASSERT_EQ(sched_getparam(0, &now), 0);
        EXPECT_EQ(now.sched_priority, 3);
        const Result<std::string> said = check_scheduling(wanted);
        ASSERT_TRUE(said);
        EXPECT_EQ(*said, name + ", priority 3, as this process was started");
      });
    }
  }
}

TEST(Scheduling, TheCheckSaysWhatWouldBeInForce) {
  const std::string mine = "nice " + std::to_string(nice_of_this_thread());
  EXPECT_EQ(*check_scheduling(Scheduling::kNormal), mine);
  if (!may_be_urgent()) GTEST_SKIP() << "the rest needs root, or CAP_SYS_NICE";
  EXPECT_EQ(*check_scheduling(Scheduling::kUrgent), "nice -20");
  EXPECT_EQ(*check_scheduling(Scheduling::kRealtime), "SCHED_RR, priority 1");
}

// In a child that gives its privileges up for good.
TEST(Scheduling, WithoutPrivilegeSaysWhatWouldHelpAndChangesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give it up";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NICE, &none);
    setrlimit(RLIMIT_RTPRIO, &none);
    if (setresuid(65534, 65534, 65534) != 0) _exit(2);
    const int before = nice_of_this_thread();
    for (const Scheduling wanted : {Scheduling::kUrgent, Scheduling::kRealtime}) {
      const Status refused = set_scheduling(wanted);
      if (refused || refused.error().code != Errc::kPermission) _exit(3);
      if (refused.error().message.find("CAP_SYS_NICE") == std::string::npos) _exit(4);
      if (nice_of_this_thread() != before || sched_getscheduler(0) != SCHED_OTHER) _exit(5);
    }
    _exit(set_scheduling(Scheduling::kNormal) ? 0 : 6);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace mercury
