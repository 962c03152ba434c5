// What the control plane of sockets is made of, where a whole one would need too much.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "shim/socket/control/addresses.h"
#include "shim/socket/control/connections.h"
#include "shim/socket/control/ends.h"
#include "shim/socket/control/manager_state.h"

namespace {

// As of a program without CAP_NET_ADMIN: net.core.wmem_max, which is one for the whole machine. 0:
// as it is.
int most_for_who_asks = 0;

}  // namespace

// In the C library's place.
extern "C" int setsockopt(int fd, int level, int name, const void* value,
                          socklen_t length) noexcept {
  int limited = 0;
  if (most_for_who_asks != 0 && level == SOL_SOCKET && name == SO_SNDBUFFORCE) {
    errno = EPERM;
    return -1;
  }
  if (most_for_who_asks != 0 && level == SOL_SOCKET && name == SO_SNDBUF) {
    std::memcpy(&limited, value, sizeof limited);
    limited = std::min(limited, most_for_who_asks);
    value = &limited;
  }
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, name, value, length));
}

namespace mercury::sockets::test {
namespace {

IpAddress ip(const char* text) { return *IpAddress::parse(text); }

TEST(Networks, AreComparedInTheBitsThatTheyHave) {
  EXPECT_TRUE(contains({ip("10.0.0.0"), 8}, ip("10.255.1.2")));
  EXPECT_FALSE(contains({ip("10.0.0.0"), 8}, ip("11.0.0.0")));
  EXPECT_TRUE(contains({ip("172.16.0.0"), 12}, ip("172.31.255.255")));
  EXPECT_FALSE(contains({ip("172.16.0.0"), 12}, ip("172.32.0.0")));
  EXPECT_TRUE(contains({ip("10.0.0.7"), 32}, ip("10.0.0.7")));
  EXPECT_FALSE(contains({ip("10.0.0.7"), 32}, ip("10.0.0.6")));
  EXPECT_TRUE(contains({ip("0.0.0.0"), 0}, ip("1.2.3.4")));
  EXPECT_FALSE(contains({ip("0.0.0.0"), 0}, ip("fd00::1"))) << "IPv4 alone";
  EXPECT_TRUE(contains({ip("fc00::"), 7}, ip("fdff::1")));
  EXPECT_FALSE(contains({ip("fc00::"), 7}, ip("fe00::1")));
  EXPECT_FALSE(contains({ip("::"), 0}, ip("1.2.3.4"))) << "IPv6 alone";
  EXPECT_TRUE(contains({ip("fd00::1"), 128}, ip("fd00::1")));
  EXPECT_FALSE(contains({ip("fd00::1"), 128}, ip("fd00::")));
}

TEST(ConnectionIds, SayWhichLifeAndWhetherWithinTheHost) {
  ConnectionIds one(0x1234567800000000), other(0x9999999900000000);
  const ConnectionId within = one.next(true), outside = one.next(false);
  EXPECT_NE(within, outside);
  EXPECT_TRUE(one.is_of_this_life(within) && one.is_of_this_life(outside));
  EXPECT_FALSE(other.is_of_this_life(within) || other.is_of_this_life(outside));
  EXPECT_TRUE(ConnectionIds::is_within(within));
  EXPECT_FALSE(ConnectionIds::is_within(outside));
}

// The kernel's range; a port serves one connection to a place.
TEST(ConnectionPorts, AreAllUsedAndFreeAgainAfterTheEnd) {
  constexpr size_t kPorts = 60999 - 32768 + 1;
  Connections connections(kPorts + 1, 3 * (kPorts + 1), 1);
  const Endpoint destination{ip("10.0.0.2"), 80};
  const IpAddress source = ip("10.0.0.1");
  std::set<uint16_t> ports;
  ConnectionId last = 0;
  for (size_t i = 0; i < kPorts; ++i) {
    const std::optional<uint16_t> port = connections.free_port(source, destination);
    ASSERT_TRUE(port);
    ports.insert(*port);
    Connection connection;
    connection.state = Connection::State::kOpen;
    connection.source = {source, *port};
    connection.destination = destination;
    last = connections.add(std::move(connection)).id;
  }
  EXPECT_EQ(ports.size(), kPorts);
  EXPECT_EQ(*ports.begin(), 32768);
  EXPECT_EQ(*ports.rbegin(), 60999);
  EXPECT_FALSE(connections.free_port(source, destination));
  EXPECT_TRUE(connections.free_port(source, {destination.ip, 81}));
  const Endpoint freed = connections.find(last)->source;
  connections.erase(last);
  EXPECT_EQ(connections.free_port(source, destination), freed.port);
}

// The kernel may give a new knock the port of one whose end was not heard of yet.
TEST(Announcements, TheLaterOfTwoWithOneAddressIsFound) {
  Connections connections(10, 30, 1);
  const Endpoint from{ip("127.0.0.1"), 40000}, listener{ip("127.0.0.1"), 80};
  std::vector<ConnectionId> ids;
  for (int i = 0; i < 2; ++i) {
    Connection connection;
    connection.within = true;
    connection.knocked_at = listener;
    connection.source = {ip("127.0.0.1"), static_cast<uint16_t>(50000 + i)};
    Connection& added = connections.add(std::move(connection));
    connections.announce(added, from);
    ids.push_back(added.id);
  }
  EXPECT_EQ(connections.find_announced(from, listener)->id, ids[1]);
  connections.erase(ids[0]);
  ASSERT_NE(connections.find_announced(from, listener), nullptr);
  connections.claimed(*connections.find(ids[1]));
  EXPECT_EQ(connections.find_announced(from, listener), nullptr);
}

int option(const UniqueFd& end, int name) {
  int value = -1;
  socklen_t bytes = sizeof value;
  EXPECT_EQ(getsockopt(end.get(), SOL_SOCKET, name, &value, &bytes), 0);
  return value;
}

TEST(Pairs, HoldMoreThanTheKernelGivesAndSayThatNobodySetIt) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd plain(ends[0]), other(ends[1]);
  const std::optional<Pair> pair = make_pair();
  ASSERT_TRUE(pair);
  for (const UniqueFd* end : {&pair->first, &pair->second}) {
    EXPECT_GT(option(*end, SO_SNDBUF), option(plain, SO_SNDBUF));
    EXPECT_EQ(option(*end, SO_BUF_LOCK), 0);
  }
}

// In bytes as the kernel counts them.
int room_of(int fd) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length), 0);
  return bytes;
}

// As on a host that gives every socket more by itself.
TEST(Pairs, EndsAreMadeLargerAndNeverSmaller) {
  const auto pair = make_pair();
  ASSERT_TRUE(pair);
  const int made = room_of(pair->first.get());
  const int more = 1024 * 1024;
  if (::setsockopt(pair->first.get(), SOL_SOCKET, SO_SNDBUFFORCE, &more, sizeof more) != 0) {
    GTEST_SKIP() << "SO_SNDBUFFORCE needs CAP_NET_ADMIN";
  }
  EXPECT_GE(made, 1024 * 1024) << "with CAP_NET_ADMIN, whatever net.core.wmem_max is";
  enlarge(pair->first.get());
  EXPECT_EQ(room_of(pair->first.get()), 2 * more);
}

// As on a host whose net.core.wmem_max is less than what sockets have by themselves.
TEST(Pairs, EndsAreNeverMadeSmallerWithoutPrivilege) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd end(ends[0]), other(ends[1]);
  const int before = room_of(end.get());
  most_for_who_asks = before / 4;
  enlarge(end.get());
  EXPECT_EQ(room_of(end.get()), before);
  most_for_who_asks = before;
  enlarge(end.get());
  EXPECT_EQ(room_of(end.get()), 2 * before) << "it is twice what is asked for";
  most_for_who_asks = 0;
}

}  // namespace
}  // namespace mercury::sockets::test
