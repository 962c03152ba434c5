// Which socket hears of a connection, by what the kernel says: beside what it does.
#include "apps/stackd/listening_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shim/channel/unique_fd.h"

namespace mercury {
namespace {

struct Listener {
  UniqueFd fd;
  uint64_t cookie = 0;
  uint16_t port = 0;
};

void set(int fd, int level, int name, int value) {
  ASSERT_EQ(setsockopt(fd, level, name, &value, sizeof value), 0) << name;
}

static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

Listener listen_at(UniqueFd socket, const sockaddr* at, socklen_t bytes) {
  Listener listener{std::move(socket)};
  const int fd = listener.fd.get();
  EXPECT_EQ(bind(fd, at, bytes), 0);
  EXPECT_EQ(listen(fd, 8), 0);
  sockaddr_in6 name{};  // IPv4's has its port at the same place
  socklen_t length = sizeof name;
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length), 0);
  listener.port = ntohs(name.sin6_port);
  length = sizeof listener.cookie;
  EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &listener.cookie, &length), 0);
  return listener;
}

// IPv4's by itself; `shared`: with SO_REUSEPORT; `device`: bound to it.
Listener listen_v4(const char* address, uint16_t port, bool shared = false,
                   const std::string& device = "") {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (shared) set(socket.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  if (!device.empty()) {
    EXPECT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_BINDTODEVICE, device.data(),
                         static_cast<socklen_t>(device.size())),
              0);
  }
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  inet_pton(AF_INET, address, &at.sin_addr);
  return listen_at(std::move(socket), reinterpret_cast<const sockaddr*>(&at), sizeof at);
}

// At all addresses of both families.
Listener listen_dual() {
  UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  return listen_at(std::move(socket), reinterpret_cast<const sockaddr*>(&at), sizeof at);
}

Endpoint local(uint16_t port) { return {IpAddress::v4(127, 0, 0, 1), port}; }

class ListeningSocketsTest : public testing::Test {
 protected:
  Errc check(const Listener& listener, const Endpoint& at) {
    const Status status = sockets_.check(listener.cookie, at);
    return status ? Errc::kOk : status.error().code;
  }
  ListeningSockets sockets_;
};

TEST_F(ListeningSocketsTest, OneAloneHearsOfItUntilItIsClosed) {
  for (const char* address : {"127.0.0.1", "0.0.0.0"}) {
    Listener listener = listen_v4(address, 0);
    EXPECT_EQ(check(listener, local(listener.port)), Errc::kOk) << address;
    Listener other = listen_v4("127.0.0.1", 0);
    EXPECT_EQ(check(listener, local(other.port)), Errc::kNotFound);
    listener.fd.reset();
    EXPECT_EQ(check(listener, local(listener.port)), Errc::kNotFound);
  }
}

TEST_F(ListeningSocketsTest, OneForBothFamiliesHearsOfEither) {
  const Listener listener = listen_dual();
  EXPECT_EQ(check(listener, local(listener.port)), Errc::kOk);
  EXPECT_EQ(check(listener, *Endpoint::parse("[::1]:" + std::to_string(listener.port))), Errc::kOk);
}

TEST_F(ListeningSocketsTest, OneAtTheVeryAddressGoesBeforeOneAtAll) {
  const Listener all = listen_v4("0.0.0.0", 0, true);
  const Listener exact = listen_v4("127.0.0.1", all.port, true);
  EXPECT_EQ(check(exact, local(all.port)), Errc::kOk);
  EXPECT_EQ(check(all, local(all.port)), Errc::kBusy);
  EXPECT_EQ(check(all, {IpAddress::v4(127, 0, 0, 2), all.port}), Errc::kOk);
}

TEST_F(ListeningSocketsTest, OneThatIsBoundToTheInterfaceGoesBeforeOneAtAll) {
  const Listener all = listen_v4("0.0.0.0", 0, true);
  const Listener bound = listen_v4("127.0.0.1", all.port, true, "lo");
  EXPECT_EQ(check(all, local(all.port)), Errc::kBusy);
  EXPECT_EQ(check(bound, local(all.port)), Errc::kOk);
}

TEST_F(ListeningSocketsTest, ThoseThatShareAnAddressAllHearOfIt) {
  std::vector<Listener> listeners;
  listeners.push_back(listen_v4("127.0.0.1", 0, true));
  for (int i = 0; i < 3; ++i) {
    listeners.push_back(listen_v4("127.0.0.1", listeners[0].port, true));
  }
  for (const Listener& one : listeners) EXPECT_EQ(check(one, local(one.port)), Errc::kOk);
}

// The kernel names one of them at a time, and it may be any.
TEST_F(ListeningSocketsTest, OneThatHasClosedIsNotMissedWhileThoseThatShareItsAddressListen) {
  Listener gone = listen_v4("127.0.0.1", 0, true);
  const Listener left = listen_v4("127.0.0.1", gone.port, true);
  const Listener stranger = listen_v4("127.0.0.1", 0);
  gone.fd.reset();
  EXPECT_EQ(check(gone, local(gone.port)), Errc::kNotFound);
  const auto check = [&](uint64_t sharing) {
    return sockets_.check(gone.cookie, local(gone.port),
                          [sharing](uint64_t cookie) { return cookie == sharing; });
  };
  EXPECT_TRUE(check(left.cookie));
  EXPECT_FALSE(check(stranger.cookie));
}

// To the kernel this cookie means any socket.
TEST_F(ListeningSocketsTest, ACookieOfAllOnesIsNobodys) {
  const Listener listener = listen_v4("127.0.0.1", 0);
  EXPECT_FALSE(sockets_.check(~uint64_t{0}, local(listener.port)));
}

TEST_F(ListeningSocketsTest, AllThatListenHaveTheirCookies) {
  const Listener one = listen_v4("127.0.0.1", 0);
  const Listener other = listen_dual();
  const auto cookies = sockets_.cookies();
  ASSERT_TRUE(cookies);
  EXPECT_TRUE(cookies->contains(one.cookie));
  EXPECT_TRUE(cookies->contains(other.cookie));
}

}  // namespace
}  // namespace mercury
