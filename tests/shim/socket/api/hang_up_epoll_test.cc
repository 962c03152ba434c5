// A peer that ends, in epoll.
#include <fcntl.h>
#include <signal.h>

#include "tests/shim/socket/api/hang_up_fixture.h"

namespace mercury {
namespace {

constexpr std::array<uint32_t, 6> kAsked = {
    0, EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLRDHUP, EPOLLIN | EPOLLRDHUP};

// All that can be registered, and who begins.
void for_each_way(const std::function<void(uint32_t events)>& test) {
  for (const uint32_t how : kHow) {
    for (const uint32_t asked : kAsked) {
      SCOPED_TRACE(named(asked) + ((how & EPOLLET) != 0 ? ", edges" : "") +
                   ((how & EPOLLONESHOT) != 0 ? ", once" : ""));
      test(how | asked);
    }
  }
}

TEST_F(HangUp, APeerThatCloses) {
  for_each_way([](uint32_t events) {
    expect_as_kernel([events](BothEnds& ends) {
      const int fd = ends.server.get();
      const UniqueFd epoll = epoll_with(fd, events);
      EXPECT_EQ(mercury_send(ends.client.get(), "last", 4, 0), 4);
      ends.client.reset();
      wait_for(fd, POLLRDHUP);
      std::string seen = said_thrice(epoll.get());
      control(epoll.get(), EPOLL_CTL_MOD, fd, events | EPOLLIN, 8);
      seen += said_thrice(epoll.get());
      control(epoll.get(), EPOLL_CTL_MOD, fd, events, 9);
      seen += said_thrice(epoll.get());
      std::array<char, 8> got{};
      EXPECT_EQ(mercury_read(fd, got.data(), got.size()), 4);
      EXPECT_EQ(mercury_read(fd, got.data(), got.size()), 0);
      seen += said_thrice(epoll.get());
      EXPECT_EQ(mercury_shutdown(fd, SHUT_WR), 0);
      wait_for(fd, POLLHUP);
      seen += said_thrice(epoll.get());
      control(epoll.get(), EPOLL_CTL_MOD, fd, events, 10);
      return seen + said_thrice(epoll.get());
    });
  });
}

TEST_F(HangUp, APeerThatHasEndsOfItsOwn) {
  for_each_way([](uint32_t events) {
    for (const int how : {SHUT_WR, SHUT_RDWR}) {
      expect_as_kernel([events, how](BothEnds& ends) {
        const UniqueFd epoll = epoll_with(ends.server.get(), events);
        EXPECT_EQ(mercury_shutdown(ends.client.get(), how), 0);
        wait_for(ends.server.get(), POLLRDHUP);
        std::string seen = said_thrice(epoll.get());
        ends.client.reset();
        return seen;
      });
    }
  });
}

TEST_F(HangUp, ThisSideHasEndedBefore) {
  for_each_way([](uint32_t events) {
    for (const int how : {SHUT_WR, SHUT_RDWR}) {
      expect_as_kernel([events, how](BothEnds& ends) {
        const UniqueFd epoll = epoll_with(ends.server.get(), events);
        EXPECT_EQ(mercury_shutdown(ends.server.get(), how), 0);
        wait_for(ends.client.get(), POLLRDHUP);
        ends.client.reset();
        wait_for(ends.server.get(), POLLHUP);
        return said_thrice(epoll.get());
      });
    }
  });
}

TEST_F(HangUp, APeerThatHasNotReadAllResets) {
  for_each_way([](uint32_t events) {
    expect_as_kernel([events](BothEnds& ends) {
      const int fd = ends.server.get();
      const UniqueFd epoll = epoll_with(fd, events);
      EXPECT_EQ(mercury_send(fd, "unread", 6, 0), 6);
      wait_for(ends.client.get(), POLLIN);
      ends.client.reset();
      wait_for(fd, POLLERR);
      std::string seen = said_thrice(epoll.get());
      char byte = 0;
      EXPECT_EQ(mercury_recv(fd, &byte, 1, 0), -1);
      EXPECT_EQ(errno, ECONNRESET);
      control(epoll.get(), EPOLL_CTL_MOD, fd, events, 8);
      return seen + said_thrice(epoll.get());  // the error has been told; both ends are gone
    });
  });
}

// Of what a program does with its socket, what is between the two is told of neither.
TEST_F(HangUp, ACopyOfTheDescriptor) {
  expect_as_kernel([](BothEnds& ends) {
    const UniqueFd copy(::dup(ends.server.get()));
    ends.server.reset();
    const UniqueFd epoll = epoll_with(copy.get(), 0);
    ends.client.reset();
    wait_for(copy.get(), POLLRDHUP);
    std::string seen = said_thrice(epoll.get());
    EXPECT_EQ(mercury_shutdown(copy.get(), SHUT_WR), 0);
    wait_for(copy.get(), POLLHUP);
    return seen + said_thrice(epoll.get());
  });
}

TEST_F(HangUp, WhatIsRegisteredBeforeItConnects) {
  for_each_way([](uint32_t events) {
    const auto story = [events](bool mercury) {
      use_daemon(daemon_path(), sockets::OnError::kFail, mercury ? "mercury" : "kernel");
      const UniqueFd listener = listener_at(loopback(AF_INET), AF_INET);
      const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
      const UniqueFd epoll(mercury_epoll_create1(EPOLL_CLOEXEC));
      control(epoll.get(), EPOLL_CTL_ADD, client.get(), 0, 1);
      EXPECT_EQ(connect_to(client.get(), name_of(listener.get()), AF_INET), 0);
      EXPECT_EQ(is_mercurys(client.get()), mercury);
      UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
      control(epoll.get(), EPOLL_CTL_MOD, client.get(), events, 7);
      server.reset();
      wait_for(client.get(), POLLRDHUP);
      return said_thrice(epoll.get());
    };
    EXPECT_EQ(story(true), story(false));
  });
}

TEST_F(HangUp, AnEpollWithinAnother) {
  expect_as_kernel([](BothEnds& ends) {
    const UniqueFd inner = epoll_with(ends.server.get(), EPOLLRDHUP, 1);
    const UniqueFd outer = epoll_with(inner.get(), EPOLLIN, 2);
    ends.client.reset();
    wait_for(ends.server.get(), POLLRDHUP);
    std::string seen = said(outer.get());
    seen += said(inner.get());
    // From now on nothing is asked that the peer's end would answer.
    control(inner.get(), EPOLL_CTL_MOD, ends.server.get(), 0, 3);
    (void)said(outer.get());  // a pair's may be said once more, for nothing
    seen += said(inner.get());
    seen += said_thrice(outer.get());
    EXPECT_EQ(mercury_shutdown(ends.server.get(), SHUT_WR), 0);
    wait_for(ends.server.get(), POLLHUP);
    seen += said(outer.get());
    return seen + said_thrice(inner.get());
  });
}

TEST_F(HangUp, SeveralOfTheSameData) {
  expect_as_kernel([](BothEnds& ends) {
    BothEnds others = both_ends(AF_INET);
    const UniqueFd epoll = epoll_with(ends.server.get(), 0);
    control(epoll.get(), EPOLL_CTL_ADD, others.server.get(), 0, 7);
    ends.client.reset();
    wait_for(ends.server.get(), POLLRDHUP);
    std::string seen = said_thrice(epoll.get());
    others.client.reset();
    wait_for(others.server.get(), POLLRDHUP);
    seen += said_thrice(epoll.get());
    EXPECT_EQ(mercury_shutdown(others.server.get(), SHUT_WR), 0);
    wait_for(others.server.get(), POLLHUP);
    seen += said(epoll.get()) + said(epoll.get());
    ends.server.reset();
    return seen + said_thrice(epoll.get());
  });
}

// What hangs up is a pipe, of the number and the data that a connection had.
TEST_F(HangUp, NumbersThatAreUsedAgain) {
  expect_as_kernel([](BothEnds& ends) {
    const int fd = ends.server.get();
    UniqueFd epoll = epoll_with(fd, 0);
    const int number = epoll.get();
    ends.client.reset();
    wait_for(fd, POLLRDHUP);
    std::string seen = said(epoll.get());
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    UniqueFd reader(pipe[0]), writer(pipe[1]);
    epoll.reset();
    epoll = UniqueFd(mercury_epoll_create(1));
    EXPECT_EQ(epoll.get(), number);
    control(epoll.get(), EPOLL_CTL_ADD, reader.get(), 0, 7);
    writer.reset();
    seen += said_thrice(epoll.get());  // the connection is there still
    control(epoll.get(), EPOLL_CTL_ADD, fd, 0, 7);
    EXPECT_EQ(::dup3(reader.get(), fd, O_CLOEXEC), fd);
    return seen + said_thrice(epoll.get());
  });
}

void ends_with_a_process(BothEnds& ends, bool killed) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ends.server.reset();
    if (killed) ::pause();
    ::_exit(0);
  }
  ends.client.reset();
  if (killed) {
    ASSERT_EQ(::kill(child, SIGKILL), 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

TEST_F(HangUp, AProcessThatEndsOrIsKilled) {
  for (const bool killed : {false, true}) {
    for (const uint32_t events : kAsked) {
      expect_as_kernel([killed, events](BothEnds& ends) {
        const UniqueFd epoll = epoll_with(ends.server.get(), events);
        ends_with_a_process(ends, killed);
        wait_for(ends.server.get(), POLLRDHUP);
        return said_thrice(epoll.get());
      });
    }
  }
}

}  // namespace
}  // namespace mercury
