// A uring port on a real socket, and the kernel's own socket beside it.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "transport/port/uring/socket.h"
#include "transport/port/uring/uring_port.h"

namespace mercury::uring {

inline std::unique_ptr<UringPort> open(const char* address, Counters& counters) {
  auto port = UringPort::create({.local = *Endpoint::parse(address)}, counters);
  EXPECT_TRUE(port) << port.error().message;
  return std::move(*port);
}

// A plain socket of the kernel's on the same loopback, to look at the port from outside.
class PlainSocket {
 public:
  explicit PlainSocket(const Endpoint& like) : v4_(like.ip.is_v4()) {
    fd_ = socket(v4_ ? AF_INET : AF_INET6, SOCK_DGRAM, 0);
    const Endpoint any{like.ip, 0};
    sockaddr_storage address;
    const socklen_t bytes = write_address(any, address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    const int on = 1;
    setsockopt(fd_, v4_ ? IPPROTO_IP : IPPROTO_IPV6, v4_ ? IP_RECVTOS : IPV6_RECVTCLASS, &on,
               sizeof on);
    socklen_t length = sizeof address;
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    EXPECT_TRUE(read_source(&address, length, local_));
  }
  ~PlainSocket() { ::close(fd_); }
  const Endpoint& local() const { return local_; }
  void send(const Endpoint& to, int traffic_class, size_t bytes) {
    setsockopt(fd_, v4_ ? IPPROTO_IP : IPPROTO_IPV6, v4_ ? IP_TOS : IPV6_TCLASS, &traffic_class,
               sizeof traffic_class);
    sockaddr_storage address;
    const socklen_t length = write_address(to, address);
    const std::vector<char> data(bytes);
    EXPECT_EQ(sendto(fd_, data.data(), bytes, 0, reinterpret_cast<sockaddr*>(&address), length),
              static_cast<ssize_t>(bytes));
  }
  // The traffic class of the next datagram.
  int receive_class() {
    char data[64];
    alignas(cmsghdr) char control[64];
    iovec part{data, sizeof data};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    EXPECT_GE(recvmsg(fd_, &message, 0), 0);
    uint8_t value = 0xff;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      std::memcpy(&value, CMSG_DATA(c), 1);
    }
    return value;
  }

 private:
  bool v4_;
  int fd_;
  Endpoint local_;
};

}  // namespace mercury::uring
