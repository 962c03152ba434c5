// A peer that ends, in poll; and in select, which is the kernel's own.
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "tests/shim/socket/api/counted_libc.h"
#include "tests/shim/socket/api/hang_up_fixture.h"
#include "tests/shim/socket/api/waiter.h"

namespace mercury {
namespace {

constexpr std::array<short, 5> kPolled = {0, POLLIN, POLLOUT, POLLIN | POLLOUT, POLLRDHUP};

std::string polled(int fd, short events, int timeout_ms = 0) {
  pollfd asked{fd, events, -1};
  const int got = mercury_poll_fds(&asked, 1, timeout_ms);
  const timespec time{.tv_sec = 0, .tv_nsec = timeout_ms * 1'000'000L};
  pollfd again{fd, events, -1};
  EXPECT_EQ(mercury_ppoll(&again, 1, &time, nullptr), got);
  EXPECT_EQ(asked.revents, again.revents);
  return std::to_string(got) + ": " + named(static_cast<uint32_t>(asked.revents)) + ". ";
}

std::string selected(int fd) {
  std::string seen;
  for (const int which : {0, 1, 2}) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    timeval none{};
    seen +=
        std::to_string(::select(fd + 1, which == 0 ? &set : nullptr, which == 1 ? &set : nullptr,
                                which == 2 ? &set : nullptr, &none));
  }
  return "select " + seen + ". ";
}

TEST_F(HangUp, PollOfAPeerThatCloses) {
  for (const short events : kPolled) {
    for (const bool unread : {false, true}) {
      SCOPED_TRACE(named(static_cast<uint32_t>(events)));
      expect_as_kernel([events, unread](BothEnds& ends) {
        const int fd = ends.server.get();
        if (unread) {
          EXPECT_EQ(mercury_send(fd, "unread", 6, 0), 6);
          wait_for(ends.client.get(), POLLIN);
        }
        ends.client.reset();
        wait_for(fd, unread ? POLLERR : POLLRDHUP);
        std::string seen = selected(fd) + polled(fd, events) + polled(fd, events, 5);
        if (unread) {
          int error = 0;
          socklen_t length = sizeof error;
          EXPECT_EQ(mercury_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
          EXPECT_EQ(error, ECONNRESET);
        } else {
          EXPECT_EQ(mercury_shutdown(fd, SHUT_WR), 0);
          wait_for(fd, POLLHUP);
        }
        return seen + selected(fd) + polled(fd, events);
      });
    }
  }
}

TEST_F(HangUp, PollWaitsForItsTimeAndDoesNotSpin) {
  over_mercury([](BothEnds& ends) {
    ends.client.reset();
    // Few are copied to the stack, many to other memory; and the same may be there twice.
    for (const size_t count : {2, 200}) {
      std::vector<pollfd> asked(count, pollfd{-1, 0, 0});
      asked[0] = asked[1] = {ends.server.get(), 0, 0};
      const uint64_t before = kernel_waits();
      const auto began = std::chrono::steady_clock::now();
      EXPECT_EQ(mercury_poll_fds(asked.data(), asked.size(), 100), 0);
      EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(100));
      EXPECT_LE(kernel_waits() - before, 12U);
      EXPECT_EQ(asked[0].fd, ends.server.get());
      EXPECT_EQ(asked[0].revents | asked[1].revents, 0);
    }
  });
}

TEST_F(HangUp, PollIsWokenByWhatCanBeTold) {
  over_mercury([](BothEnds& ends) {
    const UniqueFd other(::eventfd(0, EFD_CLOEXEC));
    ends.client.reset();
    for (const bool of_other : {true, false}) {
      std::array<pollfd, 2> asked = {{{ends.server.get(), 0, 0}, {other.get(), POLLIN, 0}}};
      {
        const Waiter waiter(
            [&] { EXPECT_EQ(mercury_poll_fds(asked.data(), asked.size(), -1), 1); });
        waiter.until_asleep();
        EXPECT_EQ(of_other ? ::eventfd_write(other.get(), 1)
                           : mercury_shutdown(ends.server.get(), SHUT_WR),
                  0);
      }
      EXPECT_EQ(asked[0].revents, of_other ? 0 : POLLHUP);
      EXPECT_EQ(asked[1].revents, of_other ? POLLIN : 0);
      eventfd_t value = 0;
      if (of_other) {
        EXPECT_EQ(::eventfd_read(other.get(), &value), 0);
      }
    }
  });
}

// One after the other, while poll() waits for all of them.
TEST_F(HangUp, PollOfSeveralThatEnd) {
  over_mercury([](BothEnds& ends) {
    BothEnds others = both_ends(AF_INET);
    std::array<pollfd, 2> asked = {{{ends.server.get(), 0, 0}, {others.server.get(), 0, 0}}};
    ends.client.reset();
    const uint64_t before = kernel_waits();
    {
      const Waiter waiter([&] { EXPECT_EQ(mercury_poll_fds(asked.data(), asked.size(), -1), 1); });
      waiter.until_asleep();
      others.client.reset();
      EXPECT_EQ(mercury_shutdown(others.server.get(), SHUT_WR), 0);
    }
    EXPECT_EQ(asked[0].revents, 0);
    EXPECT_EQ(asked[1].revents, POLLHUP);
    // Each end may wake it, with what is asked of both each time: some tens, as threads meet.
    EXPECT_LE(kernel_waits() - before, 64U);
  });
}

std::vector<int> epolls_open() {
  std::vector<int> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) == "anon_inode:[eventpoll]") {
      all.push_back(std::stoi(entry.path().filename()));
    }
  }
  return all;
}

// The descriptor that poll() has made for itself becomes `copied`, or is closed: as who closes all
// descriptors that it does not know. By the system call: that another thread uses it is what this
// is about, not a mistake to tell.
int take_its_own(int copied = -1) {
  const std::vector<int> open = epolls_open();
  EXPECT_EQ(open.size(), copied < 0 ? 1U : 2U);
  const int own = open.back() == copied ? open.front() : open.back();
  EXPECT_GE(copied < 0 ? ::syscall(SYS_close, own) : ::syscall(SYS_dup2, copied, own), 0);
  return own;
}

TEST_F(HangUp, PollWhoseOwnDescriptorIsClosedGoesOn) {
  over_mercury([](BothEnds& ends) {
    BothEnds others = both_ends(AF_INET);
    std::array<pollfd, 2> asked = {{{ends.server.get(), 0, 0}, {others.server.get(), 0, 0}}};
    ends.client.reset();
    {
      const Waiter waiter([&] { EXPECT_EQ(mercury_poll_fds(asked.data(), asked.size(), -1), 1); });
      waiter.until_asleep();
      take_its_own();
      const uint64_t before = kernel_waits();
      others.client.reset();
      EXPECT_TRUE(waiter.until_asleep_again(before));
      EXPECT_EQ(mercury_shutdown(others.server.get(), SHUT_WR), 0);
    }
    EXPECT_EQ(asked[0].revents, 0);
    EXPECT_EQ(asked[1].revents, POLLHUP);
    EXPECT_EQ(epolls_open().size(), 0U);
  });
}

// The connection's number is another's by then, too: so nothing is left that has ended.
TEST_F(HangUp, PollWhoseOwnDescriptorIsClosedDoesNotSpin) {
  over_mercury([](BothEnds& ends) {
    const UniqueFd other(::eventfd(0, EFD_CLOEXEC)), quiet(::eventfd(0, EFD_CLOEXEC));
    const UniqueFd copy(::dup(ends.server.get()));
    std::array<pollfd, 2> asked = {{{ends.server.get(), 0, 0}, {other.get(), POLLIN, 0}}};
    ends.client.reset();
    {
      const Waiter waiter([&] { EXPECT_EQ(mercury_poll_fds(asked.data(), asked.size(), -1), 1); });
      waiter.until_asleep();
      take_its_own();
      EXPECT_EQ(::syscall(SYS_dup2, quiet.get(), ends.server.get()), ends.server.get());
      const uint64_t before = kernel_waits();
      EXPECT_EQ(mercury_shutdown(copy.get(), SHUT_WR), 0);  // wakes it, and it finds nothing
      EXPECT_TRUE(waiter.until_asleep_again(before));
      EXPECT_EQ(::eventfd_write(other.get(), 1), 0);
    }
    EXPECT_EQ(asked[0].revents, 0);
    EXPECT_EQ(asked[1].revents, POLLIN);
  });
}

TEST_F(HangUp, PollLeavesAloneWhoGetsItsOwnDescriptorsNumber) {
  over_mercury([](BothEnds& ends) {
    const UniqueFd ready(::eventfd(1, EFD_CLOEXEC));
    const UniqueFd programs = epoll_with(ready.get(), EPOLLIN | EPOLLONESHOT);
    pollfd asked{ends.server.get(), 0, 0};
    int number = -1;
    ends.client.reset();
    {
      const Waiter waiter([&] { EXPECT_EQ(mercury_poll_fds(&asked, 1, -1), 1); });
      waiter.until_asleep();
      number = take_its_own(programs.get());
      EXPECT_EQ(mercury_shutdown(ends.server.get(), SHUT_WR), 0);
    }
    EXPECT_EQ(asked.revents, POLLHUP);
    EXPECT_EQ(said(programs.get()), "[7: IN] ");
    EXPECT_EQ(::close(number), 0) << "it is the program's";
  });
}

TEST_F(HangUp, PollWithoutDescriptorsSaysWhatThePairDoes) {
  over_mercury([](BothEnds& ends) {
    ends.client.reset();
    rlimit before{};
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    pollfd asked{ends.server.get(), 0, 0};
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(ends.server.get() + 1);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<UniqueFd> all;
    for (int fd = 0; (fd = ::dup(ends.server.get())) >= 0;) all.emplace_back(fd);
    EXPECT_EQ(mercury_poll_fds(&asked, 1, -1), 1);
    EXPECT_EQ(asked.revents, POLLHUP);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  });
}

}  // namespace
}  // namespace mercury
