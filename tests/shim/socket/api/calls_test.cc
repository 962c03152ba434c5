// Connections of this process to itself, through a daemon of the test's own.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/shim/socket/api/socket_fixture.h"

namespace mercury {
namespace {

using sockets::RequestKind;

class Calls : public ::testing::TestWithParam<int> {
 protected:
  Calls() : daemon(daemon_path()) { use_daemon(daemon_path()); }

  int family() const { return GetParam(); }
  FakeDaemon daemon;
};

void carry(int from, int to, const std::string& text) {
  ASSERT_EQ(::write(from, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  std::string got(text.size(), '?');
  ASSERT_EQ(mercury_recv(to, got.data(), got.size(), MSG_WAITALL),
            static_cast<ssize_t>(text.size()));
  EXPECT_EQ(got, text);
}

TEST_P(Calls, ConnectsTwoProgramsOfThisHost) {
  const BothEnds ends = both_ends(family());
  ASSERT_TRUE(is_mercurys(ends.client.get()));
  ASSERT_TRUE(is_mercurys(ends.server.get()));
  carry(ends.client.get(), ends.server.get(), "there");
  carry(ends.server.get(), ends.client.get(), "and back");
  EXPECT_EQ(daemon.asked(RequestKind::kClaim), 1U);
}

TEST_P(Calls, NamesAreThoseOfTheConnection) {
  const BothEnds ends = both_ends(family());
  const Endpoint listener = name_of(ends.listener.get());
  EXPECT_EQ(peer_of(ends.client.get()), listener);
  EXPECT_EQ(name_of(ends.server.get()), listener);
  EXPECT_EQ(name_of(ends.client.get()), peer_of(ends.server.get()));
  EXPECT_TRUE(is_loopback(name_of(ends.client.get()).ip));
  EXPECT_NE(name_of(ends.client.get()).port, 0);
  sockaddr_storage storage{};
  socklen_t length = 3;  // as the kernel: cut, and how long it is
  ASSERT_EQ(mercury_getpeername(ends.client.get(), reinterpret_cast<sockaddr*>(&storage), &length),
            0);
  EXPECT_EQ(length, family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
}

TEST_P(Calls, AcceptSaysWhoConnected) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd client(mercury_socket(family(), SOCK_STREAM, 0));
  ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), family()), 0);
  SocketAddress from;
  const UniqueFd server(mercury_accept(listener.get(), from.get(), &from.length));
  ASSERT_GE(server.get(), 0);
  EXPECT_EQ(sockets::endpoint_of(from.get(), from.length), name_of(client.get()));
  EXPECT_EQ(::fcntl(server.get(), F_GETFD), 0);
  EXPECT_EQ(::fcntl(server.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_P(Calls, FlagsAreAsAskedFor) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd client(mercury_socket(family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int number = client.get();
  ASSERT_EQ(connect_to(number, name_of(listener.get()), family()), 0);
  EXPECT_EQ(::fcntl(number, F_GETFD), FD_CLOEXEC);
  EXPECT_NE(::fcntl(number, F_GETFL) & O_NONBLOCK, 0);
  const UniqueFd server(
      mercury_accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  ASSERT_TRUE(is_mercurys(server.get()));
  EXPECT_EQ(::fcntl(server.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_NE(::fcntl(server.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_P(Calls, AConnectedSocketConnectsNoMore) {
  const BothEnds ends = both_ends(family());
  EXPECT_EQ(connect_to(ends.client.get(), name_of(ends.listener.get()), family()), -1);
  EXPECT_EQ(errno, EISCONN);
  const sockaddr nothing{.sa_family = AF_UNSPEC};
  EXPECT_EQ(mercury_connect(ends.client.get(), &nothing, sizeof nothing), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_P(Calls, WhatIsWrittenBeforeAcceptWaits) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd client(mercury_socket(family(), SOCK_STREAM, 0));
  ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), family()), 0);
  ASSERT_EQ(::write(client.get(), "early", 5), 5);
  pollfd asked{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&asked, 1, -1), 1);
  const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
  std::array<char, 5> got{};
  ASSERT_EQ(mercury_read(server.get(), got.data(), got.size()), 5);
  EXPECT_EQ(std::string(got.data(), 5), "early");
}

TEST_P(Calls, OrdinaryConnectionsStayTheKernels) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd client(::socket(family(), SOCK_STREAM, 0));
  SocketAddress address = address_of(name_of(listener.get()), family());
  ASSERT_EQ(::connect(client.get(), address.get(), address.length), 0);
  const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
  EXPECT_FALSE(is_mercurys(server.get()));
  EXPECT_EQ(daemon.asked(RequestKind::kClaim), 1U);
  carry(client.get(), server.get(), "plain");
  EXPECT_EQ(peer_of(server.get()), name_of(client.get()));
}

TEST_P(Calls, WhoeverDoesNotListenOverMercuryIsTheKernels) {
  UniqueFd listener(::socket(family(), SOCK_STREAM, 0));
  SocketAddress address = address_of(loopback(family()), family());
  ASSERT_EQ(::bind(listener.get(), address.get(), address.length), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  const Endpoint at = name_of(listener.get());
  const UniqueFd client(mercury_socket(family(), SOCK_STREAM, 0));
  ASSERT_EQ(connect_to(client.get(), at, family()), 0);
  EXPECT_FALSE(is_mercurys(client.get()));
  listener.reset();
  const UniqueFd other(mercury_socket(family(), SOCK_STREAM, 0));
  EXPECT_EQ(connect_to(other.get(), at, family()), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST_P(Calls, RulesKeepSocketsFromTheDaemon) {
  use_daemon(daemon_path(), sockets::OnError::kKernel, "kernel");
  const BothEnds ends = both_ends(family());
  EXPECT_FALSE(is_mercurys(ends.client.get()));
  EXPECT_TRUE(daemon.requests().empty());
}

TEST_P(Calls, WhatAPairCouldNotDoStaysTheKernels) {
  const int yes = 1;
  const BothEnds ends = both_ends(family(), [&yes](int fd) {
    ASSERT_EQ(mercury_setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes), 0);
  });
  EXPECT_FALSE(is_mercurys(ends.client.get()));
  EXPECT_EQ(daemon.asked(RequestKind::kConnect), 0U);
}

TEST_P(Calls, EndInOrderIsNoError) {
  BothEnds ends = both_ends(family());
  ends.server.reset();
  std::array<char, 8> data{};
  errno = 7;
  EXPECT_EQ(mercury_read(ends.client.get(), data.data(), data.size()), 0);
  EXPECT_EQ(mercury_recv(ends.client.get(), data.data(), data.size(), 0), 0);
  EXPECT_EQ(errno, 7);
  EXPECT_EQ(daemon.asked(RequestKind::kEnded), 1U);
}

TEST_P(Calls, AResetIsToldOnce) {
  const auto each_call = [](int fd, int call) -> ssize_t {
    std::array<char, 8> data{};
    iovec part{data.data(), data.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    mmsghdr several{message, 0};
    switch (call) {
      case 0:
        return mercury_read(fd, data.data(), data.size());
      case 1:
        return mercury_readv(fd, &part, 1);
      case 2:
        return mercury_recv(fd, data.data(), data.size(), 0);
      case 3:
        return mercury_recvfrom(fd, data.data(), data.size(), 0, nullptr, nullptr);
      case 4:
        return mercury_recvmsg(fd, &message, 0);
      default:
        return mercury_recvmmsg(fd, &several, 1, 0, nullptr);
    }
  };
  for (int call = 0; call < 6; ++call) {
    SCOPED_TRACE(call);
    BothEnds ends = both_ends(family());
    daemon.end_with(ETIMEDOUT);
    ends.server.reset();
    EXPECT_EQ(mercury_recv(ends.client.get(), nullptr, 0, 0), 0);  // has no room for an end
    EXPECT_EQ(each_call(ends.client.get(), call), -1);
    EXPECT_EQ(errno, ETIMEDOUT);
    EXPECT_EQ(each_call(ends.client.get(), call), call == 5 ? 1 : 0);
  }
}

TEST_P(Calls, ErrorsAreToldToWhoAsksForThem) {
  BothEnds ends = both_ends(family());
  daemon.end_with(ECONNRESET);
  int error = -1;
  socklen_t length = sizeof error;
  ASSERT_EQ(mercury_getsockopt(ends.client.get(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
  EXPECT_EQ(daemon.asked(RequestKind::kEnded), 0U);  // it goes on
  ends.server.reset();
  pollfd asked{ends.client.get(), POLLRDHUP, 0};
  ASSERT_EQ(::poll(&asked, 1, -1), 1);  // the daemon lets go of what it sent in its own time
  ASSERT_EQ(mercury_getsockopt(ends.client.get(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, ECONNRESET);
  ASSERT_EQ(mercury_getsockopt(ends.client.get(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
  EXPECT_EQ(error, 0);
}

TEST_P(Calls, UrgentBytesAreRefused) {
  const BothEnds ends = both_ends(family());
  char byte = 'x';
  EXPECT_EQ(mercury_send(ends.client.get(), &byte, 1, MSG_OOB), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(mercury_recv(ends.server.get(), &byte, 1, MSG_OOB | MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(mercury_send(ends.client.get(), &byte, 1, 0), 1);
  msghdr nothing{};
  EXPECT_EQ(mercury_recvmsg(ends.server.get(), &nothing, MSG_ERRQUEUE), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(mercury_recv(ends.server.get(), &byte, 1, MSG_DONTWAIT), 1);
}

TEST_P(Calls, TheAddressOfAMessageDoesNotMatter) {
  const BothEnds ends = both_ends(family());
  ASSERT_TRUE(is_mercurys(ends.client.get()));
  SocketAddress to = address_of(peer_of(ends.client.get()), family());
  const int fd = ends.client.get();
  EXPECT_EQ(mercury_sendto(fd, "1", 1, 0, to.get(), to.length), 1);
  std::array<char, 2> text{'2', '3'};
  std::array<iovec, 2> parts{iovec{text.data(), 1}, iovec{text.data() + 1, 1}};
  std::array<mmsghdr, 2> messages{};
  for (size_t i = 0; i < messages.size(); ++i) {
    messages[i].msg_hdr = {.msg_name = to.get(),
                           .msg_namelen = to.length,
                           .msg_iov = &parts[i],
                           .msg_iovlen = 1,
                           .msg_control = nullptr,
                           .msg_controllen = 0,
                           .msg_flags = 0};
  }
  EXPECT_EQ(mercury_sendmsg(fd, &messages[0].msg_hdr, 0), 1);
  EXPECT_EQ(messages[0].msg_hdr.msg_name, to.get()) << "the caller's is left as it was";
  EXPECT_EQ(mercury_sendmmsg(fd, messages.data(), 2, 0), 2);
  EXPECT_EQ(messages[1].msg_len, 1U);
  std::string got(4, '?');
  ASSERT_EQ(mercury_recv(ends.server.get(), got.data(), got.size(), MSG_WAITALL), 4);
  EXPECT_EQ(got, "1223");
  // As the kernel: a message that is cut short is the last.
  std::vector<char> much(size_t{16} << 20);
  parts[0] = {much.data(), much.size()};
  EXPECT_EQ(mercury_sendmmsg(fd, messages.data(), 2, MSG_DONTWAIT), 1);
  EXPECT_LT(messages[0].msg_len, much.size());
  // Others' errors stay theirs.
  const UniqueFd unconnected(mercury_socket(family(), SOCK_STREAM, 0));
  EXPECT_EQ(mercury_sendto(unconnected.get(), "1", 1, MSG_NOSIGNAL, to.get(), to.length), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_P(Calls, WaitsInEpollGoOnAfterConnect) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  const UniqueFd client(mercury_socket(family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = 42}};
  ASSERT_EQ(mercury_epoll_ctl(epoll.get(), EPOLL_CTL_ADD, client.get(), &event), 0);
  ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), family()), 0);
  const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
  ASSERT_EQ(::write(server.get(), "x", 1), 1);
  epoll_event got{};
  ASSERT_EQ(::epoll_wait(epoll.get(), &got, 1, 5000), 1);
  EXPECT_EQ(got.data.u64, 42U);
  EXPECT_NE(got.events & EPOLLIN, 0U);
  event.events = EPOLLOUT;
  EXPECT_EQ(mercury_epoll_ctl(epoll.get(), EPOLL_CTL_MOD, client.get(), &event), 0);
  EXPECT_EQ(mercury_epoll_ctl(epoll.get(), EPOLL_CTL_DEL, client.get(), &event), 0);
}

TEST_P(Calls, WhatWasTakenOutOfEpollStaysOut) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  const UniqueFd client(mercury_socket(family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
  epoll_event event{.events = EPOLLOUT, .data = {.u64 = 1}};
  ASSERT_EQ(mercury_epoll_ctl(epoll.get(), EPOLL_CTL_ADD, client.get(), &event), 0);
  ASSERT_EQ(mercury_epoll_ctl(epoll.get(), EPOLL_CTL_DEL, client.get(), nullptr), 0);
  ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), family()), 0);
  ASSERT_TRUE(is_mercurys(client.get()));
  epoll_event got{};
  EXPECT_EQ(::epoll_wait(epoll.get(), &got, 1, 0), 0);
}

constexpr int kMoreThanAreNoted = 300;  // in epoll before they connect

void wait_in(int epoll, int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  ASSERT_EQ(mercury_epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0) << std::strerror(errno);
}

// Connects `client`, which waits in `epoll`, and is told of what comes.
void expect_told(int epoll, int client, int listener, int family) {
  ASSERT_EQ(connect_to(client, name_of(listener), family), 0) << std::strerror(errno);
  const UniqueFd server(mercury_accept(listener, nullptr, nullptr));
  ASSERT_EQ(::write(server.get(), "x", 1), 1);
  epoll_event got{};
  ASSERT_EQ(mercury_epoll_wait(epoll, &got, 1, 5000), 1);
  EXPECT_EQ(got.data.fd, client);
  EXPECT_NE(got.events & EPOLLIN, 0U);
}

// One more that waits in `epoll` before it connects is Mercury's.
void expect_one_more(int epoll, int listener, int family) {
  const UniqueFd client(mercury_socket(family, SOCK_STREAM, 0));
  wait_in(epoll, client.get());
  expect_told(epoll, client.get(), listener, family);
  EXPECT_TRUE(is_mercurys(client.get()));
}

TEST_P(Calls, ManySocketsMayWaitInEpollAndBeClosed) {
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  for (int i = 0; i < 2000; ++i) {
    const UniqueFd client(mercury_socket(family(), SOCK_STREAM, 0));
    wait_in(epoll.get(), client.get());
  }
  const UniqueFd listener = listener_at(loopback(family()), family());
  expect_one_more(epoll.get(), listener.get(), family());
}

TEST_P(Calls, ManyMayWaitInEpollThatTheKernelHasConnected) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd plain(::socket(family(), SOCK_STREAM, 0));
  SocketAddress any = address_of(loopback(family()), family());
  ASSERT_EQ(::bind(plain.get(), any.get(), any.length), 0);
  ASSERT_EQ(::listen(plain.get(), 2 * kMoreThanAreNoted), 0);
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  std::vector<UniqueFd> clients;
  for (int i = 0; i < kMoreThanAreNoted; ++i) {
    const int flags = i % 2 == 0 ? 0 : SOCK_NONBLOCK;
    clients.emplace_back(mercury_socket(family(), SOCK_STREAM | flags, 0));
    wait_in(epoll.get(), clients.back().get());
    const int rc = connect_to(clients.back().get(), name_of(plain.get()), family());
    ASSERT_TRUE(rc == 0 || (flags != 0 && errno == EINPROGRESS)) << std::strerror(errno);
    ASSERT_FALSE(is_mercurys(clients.back().get()));
  }
  expect_one_more(epoll.get(), listener.get(), family());
}

// There is no room to note where they wait, and it is the kernel's then.
TEST_P(Calls, MoreThanAreNotedWaitInEpollAndAreToldAllTheSame) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  std::vector<UniqueFd> clients, epolls;
  for (int i = 0; i < kMoreThanAreNoted; ++i) {
    epolls.emplace_back(::epoll_create1(EPOLL_CLOEXEC));
    clients.emplace_back(mercury_socket(family(), SOCK_STREAM, 0));
    wait_in(epolls.back().get(), clients.back().get());
  }
  int mercurys = 0;
  for (size_t i = 0; i < clients.size(); ++i) {
    expect_told(epolls[i].get(), clients[i].get(), listener.get(), family());
    mercurys += is_mercurys(clients[i].get()) ? 1 : 0;
  }
  EXPECT_GE(mercurys, 200);
  EXPECT_LT(mercurys, kMoreThanAreNoted);
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  expect_one_more(epoll.get(), listener.get(), family());  // later ones have room
}

TEST_P(Calls, WhoWasRefusedMayTryAgainOnTheSameSocket) {
  for (const int flags : {0, int{SOCK_NONBLOCK}}) {
    const UniqueFd listener(mercury_socket(family(), SOCK_STREAM, 0));
    SocketAddress any = address_of(loopback(family()), family());
    ASSERT_EQ(mercury_bind(listener.get(), any.get(), any.length), 0);
    const UniqueFd client(mercury_socket(family(), SOCK_STREAM | flags, 0));
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), family()), -1);
    if (errno == EINPROGRESS) {
      pollfd refused{client.get(), POLLOUT, 0};
      ASSERT_EQ(::poll(&refused, 1, 5000), 1);
      int error = 0;
      socklen_t length = sizeof error;
      ASSERT_EQ(mercury_getsockopt(client.get(), SOL_SOCKET, SO_ERROR, &error, &length), 0);
      errno = error;
    }
    ASSERT_EQ(errno, ECONNREFUSED);
    ASSERT_EQ(mercury_listen(listener.get(), 8), 0);
    ASSERT_EQ(connect_to(client.get(), name_of(listener.get()), family()), 0)
        << std::strerror(errno);
    EXPECT_TRUE(is_mercurys(client.get()));
  }
}

TEST_P(Calls, ACopyMayWaitInEpollBeforeItConnects) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const UniqueFd client(mercury_socket(family(), SOCK_STREAM, 0));
  const UniqueFd copy(::dup(client.get()));
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  wait_in(epoll.get(), copy.get());
  expect_told(epoll.get(), copy.get(), listener.get(), family());
}

TEST_P(Calls, DescriptorsMayBeCopiedAndClosed) {
  BothEnds ends = both_ends(family());
  const UniqueFd copy(::dup(ends.client.get()));
  ends.client.reset();
  EXPECT_TRUE(is_mercurys(copy.get()));
  EXPECT_EQ(peer_of(copy.get()), name_of(ends.listener.get()));
  carry(copy.get(), ends.server.get(), "by the copy");
}

TEST_P(Calls, ThousandsOfConnectionsLeaveNothingBehind) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const Endpoint at = name_of(listener.get());
  const auto open = [] {
    size_t count = 0;
    sockets::for_each_descriptor([](void* c, int) { ++*static_cast<size_t*>(c); }, &count);
    return count;
  };
  size_t before = 0;
  for (int i = 0; i < 2000; ++i) {
    const UniqueFd client(mercury_socket(family(), SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(client.get(), at, family()), 0) << std::strerror(errno);
    const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(is_mercurys(server.get()));
    if (i == 10) before = open();
  }
  EXPECT_LE(open(), before + 2);
  EXPECT_LE(sockets::process().connections.size(), 1000U) << "of 4,000";
}

TEST_P(Calls, ThreadsAskAtTheSameTime) {
  const UniqueFd listener = listener_at(loopback(family()), family());
  const Endpoint at = name_of(listener.get());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([this, &at] {
      for (int i = 0; i < 50; ++i) {
        const UniqueFd client(mercury_socket(family(), SOCK_STREAM, 0));
        ASSERT_EQ(connect_to(client.get(), at, family()), 0);
        char byte = 0;
        ASSERT_EQ(mercury_read(client.get(), &byte, 1), 1);
      }
    });
  }
  for (int i = 0; i < 8 * 50; ++i) {
    const UniqueFd server(mercury_accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(is_mercurys(server.get()));
    ASSERT_EQ(::write(server.get(), "x", 1), 1);
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Families, Calls, ::testing::Values(AF_INET, AF_INET6));

TEST(CallsOfBothFamilies, AListenerOfIpv6HasClientsOfIpv4) {
  const FakeDaemon daemon(daemon_path());
  use_daemon(daemon_path());
  const UniqueFd listener = listener_at({}, AF_INET6);
  const uint16_t port = name_of(listener.get()).port;
  const UniqueFd client(mercury_socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(connect_to(client.get(), {IpAddress::v4(127, 0, 0, 1), port}, AF_INET), 0);
  SocketAddress from;
  const UniqueFd server(mercury_accept(listener.get(), from.get(), &from.length));
  ASSERT_TRUE(is_mercurys(server.get()));
  EXPECT_EQ(from.storage.ss_family, AF_INET6);  // ::ffff:127.0.0.1
  EXPECT_EQ(sockets::endpoint_of(from.get(), from.length), name_of(client.get()));
}

}  // namespace
}  // namespace mercury
