// What a program sees of a peer that ends: the same story over the kernel's TCP and over Mercury.
#pragma once

#include <linux/tcp.h>
#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "tests/shim/socket/api/socket_fixture.h"

namespace mercury {

inline constexpr std::array<uint32_t, 4> kHow = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};

inline std::string named(uint32_t events) {
  constexpr std::array<std::pair<uint32_t, const char*>, 6> kNames = {{{EPOLLIN, "IN "},
                                                                       {EPOLLPRI, "PRI "},
                                                                       {EPOLLOUT, "OUT "},
                                                                       {EPOLLERR, "ERR "},
                                                                       {EPOLLHUP, "HUP "},
                                                                       {EPOLLRDHUP, "RDHUP "}}};
  std::string names;
  for (const auto& [bit, name] : kNames) names += (events & bit) != 0 ? name : "";
  return names.empty() ? "nothing" : names.substr(0, names.size() - 1);
}

inline void control(int epoll, int operation, int fd, uint32_t events, uint64_t data) {
  epoll_event event{.events = events, .data = {.u64 = data}};
  ASSERT_EQ(mercury_epoll_ctl(epoll, operation, fd, &event), 0) << std::strerror(errno);
}

inline UniqueFd epoll_with(int fd, uint32_t events, uint64_t data = 7) {
  UniqueFd epoll(mercury_epoll_create1(EPOLL_CLOEXEC));
  control(epoll.get(), EPOLL_CTL_ADD, fd, events, data);
  return epoll;
}

// What epoll says now, in brackets.
inline std::string said(int epoll) {
  std::array<epoll_event, 4> events{};
  const int got = mercury_epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 0);
  EXPECT_GE(got, 0) << std::strerror(errno);
  std::string all;
  for (int i = 0; i < got; ++i) {
    const epoll_event& event = events.at(static_cast<size_t>(i));
    all += (i > 0 ? ", " : "") + std::to_string(event.data.u64) + ": " + named(event.events);
  }
  return "[" + all + "] ";
}

inline std::string said_thrice(int epoll) {
  std::string all = said(epoll);
  all += said(epoll);
  return all + said(epoll);
}

// The kernel knows of the peer's end, or of both sides'.
inline void wait_for(int fd, short event) {
  pollfd asked{fd, event == POLLHUP ? short{0} : event, 0};
  while (::poll(&asked, 1, -1) != 1 || (asked.revents & event) == 0) {
  }
}

class HangUp : public ::testing::Test {
 protected:
  using Story = std::function<std::string(BothEnds&)>;

  HangUp() : daemon_(daemon_path()) {}

  static std::string over(bool mercury, const Story& story) {
    use_daemon(daemon_path(), sockets::OnError::kFail, mercury ? "mercury" : "kernel");
    BothEnds ends = both_ends(AF_INET);
    EXPECT_EQ(is_mercurys(ends.server.get()), mercury);
    // Once the daemon answers again it has let go of the ends that it sent.
    tcp_info info;
    socklen_t length = sizeof info;
    EXPECT_EQ(mercury_getsockopt(ends.server.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return story(ends);
  }
  static void over_mercury(const std::function<void(BothEnds&)>& test) {
    over(true, [&test](BothEnds& ends) {
      test(ends);
      return "";
    });
  }
  static void expect_as_kernel(const Story& story) {
    EXPECT_EQ(over(true, story), over(false, story));
  }

 private:
  FakeDaemon daemon_;
};

}  // namespace mercury
