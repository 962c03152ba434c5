// SO_LINGER with a time of 0: close() resets.
#include "tests/shim/socket/api/hang_up_fixture.h"

namespace mercury {
namespace {

void linger_for(int fd, int on, int seconds) {
  const linger asked{.l_onoff = on, .l_linger = seconds};
  EXPECT_EQ(mercury_setsockopt(fd, SOL_SOCKET, SO_LINGER, &asked, sizeof asked), 0);
}

// What reading says until it is over, and then once more.
std::string read_all(int fd) {
  std::string seen;
  for (int over = 0; over < 2;) {
    std::array<char, 64> got{};
    const ssize_t bytes = mercury_recv(fd, got.data(), got.size(), 0);
    seen += bytes < 0 ? std::string(std::strerror(errno)) + ". "
                      : "\"" + std::string(got.data(), static_cast<size_t>(bytes)) + "\". ";
    if (bytes <= 0) ++over;
  }
  return seen;
}

class HangUpAndLinger : public HangUp {
 protected:
  // Whoever closes: the side that connects, or that accepts.
  static void for_both_sides(
      const std::function<std::string(UniqueFd& closes, const UniqueFd& other)>& story) {
    expect_as_kernel([&](BothEnds& ends) { return story(ends.client, ends.server); });
    expect_as_kernel([&](BothEnds& ends) { return story(ends.server, ends.client); });
  }
};

TEST_F(HangUpAndLinger, NoTimeResets) {
  for_both_sides([](UniqueFd& closes, const UniqueFd& other) {
    linger_for(closes.get(), 1, 0);
    EXPECT_EQ(mercury_send(closes.get(), "last", 4, 0), 4);
    wait_for(other.get(), POLLIN);
    closes.reset();
    wait_for(other.get(), POLLRDHUP);
    return read_all(other.get());
  });
}

TEST_F(HangUpAndLinger, AnEndInOrderStaysOne) {
  for (const int how : {SHUT_WR, SHUT_RDWR}) {
    for (const bool set_before : {true, false}) {
      for (const bool read_before : {true, false}) {
        for_both_sides([=](UniqueFd& closes, const UniqueFd& other) {
          if (set_before) linger_for(closes.get(), 1, 0);
          EXPECT_EQ(mercury_shutdown(closes.get(), how), 0);
          wait_for(other.get(), POLLRDHUP);
          if (!set_before) linger_for(closes.get(), 1, 0);
          const std::string seen = read_before ? read_all(other.get()) : "";
          closes.reset();
          wait_for(other.get(), POLLHUP);
          return seen + read_all(other.get());
        });
      }
    }
  }
}

TEST_F(HangUpAndLinger, WhatIsTakenBackEndsInOrder) {
  for_both_sides([](UniqueFd& closes, const UniqueFd& other) {
    linger_for(closes.get(), 1, 0);
    linger_for(closes.get(), 0, 0);
    closes.reset();
    wait_for(other.get(), POLLRDHUP);
    return read_all(other.get());
  });
}

TEST_F(HangUpAndLinger, SomeTimeEndsInOrder) {
  for_both_sides([](UniqueFd& closes, const UniqueFd& other) {
    linger_for(closes.get(), 1, 5);
    closes.reset();
    wait_for(other.get(), POLLRDHUP);
    return read_all(other.get());
  });
}

TEST_F(HangUpAndLinger, AResetIsAnErrorOfTheSocket) {
  for_both_sides([](UniqueFd& closes, const UniqueFd& other) {
    linger_for(closes.get(), 1, 0);
    closes.reset();
    wait_for(other.get(), POLLRDHUP);
    int error = 0;
    socklen_t length = sizeof error;
    EXPECT_EQ(mercury_getsockopt(other.get(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
    pollfd asked{other.get(), POLLIN, 0};
    EXPECT_EQ(mercury_poll_fds(&asked, 1, 0), 1);
    return std::string(std::strerror(error)) + ": " + named(static_cast<uint32_t>(asked.revents)) +
           ". " + read_all(other.get());
  });
}

TEST_F(HangUpAndLinger, WhatWasSetBeforeItConnectsCounts) {
  const auto story = [](bool mercury) {
    use_daemon(daemon_path(), sockets::OnError::kFail, mercury ? "mercury" : "kernel");
    BothEnds ends = both_ends(AF_INET, [](int fd) { linger_for(fd, 1, 0); });
    EXPECT_EQ(is_mercurys(ends.client.get()), mercury);
    ends.client.reset();
    wait_for(ends.server.get(), POLLRDHUP);
    return read_all(ends.server.get());
  };
  EXPECT_EQ(story(true), story(false));
}

}  // namespace
}  // namespace mercury
