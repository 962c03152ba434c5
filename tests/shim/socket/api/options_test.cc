// What options say of a connection of Mercury's, beside what they say of the kernel's.
#include <linux/tcp.h>

#include <climits>
#include <functional>
#include <vector>

#include "shim/socket/api/option_rows.h"
#include "tests/shim/socket/api/socket_fixture.h"

namespace mercury {
namespace {

using sockets::How;

struct Said {
  int rc = 0;
  int error = 0;
  int value = -12345;
  socklen_t length = sizeof(int);
  bool operator==(const Said&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Said& said) {
  return out << "{" << said.rc << ", errno " << said.error << ", value " << said.value
             << ", length " << said.length << "}";
}

Said set(int fd, int level, int name, int value, socklen_t length = sizeof(int)) {
  Said said;
  errno = 0;
  said.rc = mercury_setsockopt(fd, level, name, &value, length);
  said.error = errno;
  return said;
}

Said get(int fd, int level, int name, socklen_t length = sizeof(int)) {
  Said said;
  said.length = length;
  errno = 0;
  said.rc = mercury_getsockopt(fd, level, name, &said.value, &said.length);
  said.error = errno;
  return said;
}

class Options : public ::testing::TestWithParam<int> {
 protected:
  Options() : daemon(daemon_path()) {
    use_daemon(daemon_path(), sockets::OnError::kKernel, "kernel");
    kernels = both_ends(GetParam());
    use_daemon(daemon_path());
    mercurys = both_ends(GetParam());
    EXPECT_FALSE(is_mercurys(kernels.client.get()));
    EXPECT_TRUE(is_mercurys(mercurys.client.get()));
    EXPECT_TRUE(is_mercurys(mercurys.server.get()));
  }

  FakeDaemon daemon;
  BothEnds kernels;
  BothEnds mercurys;
};

// What Linux has its own mind about: another default, or a value that it turns into its own.
bool is_compared(const sockets::OptionRow& row, int value) {
  if (row.level == IPPROTO_IP && row.name == IP_TTL && value == -1) return false;
  if (row.level == IPPROTO_IPV6 && row.name == IPV6_UNICAST_HOPS && value == -1) return false;
  return true;
}

TEST_P(Options, RememberedOnesAreAsTheKernels) {
  for (const sockets::OptionRow& row : sockets::kOptions) {
    if (row.how != How::kFlag && row.how != How::kNumber && row.how != How::kTraffic) continue;
    SCOPED_TRACE("level " + std::to_string(row.level) + " option " + std::to_string(row.name));
    const bool changes_by_itself = row.level == IPPROTO_TCP && row.name == TCP_QUICKACK;
    for (const auto* ends : {&mercurys.client, &mercurys.server}) {
      if (changes_by_itself) continue;
      EXPECT_EQ(get(ends->get(), row.level, row.name),
                get(kernels.client.get(), row.level, row.name));
    }
    for (const int value : {1, 0, -2, -1, 2, 5, 6, 0x10, 0x28, 64, 127, 128, 0xb8, 255, 256, 32767,
                            32768, INT_MAX, INT_MIN}) {
      if (!is_compared(row, value)) continue;
      for (const socklen_t length : {4U, 1U}) {
        if (length != 4 && row.level == IPPROTO_IPV6) continue;
        SCOPED_TRACE("value " + std::to_string(value) + " in " + std::to_string(length));
        EXPECT_EQ(set(mercurys.client.get(), row.level, row.name, value, length),
                  set(kernels.client.get(), row.level, row.name, value, length));
        EXPECT_EQ(get(mercurys.client.get(), row.level, row.name),
                  get(kernels.client.get(), row.level, row.name));
      }
    }
  }
}

TEST_P(Options, ThoseOfEverySocketAreAsTheKernels) {
  for (const int name : {SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN, SO_ERROR, SO_KEEPALIVE,
                         SO_REUSEADDR, SO_REUSEPORT, SO_BROADCAST, SO_DONTROUTE, SO_OOBINLINE,
                         SO_RCVLOWAT, SO_PRIORITY, SO_MARK}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(get(mercurys.client.get(), SOL_SOCKET, name),
              get(kernels.client.get(), SOL_SOCKET, name));
    EXPECT_EQ(get(mercurys.server.get(), SOL_SOCKET, name),
              get(kernels.server.get(), SOL_SOCKET, name));
    for (const int value : {1, 5, 0}) {
      EXPECT_EQ(set(mercurys.client.get(), SOL_SOCKET, name, value),
                set(kernels.client.get(), SOL_SOCKET, name, value));
      EXPECT_EQ(get(mercurys.client.get(), SOL_SOCKET, name),
                get(kernels.client.get(), SOL_SOCKET, name));
    }
  }
}

TEST_P(Options, WhatWouldNotBeTrueIsRefused) {
  for (const auto& [level, name] :
       std::vector<std::pair<int, int>>{{SOL_SOCKET, SO_ZEROCOPY},
                                        {SOL_SOCKET, SO_TIMESTAMPING},
                                        {SOL_SOCKET, SO_PASSCRED},
                                        {SOL_SOCKET, SO_MAX_PACING_RATE},
                                        {SOL_SOCKET, 12345},
                                        {IPPROTO_TCP, TCP_ULP},
                                        {IPPROTO_TCP, TCP_REPAIR},
                                        {IPPROTO_TCP, TCP_FASTOPEN},
                                        {IPPROTO_TCP, TCP_MD5SIG},
                                        {IPPROTO_TCP, 12345},
                                        {IPPROTO_IP, IP_ADD_MEMBERSHIP}}) {
    const Said said = set(mercurys.client.get(), level, name, 1);
    EXPECT_EQ(said.rc, -1) << level << " " << name;
    EXPECT_EQ(said.error, ENOPROTOOPT) << level << " " << name;
    EXPECT_EQ(get(mercurys.client.get(), level, name).error, ENOPROTOOPT) << level << " " << name;
  }
}

TEST_P(Options, TheAlgorithmIsMercurys) {
  std::array<char, 16> name{};
  socklen_t length = name.size();
  ASSERT_EQ(
      mercury_getsockopt(mercurys.client.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &length),
      0);
  EXPECT_STREQ(name.data(), "mercury");
  EXPECT_EQ(mercury_setsockopt(mercurys.client.get(), IPPROTO_TCP, TCP_CONGESTION, "mercury", 7),
            0);
  EXPECT_EQ(mercury_setsockopt(mercurys.client.get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_P(Options, TcpInfoIsTheSessions) {
  daemon.inform({.rtt_ns = 123'000,
                 .least_rtt_ns = 45'000,
                 .window_bytes = 14000,
                 .in_flight_bytes = 2800,
                 .lost_packets = 7,
                 .segment_bytes = 1400});
  tcp_info info{};
  socklen_t length = sizeof info;
  ASSERT_EQ(mercury_getsockopt(mercurys.client.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(length, sizeof info);
  EXPECT_EQ(info.tcpi_state, 1);
  EXPECT_EQ(info.tcpi_rtt, 123U);
  EXPECT_EQ(info.tcpi_min_rtt, 45U);
  EXPECT_EQ(info.tcpi_snd_cwnd, 10U);
  EXPECT_EQ(info.tcpi_unacked, 2U);
  EXPECT_EQ(info.tcpi_total_retrans, 7U);
  EXPECT_EQ(get(mercurys.client.get(), IPPROTO_TCP, TCP_MAXSEG).value, 1400);
  length = 1;  // the state alone
  ASSERT_EQ(mercury_getsockopt(mercurys.client.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(length, 1U);
  mercurys.server.reset();
  ASSERT_EQ(mercury_getsockopt(mercurys.client.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_state, 8);  // the peer has ended
  ASSERT_EQ(mercury_shutdown(mercurys.client.get(), SHUT_WR), 0);
  ASSERT_EQ(mercury_getsockopt(mercurys.client.get(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_state, 7);  // and this side
}

TEST_P(Options, WhatWasSetBeforeConnectIsKept) {
  const timeval patience{.tv_sec = 3, .tv_usec = 0};
  const int family = GetParam();
  const BothEnds ends = both_ends(family, [&](int fd) {
    EXPECT_EQ(set(fd, IPPROTO_TCP, TCP_NODELAY, 1).rc, 0);
    EXPECT_EQ(set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77).rc, 0);
    EXPECT_EQ(set(fd, SOL_SOCKET, SO_KEEPALIVE, 1).rc, 0);
    EXPECT_EQ(set(fd, SOL_SOCKET, SO_SNDBUF, 30000).rc, 0);
    EXPECT_EQ(mercury_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    EXPECT_EQ(set(fd, SOL_SOCKET, SO_PRIORITY, 6).rc, 0);
  });
  ASSERT_TRUE(is_mercurys(ends.client.get()));
  EXPECT_EQ(get(ends.client.get(), IPPROTO_TCP, TCP_NODELAY).value, 1);
  EXPECT_EQ(get(ends.client.get(), IPPROTO_TCP, TCP_KEEPIDLE).value, 77);
  EXPECT_EQ(get(ends.client.get(), SOL_SOCKET, SO_KEEPALIVE).value, 1);
  EXPECT_EQ(get(ends.client.get(), SOL_SOCKET, SO_SNDBUF).value, 60000);
  EXPECT_EQ(get(ends.client.get(), SOL_SOCKET, SO_RCVTIMEO).value, 3);
  const auto requests = daemon.requests();
  const auto last = std::find_if(requests.rbegin(), requests.rend(), [](const auto& request) {
    return request.kind == sockets::RequestKind::kConnect;
  });
  EXPECT_EQ(last->priority, 6);
}

// No connection of Mercury's could keep to them, and it says so; whoever had set them before it
// connects, or listens, is to have what was asked for.
TEST_P(Options, WhoHadSetWhatMercuryDoesNotKnowStaysTheKernels) {
  const int family = GetParam();
  tcp_md5sig key{};  // without its key no peer is to be heard
  const SocketAddress peer = address_of(loopback(family), family);
  std::memcpy(&key.tcpm_addr, &peer.storage, sizeof key.tcpm_addr);
  key.tcpm_keylen = 3;
  std::memcpy(key.tcpm_key, "key", 3);
  const std::vector<std::function<void(int)>> all = {
      [](int fd) { EXPECT_EQ(set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, 1'000'000).rc, 0); },
      [](int fd) { EXPECT_EQ(set(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 5000).rc, 0); },
      [](int fd) { EXPECT_EQ(set(fd, IPPROTO_IP, IP_MINTTL, 10).rc, 0); },
      [&key](int fd) {
        const int rc = mercury_setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key);
        if (rc != 0 && errno == ENOPROTOOPT) set(fd, IPPROTO_TCP, TCP_LINGER2, 5);  // not built in
      }};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const UniqueFd listener = listener_at(loopback(family), family);
    const UniqueFd client(mercury_socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0));
    all[i](client.get());
    const int rc = connect_to(client.get(), name_of(listener.get()), family);
    EXPECT_TRUE(rc == 0 || errno == EINPROGRESS) << std::strerror(errno);
    EXPECT_FALSE(is_mercurys(client.get()));
    const size_t before = daemon.asked(sockets::RequestKind::kListen);
    const UniqueFd other(mercury_socket(family, SOCK_STREAM, 0));
    all[i](other.get());
    SocketAddress any = address_of(loopback(family), family);
    ASSERT_EQ(mercury_bind(other.get(), any.get(), any.length), 0);
    for (const int backlog : {8, 16}) ASSERT_EQ(mercury_listen(other.get(), backlog), 0);
    EXPECT_EQ(daemon.asked(sockets::RequestKind::kListen), before);
  }
}

// Nor does it keep who tried in vain, or reads, or has told TCP how to go about it.
TEST_P(Options, WhoHadSetWhatMercuryDoesByItselfIsMercurys) {
  const BothEnds ends = both_ends(GetParam(), [](int fd) {
    EXPECT_EQ(set(fd, SOL_SOCKET, 12345, 1).rc, -1);
    EXPECT_EQ(get(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP).rc, 0);
    EXPECT_EQ(set(fd, IPPROTO_TCP, TCP_MAXSEG, 600).rc, 0);
    EXPECT_EQ(mercury_setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
  });
  EXPECT_TRUE(is_mercurys(ends.client.get()));
  EXPECT_TRUE(is_mercurys(ends.server.get()));
}

TEST_P(Options, PrioritiesAndResetsReachTheDaemon) {
  const int fd = mercurys.client.get();
  const bool v6 = GetParam() == AF_INET6;
  const auto last_set = [this] { return daemon.requests().back(); };
  EXPECT_EQ(set(fd, SOL_SOCKET, SO_PRIORITY, 5).rc, 0);
  EXPECT_EQ(last_set().option, sockets::Option::kPriority);
  EXPECT_EQ(last_set().value, 5U);
  EXPECT_EQ(set(fd, SOL_SOCKET, SO_PRIORITY, 0).rc, 0);
  EXPECT_EQ(last_set().value, 0U);
  EXPECT_EQ(v6 ? set(fd, IPPROTO_IPV6, IPV6_TCLASS, 0xe0).rc : set(fd, IPPROTO_IP, IP_TOS, 0xe0).rc,
            0);
  EXPECT_EQ(last_set().value, 7U);
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  EXPECT_EQ(mercury_setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  EXPECT_EQ(last_set().option, sockets::Option::kAbort);
  EXPECT_EQ(last_set().value, 1U);
  EXPECT_EQ(last_set().id, sockets::process().find(fd)->id);
}

INSTANTIATE_TEST_SUITE_P(Families, Options, ::testing::Values(AF_INET, AF_INET6));

TEST(OptionRows, TosHasThePrecedenceThatMatters) {
  EXPECT_EQ(sockets::priority_of(0, 0), 0);
  EXPECT_EQ(sockets::priority_of(3, 0), 3);
  EXPECT_EQ(sockets::priority_of(-1, 0), 0);
  EXPECT_EQ(sockets::priority_of(1000, 0), 7);
  EXPECT_EQ(sockets::priority_of(0, 0xb8), 5);
  EXPECT_EQ(sockets::priority_of(6, 0xb8), 6);
}

}  // namespace
}  // namespace mercury
