// Which options are not asked for, and that connections have those that were set all the same.
#include "shim/socket/api/known_options.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "tests/shim/socket/api/socket_fixture.h"

namespace mercury {
namespace {

using sockets::bit_of;
using sockets::KnownOptions;
using sockets::OptionRows;
using sockets::OptionsToAsk;
using sockets::OptionValues;
using sockets::SocketKind;

OptionRows row(int level, int name) { return bit_of(*sockets::find_option(AF_INET6, level, name)); }

int option_value(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(mercury_getsockopt(fd, level, name, &value, &length), 0) << std::strerror(errno);
  return value;
}

void set_option(int fd, int level, int name, int value) {
  EXPECT_EQ(mercury_setsockopt(fd, level, name, &value, sizeof value), 0) << std::strerror(errno);
}

// Those that are asked for where all else is known.
OptionRows asked_for(KnownOptions& options, SocketKind kind, int family) {
  const OptionsToAsk asked = options.to_ask(kind, family);
  EXPECT_FALSE(asked.has_all());
  return asked.rows;
}

TEST(KnownOptionsTest, OnlyWhatASocketOfItsFamilyHadIsNotAskedFor) {
  static KnownOptions options;
  OptionValues values{};
  values[40] = 7;
  options.learn(AF_INET, values, bit_of(3));
  const OptionsToAsk asked = options.to_ask(SocketKind::kNew, AF_INET);
  EXPECT_EQ(asked.rows, bit_of(3));
  EXPECT_EQ(asked.others, values);
  EXPECT_EQ(asked_for(options, SocketKind::kAccepted, AF_INET),
            bit_of(3) | row(IPPROTO_TCP, TCP_MAXSEG));
  EXPECT_NE(options.to_ask(SocketKind::kNew, AF_INET6).others, values);
  EXPECT_TRUE(options.to_ask(SocketKind::kOther, AF_INET).has_all());
}

TEST(KnownOptionsTest, WhatWasSetOnceIsAskedForEverAfter) {
  static KnownOptions options;
  options.set(IPPROTO_TCP, TCP_NODELAY);
  EXPECT_EQ(asked_for(options, SocketKind::kNew, AF_INET), row(IPPROTO_TCP, TCP_NODELAY));
  options.set(IPPROTO_IP, IP_TOS);
  options.set(SOL_SOCKET, SO_RCVBUF);
  options.set(SOL_SOCKET, SO_SNDTIMEO_NEW);
  options.set(SOL_SOCKET, 12345);
  EXPECT_EQ(asked_for(options, SocketKind::kNew, AF_INET),
            row(IPPROTO_TCP, TCP_NODELAY) | row(IPPROTO_IP, IP_TOS) | row(SOL_SOCKET, SO_PRIORITY) |
                row(SOL_SOCKET, SO_RCVBUF) | row(SOL_SOCKET, SO_BUF_LOCK) |
                row(SOL_SOCKET, SO_SNDTIMEO));
}

// As sysctl, and whoever decides for a control group, may change what sockets begin with.
TEST(KnownOptionsTest, NothingIsTrustedForMoreThanASecond) {
  static KnownOptions options;
  OptionValues values;
  values.fill(7);
  options.learn(AF_INET, values, 0);
  EXPECT_EQ(options.to_ask(SocketKind::kNew, AF_INET).others, values);
  std::this_thread::sleep_for(std::chrono::milliseconds(1001));
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(options.to_ask(SocketKind::kNew, AF_INET).others,
            sockets::read_values(fd.get(), AF_INET, {}));
}

TEST(KnownOptionsTest, WhoHasNoDescriptorToSpareAsksForAll) {
  static KnownOptions options;
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(options.to_ask(SocketKind::kNew, AF_INET).has_all());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(options.to_ask(SocketKind::kNew, AF_INET).has_all());
}

// What a control group gives to each new socket, as if it had been set.
TEST(KnownOptionsTest, WhatANewSocketHasBesidesIsFound) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(sockets::unlike_new(fd.get()), OptionRows{0});
  const int on = 1, bytes = 65536;
  ASSERT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_PRIORITY, &on, sizeof on), 0);
  ASSERT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on), 0);
  ASSERT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  EXPECT_EQ(sockets::unlike_new(fd.get()), row(SOL_SOCKET, SO_PRIORITY) |
                                               row(SOL_SOCKET, SO_ZEROCOPY) |
                                               row(SOL_SOCKET, SO_BUF_LOCK));
}

TEST(KnownOptionsTest, WhoReadsWhileAnotherLearnsHasOneOrTheOther) {
  static KnownOptions options;
  std::atomic<bool> done{false};
  std::thread learner([&done] {
    for (int i = 1; !done; ++i) {
      OptionValues values;
      values.fill(i);
      options.learn(AF_INET, values, 0);
    }
  });
  for (int compared = 0; compared < 500;) {
    const OptionsToAsk asked = options.to_ask(SocketKind::kNew, AF_INET);
    // All are to be asked for; or they are the kernel's, from before the first was learnt.
    const int first = asked.others.front();
    if (asked.has_all() || first == 0) continue;
    ++compared;
    EXPECT_TRUE(std::all_of(asked.others.begin(), asked.others.end(),
                            [first](int value) { return value == first; }));
  }
  done = true;
  learner.join();
}

// What TCP_KEEPIDLE begins with.
int idle_seconds() {
  int seconds = 0;
  std::ifstream("/proc/sys/net/ipv4/tcp_keepalive_time") >> seconds;
  return seconds;
}

class ConnectionsOfOneSecond : public ::testing::TestWithParam<int> {
 protected:
  ConnectionsOfOneSecond() : daemon(daemon_path()), family(GetParam()) {
    use_daemon(daemon_path());
    listener = listener_at(loopback(family), family);
    connection();
  }

  BothEnds connection(const std::function<void(int)>& prepare = {}) {
    return connection_to(listener, family, prepare);
  }

  FakeDaemon daemon;
  const int family;
  UniqueFd listener;
};

TEST_P(ConnectionsOfOneSecond, EachHasWhatWasSetOnItsSocketAlone) {
  for (const int seconds : {20, 30}) {
    const BothEnds with = connection([&](int fd) {
      set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
      set_option(fd, SOL_SOCKET, SO_OOBINLINE, 1);
    });
    EXPECT_EQ(option_value(with.client.get(), IPPROTO_TCP, TCP_KEEPIDLE), seconds);
    EXPECT_EQ(option_value(with.client.get(), SOL_SOCKET, SO_OOBINLINE), 1);
    const BothEnds without = connection();
    EXPECT_EQ(option_value(without.client.get(), IPPROTO_TCP, TCP_KEEPIDLE), idle_seconds());
    EXPECT_EQ(option_value(without.client.get(), SOL_SOCKET, SO_OOBINLINE), 0);
    EXPECT_EQ(option_value(with.server.get(), IPPROTO_TCP, TCP_KEEPIDLE), idle_seconds());
  }
}

TEST_P(ConnectionsOfOneSecond, EachHasWhatItsListenerHadThen) {
  set_option(listener.get(), IPPROTO_TCP, TCP_KEEPCNT, 5);
  EXPECT_EQ(option_value(connection().server.get(), IPPROTO_TCP, TCP_KEEPCNT), 5);
  set_option(listener.get(), IPPROTO_TCP, TCP_KEEPCNT, 6);
  EXPECT_EQ(option_value(connection().server.get(), IPPROTO_TCP, TCP_KEEPCNT), 6);
}

// Another process may have set whatever it likes on it.
TEST_P(ConnectionsOfOneSecond, AListenerThatCameInAnotherWayIsAskedForAll) {
  const int value = 5;
  listener = UniqueFd(::fcntl(listener.get(), F_DUPFD, 500));
  ASSERT_EQ(::setsockopt(listener.get(), IPPROTO_TCP, TCP_SYNCNT, &value, sizeof value), 0);
  EXPECT_EQ(option_value(connection().server.get(), IPPROTO_TCP, TCP_SYNCNT), 5);
}

INSTANTIATE_TEST_SUITE_P(Families, ConnectionsOfOneSecond, ::testing::Values(AF_INET, AF_INET6));

}  // namespace
}  // namespace mercury
