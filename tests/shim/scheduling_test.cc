#include "shim/host/scheduling.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>

#include "shim/host/thread.h"

namespace mercury {
namespace {

int nice_of_this_thread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

constexpr int kPriority = 3;

void in_thread(const std::function<void()>& body) { std::thread(body).join(); }

bool be_realtime(int policy) {
  const sched_param chosen{kPriority};
  return sched_setscheduler(0, policy, &chosen) == 0;
}

bool may_be_urgent() {
  bool may = false;
  in_thread([&] { may = setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), -20) == 0; });
  return may;
}
// RLIMIT_NICE gives the one, not the other.
bool may_be_realtime() {
  bool may = false;
  in_thread([&] { may = be_realtime(SCHED_RR); });
  return may;
}

void expect_said(Scheduling wanted, const std::string& what) {
  const Result<std::string> said = check_scheduling(wanted);
  ASSERT_TRUE(said) << said.error().message;
  EXPECT_EQ(*said, what);
}

TEST(Scheduling, NormalIsForEverybodyAndKeepsTheNiceness) {
  in_thread([] {
    const int lower = std::min(nice_of_this_thread() + 5, 19);
    ASSERT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), lower), 0);
    const Status done = set_scheduling(Scheduling::kNormal);
    EXPECT_TRUE(done) << done.error().message;
    EXPECT_EQ(nice_of_this_thread(), lower);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  });
}

TEST(Scheduling, UrgentAndRealtimeAreOfTheThreadAlone) {
  if (!may_be_urgent() || !may_be_realtime()) GTEST_SKIP() << "needs root, or CAP_SYS_NICE";
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
  if (!may_be_realtime()) GTEST_SKIP() << "needs root, or CAP_SYS_NICE";
  for (const int policy : {SCHED_RR, SCHED_FIFO}) {
    const std::string name = policy == SCHED_RR ? "SCHED_RR" : "SCHED_FIFO";
    for (const Scheduling wanted :
         {Scheduling::kNormal, Scheduling::kUrgent, Scheduling::kRealtime}) {
      in_thread([&] {
        ASSERT_TRUE(be_realtime(policy));
        EXPECT_TRUE(set_scheduling(wanted));
        sched_param now{};
        EXPECT_EQ(sched_getscheduler(0), policy);
        ASSERT_EQ(sched_getparam(0, &now), 0);
        EXPECT_EQ(now.sched_priority, kPriority);
        expect_said(wanted, name + ", priority 3, as this process was started");
      });
    }
  }
}

TEST(Scheduling, TheCheckSaysWhatWouldBeInForce) {
  expect_said(Scheduling::kNormal, "nice " + std::to_string(nice_of_this_thread()));
  if (!may_be_urgent()) GTEST_SKIP() << "the rest needs root, or CAP_SYS_NICE";
  expect_said(Scheduling::kUrgent, "nice -20");
  if (!may_be_realtime()) GTEST_SKIP() << "the rest needs root, or CAP_SYS_NICE";
  expect_said(Scheduling::kRealtime, "SCHED_RR, priority 1");
}

struct DeadlineAttributes {  // struct sched_attr
  uint32_t size = sizeof(DeadlineAttributes);
  uint32_t policy = SCHED_DEADLINE;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 1'000'000;
  uint64_t deadline_ns = 10'000'000;
  uint64_t period_ns = 10'000'000;
};

// Such a thread starts no others: std::thread throws.
TEST(Scheduling, AThreadThatCanStartNoneIsToldSo) {
  for (const uint64_t reset_on_fork : {0, 1}) {
    in_thread([&] {
      DeadlineAttributes attributes;
      attributes.flags = reset_on_fork;
      if (syscall(SYS_sched_setattr, 0, &attributes, 0) != 0) {
        GTEST_SKIP() << "needs root, and all processors";
      }
      const Result<std::string> said = check_scheduling(Scheduling::kNormal);
      if (reset_on_fork) {
        ASSERT_TRUE(said) << said.error().message;
        EXPECT_EQ(*said, "nice 0");
      } else {
        ASSERT_FALSE(said);
        EXPECT_EQ(said.error().code, Errc::kUnsupported);
        EXPECT_NE(said.error().message.find("SCHED_DEADLINE"), std::string::npos);
        const Result<std::thread> thread = start_thread([] {});
        ASSERT_FALSE(thread);
        EXPECT_EQ(thread.error().sys_errno, EAGAIN);
        EXPECT_NE(thread.error().message.find("ulimit -u"), std::string::npos);
      }
    });
  }
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
