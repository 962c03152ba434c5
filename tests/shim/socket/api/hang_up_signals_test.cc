// Signals that come while a peer's end is kept from a wait.
#include <signal.h>

#include <array>
#include <vector>

#include "tests/shim/socket/api/counted_libc.h"
#include "tests/shim/socket/api/hang_up_fixture.h"

// The handlers here leave another errno on purpose, as some programs' do; thread sanitizer reports
// that.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "signal:hang_up_signals_test.cc"; }

namespace mercury {
namespace {

volatile sig_atomic_t handled = 0;

sigset_t only(int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  return set;
}

class HangUpAndSignal : public HangUp {
 protected:
  static constexpr int kForEver = -1;
  static constexpr int kShort = 30;

  struct Wait {
    const char* name;
    // By a mask; null: the thread's own. What it returned.
    std::function<int(int epoll, int fd, int timeout_ms, const sigset_t* mask)> by;
    bool takes_mask;
  };

  HangUpAndSignal() {
    struct sigaction action {};
    action.sa_handler = [](int) {
      handled = handled + 1;
      errno = EDOM;
    };
    ::sigaction(SIGUSR1, &action, &before_);
    handled = 0;
  }
  ~HangUpAndSignal() override { ::sigaction(SIGUSR1, &before_, nullptr); }

  // All calls that keep an end to themselves.
  static std::vector<Wait> waits() {
    static epoll_event event;
    static pollfd asked;
    const auto time_of = [](int ms) {
      return timespec{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000L};
    };
    return {{"epoll_wait",
             [](int epoll, int, int ms, const sigset_t*) {
               return mercury_epoll_wait(epoll, &event, 1, ms);
             },
             false},
            {"epoll_pwait",
             [](int epoll, int, int ms, const sigset_t* mask) {
               return mercury_epoll_pwait(epoll, &event, 1, ms, mask);
             },
             true},
            {"epoll_pwait2",
             [time_of](int epoll, int, int ms, const sigset_t* mask) {
               const timespec time = time_of(ms);
               return mercury_epoll_pwait2(epoll, &event, 1, ms < 0 ? nullptr : &time, mask);
             },
             true},
            {"poll",
             [](int, int fd, int ms, const sigset_t*) {
               asked = {fd, 0, 0};
               return mercury_poll_fds(&asked, 1, ms);
             },
             false},
            {"ppoll",
             [time_of](int, int fd, int ms, const sigset_t* mask) {
               asked = {fd, 0, 0};
               const timespec time = time_of(ms);
               return mercury_ppoll(&asked, 1, ms < 0 ? nullptr : &time, mask);
             },
             true}};
  }

  // Each call waits for a peer that has ended, and the signal comes as that is kept from it.
  static void for_each_wait(const std::function<void(const Wait&, int epoll, int fd)>& test) {
    for (const Wait& wait : waits()) {
      SCOPED_TRACE(wait.name);
      over_mercury([&](BothEnds& ends) {
        const int fd = ends.server.get();
        const UniqueFd epoll = epoll_with(fd, 0);
        ends.client.reset();
        wait_for(fd, POLLRDHUP);
        handled = 0;
        when_registered([] { ::raise(SIGUSR1); });
        test(wait, epoll.get(), fd);
        when_registered(nullptr);
      });
    }
  }

 private:
  struct sigaction before_ {};
};

TEST_F(HangUpAndSignal, ItEndsTheWait) {
  for_each_wait([](const Wait& wait, int epoll, int fd) {
    constexpr int kLong = 20'000;  // so that a failure ends
    EXPECT_EQ(wait.by(epoll, fd, kLong, nullptr), -1);
    EXPECT_EQ(errno, EINTR);
    EXPECT_EQ(handled, 1);
  });
}

TEST_F(HangUpAndSignal, ItEndsAWaitWhoseMaskLetsItThrough) {
  for_each_wait([](const Wait& wait, int epoll, int fd) {
    if (!wait.takes_mask) return;
    const sigset_t blocked = only(SIGUSR1);
    sigset_t before;
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
    EXPECT_EQ(wait.by(epoll, fd, kForEver, &before), -1);
    EXPECT_EQ(errno, EINTR);
    EXPECT_EQ(handled, 1);
    sigset_t now;
    ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, &now), 0);
    EXPECT_EQ(::sigismember(&now, SIGUSR1), 1) << "the mask is as it was";
    EXPECT_EQ(::sigismember(&now, SIGUSR2), 0);
  });
}

TEST_F(HangUpAndSignal, AWaitGoesOnWhereItIsBlocked) {
  for_each_wait([](const Wait& wait, int epoll, int fd) {
    const sigset_t blocked = only(SIGUSR1);
    sigset_t before;
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
    EXPECT_EQ(wait.by(epoll, fd, kShort, nullptr), 0);
    EXPECT_EQ(handled, 0);
    ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
    EXPECT_EQ(handled, 1);
  });
}

// By the mask of the call alone: it comes once the call has returned.
TEST_F(HangUpAndSignal, AWaitGoesOnWhoseMaskBlocksIt) {
  for_each_wait([](const Wait& wait, int epoll, int fd) {
    if (!wait.takes_mask) return;
    const sigset_t blocked = only(SIGUSR1);
    EXPECT_EQ(wait.by(epoll, fd, kShort, &blocked), 0);
    EXPECT_EQ(handled, 1);
  });
}

TEST_F(HangUpAndSignal, WhatCanBeToldIsToldAndTheSignalHandled) {
  for_each_wait([](const Wait& wait, int epoll, int fd) {
    when_registered([fd] {
      ::raise(SIGUSR1);
      EXPECT_EQ(mercury_shutdown(fd, SHUT_WR), 0);
    });
    const int got = wait.by(epoll, fd, kForEver, nullptr);
    EXPECT_EQ(got, 1);
    EXPECT_EQ(handled, 1);
  });
}

}  // namespace
}  // namespace mercury
