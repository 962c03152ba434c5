#include "shim/socket/api/connections.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "shim/socket/api/descriptors.h"

namespace mercury::sockets {
namespace {

UniqueFd some_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

OwnConnection connection_of(int fd) {
  OwnConnection connection;
  connection.cookie = *cookie_of(fd);
  connection.id = connection.cookie + 1000;
  return connection;
}

// No test is about so many descriptors that others have none.
size_t descriptors_to_spare() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(limit.rlim_cur / 2, 3000);
}

TEST(Connections, AreFoundByTheSocketWhateverItsNumber) {
  Connections connections;
  EXPECT_TRUE(connections.empty());
  EXPECT_FALSE(connections.find(1));
  UniqueFd fd = some_socket();
  ASSERT_TRUE(connections.add(connection_of(fd.get())));
  const UniqueFd copy(::dup(fd.get()));
  const uint64_t cookie = *cookie_of(fd.get());
  fd.reset();
  EXPECT_EQ(connections.find(*cookie_of(copy.get()))->id, cookie + 1000);
  EXPECT_FALSE(connections.find(cookie + 1));
}

TEST(Connections, AreWithinTheHostOrNotWhateverWasAskedForLately) {
  Connections connections;
  constexpr uint64_t kSockets = 20000;  // more than are remembered without a lock
  const auto on_host = [](uint64_t cookie) { return cookie % 3 == 0; };
  for (uint64_t cookie = 1; cookie <= kSockets; ++cookie) {
    OwnConnection connection;
    connection.cookie = cookie;
    connection.on_host = on_host(cookie);
    ASSERT_FALSE(cookie % 2 == 0 && connections.is_on_host(kSockets + cookie));
    // Those that nobody has open are dropped as the table grows, and then asked for no more.
    ASSERT_TRUE(connections.add(connection));
    ASSERT_EQ(connections.is_on_host(cookie), on_host(cookie));
    ASSERT_EQ(connections.is_on_host(cookie), on_host(cookie));
  }
  EXPECT_FALSE(connections.is_on_host(kSockets + 1));
}

TEST(Connections, OpenOnesStayAndClosedOnesAreDropped) {
  Connections connections;
  std::vector<UniqueFd> open;
  const size_t most = descriptors_to_spare();
  for (size_t i = 0; i < most; ++i) {
    open.push_back(some_socket());
    ASSERT_TRUE(connections.add(connection_of(open.back().get())));
  }
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(connections.add(connection_of(some_socket().get())));
  }
  EXPECT_LE(connections.size(), 4 * most);
  for (const UniqueFd& fd : open) {
    const uint64_t cookie = *cookie_of(fd.get());
    const auto found = connections.find(cookie);
    ASSERT_TRUE(found);
    ASSERT_EQ(found->id, cookie + 1000);
  }
  open.clear();
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(connections.add(connection_of(some_socket().get())));
  }
}

// Neighbours in the table move as others are dropped, around its end too.
TEST(Connections, WhicheverAreDroppedTheOthersAreFound) {
  Connections connections;
  std::vector<UniqueFd> open;
  uint32_t random = 1;
  for (int i = 0; i < 20000; ++i) {
    random = random * 1664525 + 1013904223;
    if (open.size() > 40 || (random >> 16) % 3 == 0) {
      if (!open.empty()) open.erase(open.begin() + (random >> 20) % open.size());
      continue;
    }
    open.push_back(some_socket());
    ASSERT_TRUE(connections.add(connection_of(open.back().get())));
    for (const UniqueFd& fd : open) {
      const uint64_t cookie = *cookie_of(fd.get());
      ASSERT_EQ(connections.find(cookie)->id, cookie + 1000);
    }
  }
}

TEST(Connections, AFewNeverGrow) {
  Connections connections;
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(connections.add(connection_of(some_socket().get())));
    ASSERT_LE(connections.size(), 64U);
  }
}

TEST(Connections, ThreadsShareThem) {
  Connections connections;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&connections] {
      for (int i = 0; i < 500; ++i) {
        const UniqueFd fd = some_socket();
        const OwnConnection own = connection_of(fd.get());
        ASSERT_TRUE(connections.add(own));
        connections.set_value(own.cookie, 3, i);
        const auto found = connections.find(own.cookie);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->values[3], i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mercury::sockets
