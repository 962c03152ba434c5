// Waits in epoll while a peer's end is all that there is, and what threads do meanwhile.
#include <fcntl.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include "tests/shim/socket/api/counted_libc.h"
#include "tests/shim/socket/api/hang_up_fixture.h"
#include "tests/shim/socket/api/waiter.h"

namespace mercury {
namespace {

// Where nothing can be told, nothing is done: the kernel wakes nobody again and again.
TEST_F(HangUp, WaitsForItsTimeAndDoesNotSpin) {
  over_mercury([](BothEnds& ends) {
    const int fd = ends.server.get();
    const UniqueFd epoll = epoll_with(fd, 0);
    ends.client.reset();
    wait_for(fd, POLLRDHUP);
    epoll_event event{};
    const timespec time{.tv_sec = 0, .tv_nsec = 50'000'000};
    for (const uint32_t how : kHow) {
      control(epoll.get(), EPOLL_CTL_MOD, fd, how, 7);
      const uint64_t before = kernel_waits();
      const auto began = std::chrono::steady_clock::now();
      EXPECT_EQ(mercury_epoll_wait(epoll.get(), &event, 1, 50), 0);
      EXPECT_EQ(mercury_epoll_pwait(epoll.get(), &event, 1, 50, nullptr), 0);
      EXPECT_EQ(mercury_epoll_pwait2(epoll.get(), &event, 1, &time, nullptr), 0);
      EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(150));
      // Each once; and at first as it is said, as it is quietened, and a look at who it is.
      EXPECT_LE(kernel_waits() - before, 7U);
    }
  });
}

TEST_F(HangUp, AWaitIsWokenByWhatCanBeTold) {
  over_mercury([](BothEnds& ends) {
    const int fd = ends.server.get();
    const UniqueFd other(::eventfd(0, EFD_CLOEXEC));
    for (const bool of_other : {true, false}) {
      const UniqueFd epoll = epoll_with(fd, 0);
      control(epoll.get(), EPOLL_CTL_ADD, other.get(), EPOLLIN, 8);
      ends.client.reset();
      wait_for(fd, POLLRDHUP);
      epoll_event event{};
      {
        const Waiter waiter([&] { EXPECT_EQ(mercury_epoll_wait(epoll.get(), &event, 1, -1), 1); });
        waiter.until_asleep();
        EXPECT_EQ(of_other ? ::eventfd_write(other.get(), 1) : mercury_shutdown(fd, SHUT_WR), 0);
      }
      EXPECT_EQ(event.data.u64, of_other ? 8U : 7U);
      EXPECT_EQ(named(event.events), of_other ? "IN" : "HUP");
      eventfd_t value = 0;
      if (of_other) {
        EXPECT_EQ(::eventfd_read(other.get(), &value), 0);
      }
    }
  });
}

// What one thread asks for while another quietens it is what counts.
TEST_F(HangUp, ThreadsChangeWhatIsAskedFor) {
  over_mercury([](BothEnds& ends) {
    const int fd = ends.server.get();
    const UniqueFd epoll = epoll_with(fd, 0);
    const UniqueFd go_on(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
    ends.client.reset();
    wait_for(fd, POLLRDHUP);
    constexpr int kTurns = 2000;
    std::thread changer([&] {
      for (int i = 0; i < kTurns; ++i) {
        control(epoll.get(), EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT, 7);
        control(epoll.get(), EPOLL_CTL_MOD, fd, 0, 7);
        control(epoll.get(), EPOLL_CTL_MOD, fd, EPOLLPRI | EPOLLONESHOT, 7);
        control(epoll.get(), EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 7);
        eventfd_t value = 0;
        ASSERT_EQ(::eventfd_read(go_on.get(), &value), 0);
      }
    });
    int turns = 0;
    while (turns < kTurns) {
      epoll_event event{};
      const int got = mercury_epoll_wait(epoll.get(), &event, 1, 60'000);
      EXPECT_EQ(got, 1) << "in turn " << turns;
      const std::string seen = named(event.events);
      EXPECT_TRUE(seen == "IN" || seen == "OUT") << seen;
      if (seen != "IN" && got == 1) continue;
      ++turns;
      EXPECT_EQ(::eventfd_write(go_on.get(), 1), 0);
    }
    changer.join();
  });
}

// The kernel says level-triggered what the library has made quiet: by a copy of the epoll's number,
// or by another process that has it, of which the library here knows nothing.
void ask_again_behind_its_back(int epoll, int fd, bool by_fork) {
  epoll_event event{.events = 0, .data = {.u64 = 7}};
  if (by_fork) {
    in_child([&] { EXPECT_EQ(::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event), 0); });
  } else {
    const UniqueFd copy(::dup(epoll));
    EXPECT_EQ(::epoll_ctl(copy.get(), EPOLL_CTL_MOD, fd, &event), 0);
  }
}

TEST_F(HangUp, EndsWhereAnotherAsksAgain) {
  for (const uint32_t how : kHow) {
    for (const bool by_fork : {false, true}) {
      over_mercury([how, by_fork](BothEnds& ends) {
        const int fd = ends.server.get();
        const UniqueFd epoll = epoll_with(fd, how);
        ends.client.reset();
        wait_for(fd, POLLRDHUP);
        EXPECT_EQ(said_thrice(epoll.get()), "[] [] [] ");
        ask_again_behind_its_back(epoll.get(), fd, by_fork);
        EXPECT_EQ(said(epoll.get()), "[] ");  // there was room for more, and there is no time
        const UniqueFd other(::eventfd(1, EFD_CLOEXEC));
        control(epoll.get(), EPOLL_CTL_ADD, other.get(), EPOLLIN, 8);
        EXPECT_EQ(said(epoll.get()), "[8: IN] ");
        control(epoll.get(), EPOLL_CTL_DEL, other.get(), 0, 8);
        epoll_event event{};
        EXPECT_EQ(mercury_epoll_wait(epoll.get(), &event, 1, -1), 1);
        EXPECT_EQ(named(event.events), "HUP");
        // What the program asks for itself is as before.
        control(epoll.get(), EPOLL_CTL_MOD, fd, how, 7);
        EXPECT_EQ(said_thrice(epoll.get()), "[] [] [] ");
      });
    }
  }
}

// As long as one wait does not hear of it again and again, nobody has changed what was made quiet.
TEST_F(HangUp, IsNotToldHoweverOftenItIsNew) {
  for (const uint32_t how : {0U, uint32_t{EPOLLET}}) {
    over_mercury([how](BothEnds& ends) {
      const int fd = ends.server.get();
      const UniqueFd epoll = epoll_with(fd, how);
      ends.client.reset();
      wait_for(fd, POLLRDHUP);
      EXPECT_EQ(said_thrice(epoll.get()), "[] [] [] ");
      for (int i = 0; i < 3000; ++i) {
        epoll_event anew{.events = EPOLLET, .data = {.u64 = 7}};
        ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &anew), 0);
        ASSERT_EQ(said(epoll.get()), "[] ") << "time " << i;
      }
    });
  }
}

// Another thread takes the error, and before the library knows of it a wait sees only the end.
TEST_F(HangUp, IsToldWhereAnotherThreadTakesTheError) {
  for (const bool by_poll : {false, true}) {
    for (const bool by_option : {false, true}) {
      over_mercury([by_poll, by_option](BothEnds& ends) {
        const int fd = ends.server.get();
        const UniqueFd epoll = epoll_with(fd, 0);
        EXPECT_EQ(mercury_send(fd, "unread", 6, 0), 6);
        wait_for(ends.client.get(), POLLIN);
        ends.client.reset();
        wait_for(fd, POLLERR);
        epoll_event event{};
        pollfd asked{fd, 0, 0};
        std::unique_ptr<Waiter> waiter;
        when_an_error_is_taken([&] {
          waiter = std::make_unique<Waiter>([&] {
            EXPECT_EQ(by_poll ? mercury_poll_fds(&asked, 1, 20'000)
                              : mercury_epoll_wait(epoll.get(), &event, 1, 20'000),
                      1);
          });
          waiter->until_asleep();
        });
        int error = 0;
        socklen_t length = sizeof error;
        if (by_option) {
          EXPECT_EQ(mercury_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
          EXPECT_EQ(error, ECONNRESET);
        } else {
          EXPECT_EQ(mercury_recv(fd, &error, sizeof error, 0), -1);
          EXPECT_EQ(errno, ECONNRESET);
        }
        ASSERT_NE(waiter, nullptr);
        waiter.reset();
        EXPECT_EQ(by_poll ? static_cast<uint32_t>(asked.revents) : event.events, EPOLLHUP);
      });
    }
  }
}

struct Write {
  const char* name;
  ssize_t (*two_bytes)(int fd);
};
constexpr std::array<Write, 4> kWrites = {
    {{"send", [](int fd) { return mercury_send(fd, "on", 2, MSG_NOSIGNAL); }},
     {"write", [](int fd) { return mercury_write(fd, "on", 2); }},
     {"writev",
      [](int fd) {
        std::array<char, 2> bytes{'o', 'n'};
        std::array<iovec, 2> parts{{{bytes.data(), 1}, {bytes.data() + 1, 1}}};
        return mercury_writev(fd, parts.data(), 2);
      }},
     {"sendfile", [](int fd) {
        const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
        return mercury_sendfile(fd, file.get(), nullptr, 2);
      }}}};

// A write after the peer's end fails, by TCP only the second.
TEST_F(HangUp, IsToldAfterAWriteThatFails) {
  const auto old = std::signal(SIGPIPE, SIG_IGN);
  for (const Write& write : kWrites) {
    SCOPED_TRACE(write.name);
    expect_as_kernel([&write](BothEnds& ends) {
      const int fd = ends.server.get();
      const UniqueFd epoll = epoll_with(fd, 0);
      ends.client.reset();
      wait_for(fd, POLLRDHUP);
      std::string seen = said(epoll.get());
      while (write.two_bytes(fd) == 2) {
      }
      EXPECT_EQ(errno, EPIPE);
      wait_for(fd, POLLHUP);
      seen += said(epoll.get());
      pollfd asked{fd, 0, 0};
      EXPECT_EQ(mercury_poll_fds(&asked, 1, 0), 1);
      return seen + named(static_cast<uint32_t>(asked.revents));
    });
  }
  std::signal(SIGPIPE, old);
}

// Another thread closes what this one reads, and opens a connection that gets its number.
TEST_F(HangUp, AnotherConnectionOfTheSameNumberIsLeftAlone) {
  for (const bool in_order : {true, false}) {
    over_mercury([in_order](BothEnds& ends) {
      const int fd = ends.server.get();
      BothEnds others = both_ends(AF_INET);
      if (!in_order) {
        EXPECT_EQ(mercury_send(fd, "unread", 6, 0), 6);
        wait_for(ends.client.get(), POLLIN);
      }
      ends.client.reset();
      wait_for(fd, in_order ? POLLRDHUP : POLLERR);
      when_an_error_is_taken([&] { EXPECT_EQ(::dup2(others.server.get(), fd), fd); });
      std::array<char, 4> got{};
      EXPECT_EQ(mercury_recv(fd, got.data(), got.size(), 0), in_order ? 0 : -1);
      const auto other = sockets::process().find(fd);
      ASSERT_TRUE(other);
      EXPECT_FALSE(other->ended);
      EXPECT_FALSE(other->finished);
      EXPECT_EQ(mercury_send(fd, "on", 2, MSG_NOSIGNAL), 2);
      EXPECT_EQ(mercury_recv(others.client.get(), got.data(), got.size(), 0), 2);
    });
  }
}

// Between the look at a connection and its being made quiet another thread closes it, and asks for
// something else that gets its number.
TEST_F(HangUp, AnotherDescriptorOfTheSameNumberIsAskedForAsItWas) {
  over_mercury([](BothEnds& ends) {
    const int fd = ends.server.get();
    const UniqueFd epoll = epoll_with(fd, 0);
    const UniqueFd other(::eventfd(1, EFD_CLOEXEC));
    ends.client.reset();
    wait_for(fd, POLLRDHUP);
    std::atomic<bool> done{false};
    std::unique_ptr<Waiter> thread;
    before_registered([&] {
      thread = std::make_unique<Waiter>([&] {
        EXPECT_EQ(::dup2(other.get(), fd), fd);
        control(epoll.get(), EPOLL_CTL_ADD, fd, EPOLLIN, 8);
        done = true;
      });
      thread->until_asleep_or(done);
    });
    said(epoll.get());  // of the connection or of nothing: its end was on its way
    ASSERT_NE(thread, nullptr);
    thread.reset();
    EXPECT_EQ(said_thrice(epoll.get()), "[8: IN] [8: IN] [8: IN] ");
  });
}

// As many as were woken before it was quiet, and each is as by TCP.
TEST_F(HangUp, ManyThreadsThatWaitForTheSame) {
  over_mercury([](BothEnds& ends) {
    const UniqueFd epoll = epoll_with(ends.server.get(), 0);
    std::vector<std::unique_ptr<Waiter>> waiters;
    for (int i = 0; i < 64; ++i) {
      waiters.push_back(std::make_unique<Waiter>([&epoll] {
        epoll_event event{};
        EXPECT_EQ(mercury_epoll_wait(epoll.get(), &event, 1, 50), 0) << named(event.events);
      }));
      waiters.back()->until_asleep();
    }
    ends.client.reset();
  });
}

TEST_F(HangUp, ThousandsOfConnectionsLeaveNothingBehind) {
  over_mercury([](BothEnds&) {
    const UniqueFd epoll(mercury_epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < 2000; ++i) {
      BothEnds ends = both_ends(AF_INET);
      control(epoll.get(), EPOLL_CTL_ADD, ends.server.get(), 0, static_cast<uint64_t>(i));
      ends.client.reset();
      wait_for(ends.server.get(), POLLRDHUP);
      EXPECT_EQ(said(epoll.get()), "[] ");
    }
    EXPECT_LE(sockets::process().registrations.size(), 200U);
  });
}

}  // namespace
}  // namespace mercury
