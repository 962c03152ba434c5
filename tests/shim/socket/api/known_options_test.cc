// Which options are not asked for, and that connections have those that were set all the same.
#include "shim/socket/api/known_options.h"

#include <fcntl.h>
#include <linux/tcp.h>

#include <algorithm>
#include <chrono>
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

int get(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(mercury_getsockopt(fd, level, name, &value, &length), 0) << std::strerror(errno);
  return value;
}

void set(int fd, int level, int name, int value) {
  EXPECT_EQ(mercury_setsockopt(fd, level, name, &value, sizeof value), 0) << std::strerror(errno);
}

TEST(KnownOptionsTest, OnlyWhatWasLearntOfAKindIsNotAskedFor) {
  static KnownOptions options;
  EXPECT_TRUE(options.to_ask(SocketKind::kNew).has_all());
  OptionValues values{};
  values[40] = 7;
  options.learn(SocketKind::kNew, values, bit_of(3));
  const OptionsToAsk asked = options.to_ask(SocketKind::kNew);
  EXPECT_EQ(asked.rows, bit_of(3));
  EXPECT_EQ(asked.others, values);
  EXPECT_TRUE(options.to_ask(SocketKind::kNew6).has_all());
  EXPECT_TRUE(options.to_ask(SocketKind::kAccepted).has_all());
  options.learn(SocketKind::kOther, values, 0);
  EXPECT_TRUE(options.to_ask(SocketKind::kOther).has_all());
}

TEST(KnownOptionsTest, WhatWasSetOnceIsAskedForEverAfter) {
  static KnownOptions options;
  options.set(IPPROTO_TCP, TCP_NODELAY);
  options.learn(SocketKind::kNew, {}, 0);
  EXPECT_EQ(options.to_ask(SocketKind::kNew).rows, row(IPPROTO_TCP, TCP_NODELAY));
  options.set(IPPROTO_IP, IP_TOS);
  options.set(SOL_SOCKET, SO_RCVBUF);
  options.set(SOL_SOCKET, SO_SNDTIMEO_NEW);
  options.set(SOL_SOCKET, 12345);
  options.learn(SocketKind::kNew, {}, 0);
  EXPECT_EQ(options.to_ask(SocketKind::kNew).rows,
            row(IPPROTO_TCP, TCP_NODELAY) | row(IPPROTO_IP, IP_TOS) | row(SOL_SOCKET, SO_PRIORITY) |
                row(SOL_SOCKET, SO_RCVBUF) | row(SOL_SOCKET, SO_BUF_LOCK) |
                row(SOL_SOCKET, SO_SNDTIMEO));
}

TEST(KnownOptionsTest, NothingIsTrustedForMoreThanASecond) {
  static KnownOptions options;
  options.learn(SocketKind::kNew, {}, 0);
  EXPECT_FALSE(options.to_ask(SocketKind::kNew).has_all());
  std::this_thread::sleep_for(std::chrono::milliseconds(1001));
  EXPECT_TRUE(options.to_ask(SocketKind::kNew).has_all());
}

TEST(KnownOptionsTest, WhoReadsWhileAnotherLearnsHasOneOrTheOther) {
  static KnownOptions options;
  std::atomic<bool> done{false};
  std::thread learner([&done] {
    for (int i = 1; i < 20'000; ++i) {
      OptionValues values;
      values.fill(i);
      options.learn(SocketKind::kNew, values, 0);
    }
    done = true;
  });
  while (!done) {
    const OptionsToAsk asked = options.to_ask(SocketKind::kNew);
    if (asked.has_all()) continue;
    const int first = asked.others.front();
    EXPECT_TRUE(std::all_of(asked.others.begin(), asked.others.end(),
                            [first](int value) { return value == first; }));
  }
  learner.join();
}

class ConnectionsOfOneSecond : public ::testing::TestWithParam<int> {
 protected:
  ConnectionsOfOneSecond() : daemon(daemon_path()), family(GetParam()) {
    use_daemon(daemon_path());
    listener = listener_at(loopback(family), family);
    connection();
    const KnownOptions& options = sockets::process().options;
    EXPECT_FALSE(options.to_ask(sockets::new_socket(family)).has_all());
    EXPECT_FALSE(options.to_ask(sockets::accepted_socket(family)).has_all());
  }

  BothEnds connection(const std::function<void(int)>& prepare = {}) {
    BothEnds ends;
    ends.client = UniqueFd(mercury_socket(family, SOCK_STREAM, 0));
    if (prepare) prepare(ends.client.get());
    EXPECT_EQ(connect_to(ends.client.get(), name_of(listener.get()), family), 0);
    ends.server = UniqueFd(mercury_accept4(listener.get(), nullptr, nullptr, 0));
    EXPECT_TRUE(is_mercurys(ends.client.get()));
    EXPECT_TRUE(is_mercurys(ends.server.get()));
    return ends;
  }

  FakeDaemon daemon;
  const int family;
  UniqueFd listener;
};

TEST_P(ConnectionsOfOneSecond, EachHasWhatWasSetOnItsSocketAlone) {
  for (const int seconds : {20, 30}) {
    const BothEnds with = connection([&](int fd) {
      set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
      set(fd, SOL_SOCKET, SO_OOBINLINE, 1);
    });
    EXPECT_EQ(get(with.client.get(), IPPROTO_TCP, TCP_KEEPIDLE), seconds);
    EXPECT_EQ(get(with.client.get(), SOL_SOCKET, SO_OOBINLINE), 1);
    const BothEnds without = connection();
    EXPECT_EQ(get(without.client.get(), IPPROTO_TCP, TCP_KEEPIDLE), 7200);
    EXPECT_EQ(get(without.client.get(), SOL_SOCKET, SO_OOBINLINE), 0);
    EXPECT_EQ(get(with.server.get(), IPPROTO_TCP, TCP_KEEPIDLE), 7200);
  }
}

TEST_P(ConnectionsOfOneSecond, EachHasWhatItsListenerHadThen) {
  set(listener.get(), IPPROTO_TCP, TCP_KEEPCNT, 5);
  EXPECT_EQ(get(connection().server.get(), IPPROTO_TCP, TCP_KEEPCNT), 5);
  set(listener.get(), IPPROTO_TCP, TCP_KEEPCNT, 6);
  EXPECT_EQ(get(connection().server.get(), IPPROTO_TCP, TCP_KEEPCNT), 6);
}

// Another process may have set whatever it likes on it.
TEST_P(ConnectionsOfOneSecond, AListenerThatCameInAnotherWayIsAskedForAll) {
  const int value = 5;
  listener = UniqueFd(::fcntl(listener.get(), F_DUPFD, 500));
  ASSERT_EQ(::setsockopt(listener.get(), IPPROTO_TCP, TCP_SYNCNT, &value, sizeof value), 0);
  EXPECT_EQ(get(connection().server.get(), IPPROTO_TCP, TCP_SYNCNT), 5);
}

INSTANTIATE_TEST_SUITE_P(Families, ConnectionsOfOneSecond, ::testing::Values(AF_INET, AF_INET6));

}  // namespace
}  // namespace mercury
