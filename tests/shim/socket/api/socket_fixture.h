// A daemon of the test's own, and connections of this process to itself through it or the kernel.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "shim/channel/unique_fd.h"
#include "shim/socket/api/address.h"
#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/process.h"
#include "tests/shim/socket/api/fake_daemon.h"

namespace mercury {

inline std::string daemon_path() {
  return ::testing::TempDir() + "mercury-sockets-" + std::to_string(::getpid());
}

// Of this process, from now on.
inline void use_daemon(const std::string& path,
                       sockets::OnError on_error = sockets::OnError::kKernel,
                       const std::string& rules = "mercury") {
  sockets::Settings& settings = sockets::process().settings;
  settings.path.fill(0);
  std::memcpy(settings.path.data(), path.data(), path.size());
  settings.rules.fill(0);
  std::memcpy(settings.rules.data(), rules.data(), rules.size());
  settings.on_error = on_error;
}

// What a child of fork does; its failures are told and counted here.
inline void in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

inline SocketAddress address_of(const Endpoint& endpoint, int family) {
  SocketAddress address;
  sockets::give_address(family, endpoint, address.get(), &address.length);
  return address;
}

inline Endpoint loopback(int family, uint16_t port = 0) {
  return {family == AF_INET ? IpAddress::v4(127, 0, 0, 1) : *IpAddress::parse("::1"), port};
}

// Listens at a free port of the loopback.
inline UniqueFd listener_at(const Endpoint& at, int family, int flags = 0) {
  UniqueFd fd(mercury_socket(family, SOCK_STREAM | flags, 0));
  SocketAddress address = address_of(at, family);
  EXPECT_EQ(mercury_bind(fd.get(), address.get(), address.length), 0) << std::strerror(errno);
  EXPECT_EQ(mercury_listen(fd.get(), 64), 0) << std::strerror(errno);
  return fd;
}

inline Endpoint name_of(int fd) {
  SocketAddress address;
  EXPECT_EQ(mercury_getsockname(fd, address.get(), &address.length), 0) << std::strerror(errno);
  return sockets::endpoint_of(address.get(), address.length).value_or(Endpoint{});
}

inline Endpoint peer_of(int fd) {
  SocketAddress address;
  EXPECT_EQ(mercury_getpeername(fd, address.get(), &address.length), 0) << std::strerror(errno);
  return sockets::endpoint_of(address.get(), address.length).value_or(Endpoint{});
}

inline int connect_to(int fd, const Endpoint& remote, int family) {
  SocketAddress address = address_of(remote, family);
  return mercury_connect(fd, address.get(), address.length);
}

// A connection of this process to itself.
struct BothEnds {
  UniqueFd listener;
  UniqueFd client;
  UniqueFd server;
};

inline BothEnds both_ends(int family, const std::function<void(int)>& prepare = {}) {
  BothEnds ends;
  ends.listener = listener_at(loopback(family), family);
  ends.client = UniqueFd(mercury_socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (prepare) prepare(ends.client.get());
  EXPECT_EQ(connect_to(ends.client.get(), name_of(ends.listener.get()), family), 0)
      << std::strerror(errno);
  ends.server = UniqueFd(mercury_accept4(ends.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_GE(ends.server.get(), 0) << std::strerror(errno);
  return ends;
}

inline bool is_mercurys(int fd) { return sockets::process().find(fd).has_value(); }

// One of Mercury's to a listener that stays the caller's; `prepare`: before it connects.
inline BothEnds connection_to(const UniqueFd& listener, int family,
                              const std::function<void(int)>& prepare = {}) {
  BothEnds ends;
  ends.client = UniqueFd(mercury_socket(family, SOCK_STREAM, 0));
  if (prepare) prepare(ends.client.get());
  EXPECT_EQ(connect_to(ends.client.get(), name_of(listener.get()), family), 0);
  ends.server = UniqueFd(mercury_accept4(listener.get(), nullptr, nullptr, 0));
  EXPECT_TRUE(is_mercurys(ends.client.get()));
  EXPECT_TRUE(is_mercurys(ends.server.get()));
  return ends;
}

}  // namespace mercury
