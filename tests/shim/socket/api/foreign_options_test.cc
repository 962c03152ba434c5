// Options that came to a socket behind the library: set by another process, by io_uring, by a raw
// call; or with a socket that has taken the number of one that is known.
#include <fcntl.h>
#include <linux/tcp.h>

#include <chrono>
#include <thread>

#include "tests/shim/socket/api/socket_fixture.h"

namespace mercury {
namespace {

int value_in_kernel(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(mercury_getsockopt(fd, level, name, &value, &length), 0) << std::strerror(errno);
  return value;
}

void set_raw(int fd, int level, int name, int value) {
  ASSERT_EQ(::setsockopt(fd, level, name, &value, sizeof value), 0) << std::strerror(errno);
}

// Of another process's making: made by the kernel alone, bound, at `number`.
UniqueFd foreign_at(int family, int number) {
  const UniqueFd fd(::socket(family, SOCK_STREAM, 0));
  SocketAddress address = address_of(loopback(family), family);
  EXPECT_EQ(::bind(fd.get(), address.get(), address.length), 0);
  return UniqueFd(::dup3(fd.get(), number, O_CLOEXEC));
}

class ForeignOptions : public ::testing::TestWithParam<int> {
 protected:
  ForeignOptions() : daemon(daemon_path()), family(GetParam()) { use_daemon(daemon_path()); }

  UniqueFd client(const std::function<void(int)>& prepare = {}) {
    UniqueFd fd(mercury_socket(family, SOCK_STREAM, 0));
    if (prepare) prepare(fd.get());
    return fd;
  }
  BothEnds connection(const UniqueFd& listener, const std::function<void(int)>& prepare = {}) {
    return connection_to(listener, family, prepare);
  }

  FakeDaemon daemon;
  const int family;
};

// The first that are asked for all, a second after the last that were.
TEST_P(ForeignOptions, AreNotTakenForThoseOfOthers) {
  const auto listener = listener_at(loopback(family), family);
  const auto other = listener_at(loopback(family), family);
  const int level = family == AF_INET ? int{IPPROTO_IP} : int{IPPROTO_IPV6};
  const int name = family == AF_INET ? IP_TOS : IPV6_TCLASS;
  std::this_thread::sleep_for(std::chrono::milliseconds(1001));
  set_raw(listener.get(), level, name, 0xe0);
  set_raw(listener.get(), IPPROTO_TCP, TCP_KEEPIDLE, 17);
  connection(listener, [](int fd) { set_raw(fd, IPPROTO_TCP, TCP_KEEPINTVL, 18); });
  const BothEnds ends = connection(other);
  EXPECT_EQ(value_in_kernel(ends.server.get(), level, name), 0);
  EXPECT_NE(value_in_kernel(ends.server.get(), IPPROTO_TCP, TCP_KEEPIDLE), 17);
  EXPECT_NE(value_in_kernel(ends.client.get(), IPPROTO_TCP, TCP_KEEPINTVL), 18);
  for (const sockets::Request& request : daemon.requests()) EXPECT_EQ(request.priority, 0);
}

TEST_P(ForeignOptions, OfAListenerUnderTheNumberOfOneAreItsConnections) {
  UniqueFd listener = listener_at(loopback(family), family);
  connection(listener);
  UniqueFd foreign = foreign_at(family, 700);
  const timeval patience{0, 20'000};
  ASSERT_EQ(::setsockopt(foreign.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  ASSERT_EQ(mercury_listen(foreign.get(), 8), 0);
  ASSERT_EQ(::dup2(foreign.get(), listener.get()), listener.get());
  const BothEnds ends = connection(listener);
  timeval had{};
  socklen_t length = sizeof had;
  ASSERT_EQ(mercury_getsockopt(ends.server.get(), SOL_SOCKET, SO_RCVTIMEO, &had, &length), 0);
  EXPECT_EQ(had.tv_usec, 20'000);
}

TEST_P(ForeignOptions, OfAListenerAreSeenWhoeverSetThem) {
  connection(listener_at(loopback(family), family));
  const size_t told = daemon.asked(sockets::RequestKind::kListen);
  UniqueFd number = client();
  const UniqueFd foreign = foreign_at(family, number.get());
  (void)number.release();
  set_raw(foreign.get(), IPPROTO_TCP, TCP_DEFER_ACCEPT, 1);
  ASSERT_EQ(mercury_listen(foreign.get(), 8), 0);
  const UniqueFd own = client([](int fd) { set_raw(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, 1); });
  ASSERT_EQ(mercury_listen(own.get(), 8), 0);
  EXPECT_EQ(daemon.asked(sockets::RequestKind::kListen), told);
}

// What it waits in, and what was set on it, nobody here knows.
TEST_P(ForeignOptions, ASocketUnderTheNumberOfANewOneConnectsByTheKernel) {
  const auto listener = listener_at(loopback(family), family);
  connection(listener);
  UniqueFd number = client();
  const UniqueFd foreign = foreign_at(family, number.get());
  (void)number.release();
  set_raw(foreign.get(), SOL_SOCKET, SO_ZEROCOPY, 1);
  ASSERT_EQ(connect_to(foreign.get(), name_of(listener.get()), family), 0);
  EXPECT_FALSE(is_mercurys(foreign.get()));
}

TEST_P(ForeignOptions, SetByAnotherThreadWhileTheDaemonIsAskedAreNotLost) {
  const auto listener = listener_at(loopback(family), family);
  connection(listener);
  // Of each family one that no other test sets: else it is asked for anyway.
  const int level = family == AF_INET ? int{IPPROTO_TCP} : int{IPPROTO_IPV6};
  const int name = family == AF_INET ? TCP_USER_TIMEOUT : IPV6_UNICAST_HOPS;
  const UniqueFd fd = client();
  daemon.meanwhile(sockets::RequestKind::kConnect, [level, name, number = fd.get()] {
    const int value = 19;
    EXPECT_EQ(mercury_setsockopt(number, level, name, &value, sizeof value), 0);
    EXPECT_EQ(::fcntl(number, F_SETFL, O_NONBLOCK), 0);
  });
  ASSERT_EQ(connect_to(fd.get(), name_of(listener.get()), family), 0);
  ASSERT_TRUE(is_mercurys(fd.get()));
  EXPECT_EQ(value_in_kernel(fd.get(), level, name), 19);
  EXPECT_NE(::fcntl(fd.get(), F_GETFL) & O_NONBLOCK, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, ForeignOptions, ::testing::Values(AF_INET, AF_INET6));

}  // namespace
}  // namespace mercury
