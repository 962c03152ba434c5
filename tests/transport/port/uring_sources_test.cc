// The uring port's source ports, over real sockets.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/port/port_suite.h"
#include "transport/port/uring/socket.h"
#include "transport/port/uring/uring_port.h"

namespace mercury::uring {
namespace {

namespace fs = std::filesystem;

// Of ipv6(7): the kernel's header that names it and the C library's exclude each other.
constexpr int kFlowInfo = 11;

// At `ip`, and from a range of `count` ports that is free, as far as one can know.
std::unique_ptr<UringPort> open(const IpAddress& ip, uint16_t count, Counters& counters) {
  UringConfig config;
  config.local = {ip, 0};
  Result<std::unique_ptr<UringPort>> port = Error(Errc::kAgain, "");
  for (uint16_t first = 20'000; !port && first < 30'000; first = static_cast<uint16_t>(first + 7)) {
    config.source_ports = {first, count};
    port = UringPort::create(config, counters);
  }
  EXPECT_TRUE(port) << port.error().message;
  EXPECT_EQ((*port)->info().source_ports, config.source_ports);
  return std::move(*port);
}

// The path to `to` from where the port hears, and those from its source ports.
std::vector<PathId> paths_to(UringPort& port, const Endpoint& to) {
  std::vector<PathId> paths{*port.open_path(to)};
  const uint16_t count = port.info().source_ports.count;
  for (uint16_t i = 0; i < count; ++i) paths.push_back(*port.open_path_from(paths[0], i));
  EXPECT_FALSE(port.open_path_from(paths[0], count));
  return paths;
}

class UringSources : public testing::TestWithParam<const char*> {
 protected:
  const IpAddress ip_ = *IpAddress::parse(GetParam());
  Counters counters_;
};
INSTANTIATE_TEST_SUITE_P(BothFamilies, UringSources, testing::Values("127.0.0.1", "::1"));

// Frames that are joined in one system call leave from one port.
TEST_P(UringSources, FramesLeaveFromThemAndNoneIsHeardThere) {
  auto a = open(ip_, 3, counters_);
  auto b = std::move(*UringPort::create({.local = {ip_, 0}}, counters_));
  std::vector<uint16_t> expected;
  for (const PathId path : paths_to(*a, b->info().local)) {
    for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(port_suite::send(*a, path, i, 1000));
    const auto source = static_cast<uint16_t>(a->info().source_ports.first + expected.size() / 5);
    expected.insert(expected.end(), 5,
                    expected.empty() ? a->info().local.port : static_cast<uint16_t>(source - 1));
  }
  std::vector<port_suite::Received> received;
  for (int i = 0; i < 1000 && received.size() < expected.size(); ++i) {
    a->tx_flush(0);
    port_suite::receive(*b, received);
  }
  ASSERT_EQ(received.size(), expected.size());
  for (size_t i = 0; i < received.size(); ++i) {
    EXPECT_EQ(received[i].source, (Endpoint{ip_, expected[i]}));
    EXPECT_TRUE(port_suite::holds(received[i].bytes, static_cast<uint32_t>(i % 5)));
  }
  // The other way.
  for (uint16_t i = 0; i < 3; ++i) {
    const auto port = static_cast<uint16_t>(a->info().source_ports.first + i);
    ASSERT_TRUE(port_suite::send(*b, *b->open_path({ip_, port}), 1, 100));
  }
  ASSERT_TRUE(port_suite::send(*b, *b->open_path(a->info().local), 7, 100));
  received.clear();
  for (int i = 0; i < 1000 && received.empty(); ++i) {
    b->tx_flush(0);
    port_suite::receive(*a, received);
  }
  ASSERT_EQ(received.size(), 1U);
  EXPECT_TRUE(port_suite::holds(received[0].bytes, 7));
  EXPECT_EQ(counters_.get(Counter::kDropNetwork), 0U) << "nobody says that a port is closed";
  // They are this host's alone.
  UringConfig other;
  other.local = {ip_, a->info().source_ports.first};
  EXPECT_FALSE(UringPort::create(other, counters_));
}

TEST_P(UringSources, OneThatAnotherProgramHasIsNamedWithItsSetting) {
  auto first = std::move(*UringPort::create({.local = {ip_, 0}}, counters_));
  const Endpoint taken = first->info().local;
  auto port = UringPort::create({.local = {ip_, 0}, .source_ports = {taken.port, 1}}, counters_);
  ASSERT_FALSE(port);
  EXPECT_EQ(port.error().sys_errno, EADDRINUSE);
  for (const std::string& part :
       {"cannot send from " + taken.to_string(), std::string("set port.source_ports = 1")}) {
    EXPECT_NE(port.error().message.find(part), std::string::npos) << port.error().message;
  }
}

// Of this process, what the kernel lets its UDP sockets hold of what they send.
std::multiset<int> send_buffers() {
  std::multiset<int> all;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int protocol = 0, bytes = 0;
    socklen_t size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0) continue;
    if (protocol != IPPROTO_UDP) continue;
    EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
    all.insert(bytes);
  }
  return all;
}

// A run's frames leave from one of them: each takes as many as the only one would.
TEST_P(UringSources, EachMayHoldWhatTheOnlyOneMay) {
  std::multiset<int> one;
  {
    auto port = std::move(*UringPort::create({.local = {ip_, 0}}, counters_));
    one = send_buffers();
  }
  ASSERT_EQ(one.size(), 1U);
  auto port = open(ip_, 15, counters_);
  const std::multiset<int> all = send_buffers();
  EXPECT_EQ(all.count(*one.begin()), 16U);
  EXPECT_EQ(all.size(), 16U);
}

// Routers may choose a path by it alone (RFC 6438): the kernel gives each socket another.
TEST(UringSources6, EachHasAFlowLabelOfItsOwn) {
  std::ifstream setting("/proc/sys/net/ipv6/auto_flowlabels");
  int automatic = 0;
  setting >> automatic;
  if (automatic != 1 && automatic != 2) GTEST_SKIP() << "net.ipv6.auto_flowlabels = " << automatic;
  Counters counters;
  auto port = open(*IpAddress::parse("::1"), 15, counters);
  const int fd = socket(AF_INET6, SOCK_DGRAM, 0);
  const int on = 1;
  ASSERT_EQ(setsockopt(fd, IPPROTO_IPV6, kFlowInfo, &on, sizeof on), 0);
  sockaddr_storage address;
  socklen_t bytes = write_address({port->info().local.ip, 0}, address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  bytes = sizeof address;
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  Endpoint to;
  ASSERT_TRUE(read_source(&address, bytes, to));
  const std::vector<PathId> paths = paths_to(*port, to);
  for (int round = 0; round < 2; ++round) {
    for (const PathId path : paths) ASSERT_TRUE(port_suite::send(*port, path, 1, 100));
  }
  std::set<uint32_t> labels;
  for (size_t i = 0; i < 2 * paths.size(); ++i) {
    port->tx_flush(0);
    std::array<std::byte, 1000> data{};
    alignas(cmsghdr) std::array<std::byte, 256> control{};
    iovec part{data.data(), data.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ASSERT_EQ(recvmsg(fd, &message, 0), 100);
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      uint32_t flow = 0;
      if (at->cmsg_level != IPPROTO_IPV6 || at->cmsg_type != kFlowInfo) continue;
      std::memcpy(&flow, CMSG_DATA(at), sizeof flow);
      labels.insert(ntohl(flow) & 0xfffff);
    }
  }
  close(fd);
  EXPECT_EQ(labels.size(), paths.size());
  EXPECT_FALSE(labels.contains(0));
}

}  // namespace
}  // namespace mercury::uring
