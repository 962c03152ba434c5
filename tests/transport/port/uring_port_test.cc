// The uring port over real sockets: what it adds to port_suite.h.
#include "transport/port/uring/uring_port.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/port/port_suite.h"
#include "tests/transport/port/uring_lab.h"
#include "transport/port/uring/socket.h"

namespace mercury::uring {
namespace {

using port_suite::await;
using port_suite::holds;
using port_suite::receive;
using port_suite::Received;
using port_suite::send;

// Loopback delivers inside the sender's system call: what is sent can be received at once.
template <bool kV4>
struct Lab {
  static constexpr const char* kAddress = kV4 ? "127.0.0.1:0" : "[::1]:0";
  UringPort& a() { return *port_a; }
  UringPort& b() { return *port_b; }
  void step() {
    pollfd fds[2] = {{port_a->wait_fd(), POLLIN, 0}, {port_b->wait_fd(), POLLIN, 0}};
    port_a->prepare_sleep();
    port_b->prepare_sleep();
    poll(fds, 2, 0);
  }
  static Endpoint other_family() { return *Endpoint::parse(kV4 ? "[::1]:9" : "127.0.0.1:9"); }

  Counters counters_a, counters_b;
  std::unique_ptr<UringPort> port_a = open(kAddress, counters_a);
  std::unique_ptr<UringPort> port_b = open(kAddress, counters_b);
};
using LabV4 = Lab<true>;
using LabV6 = Lab<false>;
}  // namespace
}  // namespace mercury::uring

namespace mercury::port_suite {
INSTANTIATE_TYPED_TEST_SUITE_P(UringV4, PortSuite, uring::LabV4);
INSTANTIATE_TYPED_TEST_SUITE_P(UringV6, PortSuite, uring::LabV6);
}  // namespace mercury::port_suite

namespace mercury::uring {
namespace {

TEST(UringPort, CarriesJumboFramesOverLoopback) {
  Lab<true> v4;
  EXPECT_EQ(v4.a().info().max_udp_payload, 8972u);
  EXPECT_TRUE(v4.a().info().flush_is_system_call);
  Lab<false> v6;
  EXPECT_EQ(v6.a().info().max_udp_payload, 8952u);
}

TEST(UringPort, TheDescriptorWakesOnFrames) {
  Lab<true> lab;
  const PathId path = *lab.a().open_path(lab.b().info().local);
  EXPECT_TRUE(lab.b().prepare_sleep());
  pollfd fd{lab.b().wait_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  ASSERT_TRUE(send(lab.a(), path, 1, 100));
  lab.a().tx_flush(0);
  EXPECT_EQ(poll(&fd, 1, 10'000), 1);
  EXPECT_FALSE(lab.b().prepare_sleep());
}

uint64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

struct Waiting {
  uint64_t from_ns = 0;  // it came between these two
  uint64_t to_ns = 0;
  uint64_t pass_ns = 0;  // when the pass that takes it began
  uint64_t waited_ns = 0;
};

// By which clocks may differ that are read one after the other.
constexpr int64_t kClocksNs = 1'000'000;

// A frame comes, and a pass takes it that is said to begin at `pass_ns(from, to)`; so nothing here
// waits. Again while somebody sets the wall clock meanwhile.
template <class F>
Waiting take_one(F pass_ns) {
  Lab<true> lab;
  const PathId path = *lab.a().open_path(lab.b().info().local);
  std::array<RxFrame, 4> burst;
  for (;;) {
    Waiting seen;
    EXPECT_EQ(lab.b().rx_burst(burst, monotonic_ns() - 1'000'000'000), 0U);
    const int64_t ahead_ns = wall_ahead_ns();
    seen.from_ns = monotonic_ns();
    EXPECT_TRUE(send(lab.a(), path, 1, 100));
    lab.a().tx_flush(0);
    pollfd fd{lab.b().wait_fd(), POLLIN, 0};
    while (poll(&fd, 1, -1) != 1) continue;
    seen.to_ns = monotonic_ns();
    seen.pass_ns = pass_ns(seen.from_ns, seen.to_ns);
    EXPECT_EQ(lab.b().rx_burst(burst, seen.pass_ns), 1U);
    EXPECT_FALSE(burst[0].at_most);
    seen.waited_ns = burst[0].waited_ns;
    lab.b().rx_release();
    const bool clock_was_set = std::abs(wall_ahead_ns() - ahead_ns) > kClocksNs;
    if (!clock_was_set || testing::Test::HasFailure()) return seen;
  }
}

TEST(UringPort, SaysHowLongAFrameHasWaited) {
  constexpr uint64_t kLaterNs = 50 * kClocksNs;
  Waiting seen;
  for (int i = 0; i < 10 && seen.waited_ns < kLaterNs - kClocksNs; ++i) {
    seen = take_one([](uint64_t, uint64_t to_ns) { return to_ns + kLaterNs; });
    EXPECT_LE(seen.waited_ns, seen.pass_ns - seen.from_ns + kClocksNs);
  }
  EXPECT_GE(seen.waited_ns, kLaterNs - kClocksNs);
}

// It takes frames that have come since it began: they have not waited. The engine counts what goes
// by from there.
TEST(UringPort, WhatComesWhileAPassGoesOnHasNotWaited) {
  const Waiting seen = take_one([](uint64_t from_ns, uint64_t) { return from_ns; });
  EXPECT_EQ(seen.waited_ns, 0U);
}

// Made here, driven there, destroyed here: as the control thread and an engine do.
TEST(UringPort, AnotherThreadMayDriveItAndItsAddressIsFreeAfterwards) {
  Counters counters;
  auto echo = open("127.0.0.1:0", counters);
  auto peer = open("127.0.0.1:0", counters);
  const Endpoint address = echo->info().local;
  const PathId to_echo = *peer->open_path(address);
  const PathId to_peer = *echo->open_path(peer->info().local);
  for (int round = 0; round < 20; ++round) {
    std::vector<Received> echoed;
    std::thread engine([&] {
      while (echoed.empty()) {
        receive(*echo, echoed);
        pollfd fd{echo->wait_fd(), POLLIN, 0};
        if (echoed.empty() && echo->prepare_sleep()) poll(&fd, 1, 10'000);
      }
      send(*echo, to_peer, 2, 50);
      echo->tx_flush(0);
    });
    EXPECT_TRUE(send(*peer, to_echo, 1, 60));
    peer->tx_flush(0);
    engine.join();
    std::vector<Received> back;
    while (back.empty()) {
      receive(*peer, back);
      pollfd fd{peer->wait_fd(), POLLIN, 0};
      if (back.empty() && peer->prepare_sleep() && poll(&fd, 1, 10'000) == 0) break;
    }
    ASSERT_EQ(back.size(), 1u);
    echo.reset();
    echo = open(address.to_string().c_str(), counters);
    ASSERT_EQ(*echo->open_path(peer->info().local), to_peer);
  }
}

TEST(UringPort, ManyPortsInOneProcessOnAddressesOf127) {
  Counters counters;
  std::vector<std::unique_ptr<UringPort>> ports;
  for (int i = 1; i <= 8; ++i) {
    ports.push_back(open(("127.0.7." + std::to_string(i) + ":7470").c_str(), counters));
    ASSERT_TRUE(ports.back());
  }
  for (auto& from : ports) {
    for (auto& to : ports) {
      ASSERT_TRUE(send(*from, *from->open_path(to->info().local), 1, 100));
    }
    from->tx_flush(0);
  }
  for (auto& port : ports) {
    std::vector<Received> received;
    for (int i = 0; i < 100 && received.size() < ports.size(); ++i) receive(*port, received);
    EXPECT_EQ(received.size(), ports.size());
  }
}

TEST(UringPort, CreateSaysWhatIsWrong) {
  Counters counters;
  auto first = open("127.0.0.1:0", counters);
  const auto error_of = [&](const UringConfig& config) {
    auto port = UringPort::create(config, counters);
    EXPECT_FALSE(port);
    return port ? Error(Errc::kOk, "") : port.error();
  };
  const Error in_use = error_of({.local = first->info().local});
  EXPECT_EQ(in_use.sys_errno, EADDRINUSE);
  EXPECT_NE(in_use.message.find(first->info().local.to_string()), std::string::npos);
  EXPECT_EQ(error_of({.local = *Endpoint::parse("192.0.2.1:7470")}).sys_errno, EADDRNOTAVAIL);
  EXPECT_EQ(error_of({.local = *Endpoint::parse("0.0.0.0:7470")}).code, Errc::kInvalidArgument);
  EXPECT_EQ(error_of({.local = *Endpoint::parse("127.0.0.1"), .tx_frames = 100}).code,
            Errc::kInvalidArgument);
}

// The kernel takes a killed process's ring apart in the background, with the socket in it.
TEST(UringPort, TakesOverTheAddressOfAProcessThatWasKilled) {
  const Endpoint local = *Endpoint::parse("127.0.7.99:7470");
  for (int i = 0; i < 20; ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      Counters counters;
      auto port = UringPort::create({.local = local}, counters);
      std::array<RxFrame, 1> burst;
      if (port) (*port)->rx_burst(burst, 0);  // the ring holds the socket from here on
      if (!port || write(ready[1], "r", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the address of round " << i - 1 << " is not free";
    close(ready[0]);
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
  }
}

TEST(UringPort, AClosedPeerIsNoError) {
  Lab<true> lab;
  Counters counters;
  auto gone = open("127.0.0.1:0", counters);
  const PathId nobody = *lab.a().open_path(gone->info().local);
  gone.reset();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(send(lab.a(), nobody, 1, 100));
    lab.a().tx_flush(0);
  }
  const PathId path = *lab.a().open_path(lab.b().info().local);
  ASSERT_TRUE(send(lab.a(), path, 2, 100));
  EXPECT_EQ(await(lab, lab.b(), 1).size(), 1u);
}

// The kernel refuses to broadcast for a socket that did not ask to.
TEST(UringPort, WhatTheKernelRefusesIsCountedAndHoldsNothingUp) {
  Lab<true> lab;
  const PathId refused = *lab.a().open_path(*Endpoint::parse("127.255.255.255:7470"));
  const PathId path = *lab.a().open_path(lab.b().info().local);
  for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(send(lab.a(), i % 2 ? path : refused, i, 100));
  EXPECT_EQ(await(lab, lab.b(), 3).size(), 3u);
  EXPECT_EQ(lab.counters_a.get(Counter::kDropNetwork), 3u);
}

TEST(UringPort, AFrameIsNotSentToWhoeverGotItsPathsPlace) {
  Lab<true> lab;
  Counters counters;
  auto other = open("127.0.0.1:0", counters);
  const PathId path = *lab.a().open_path(lab.b().info().local);
  ASSERT_TRUE(send(lab.a(), path, 1, 100));
  lab.a().close_path(path);
  const PathId next = *lab.a().open_path(other->info().local);
  ASSERT_TRUE(send(lab.a(), next, 2, 100));
  lab.a().tx_flush(0);
  const PathId back = *lab.a().open_path(lab.b().info().local);
  EXPECT_EQ(back, path) << "nothing waits for it: the place is free";
  ASSERT_TRUE(send(lab.a(), back, 3, 100));
  EXPECT_EQ(await(lab, lab.b(), 1).size(), 1U);
  RxFrame burst[8];
  uint32_t arrived = 0;
  for (int i = 0; i < 1000 && arrived == 0; ++i) arrived = other->rx_burst(burst, 0);
  EXPECT_EQ(arrived, 1U) << "its own alone";
  EXPECT_EQ(other->rx_burst(burst, 0), 0U);
  other->rx_release();
}

// As where the socket is full, and every HELLO that comes is refused over a path of its own.
TEST(UringPort, PathsThatComeAndGoWhileFramesWaitTakeNoMorePlacesThanThereAreFrames) {
  Lab<true> lab;
  constexpr uint32_t kWaiting = 20;
  const Endpoint peer = lab.b().info().local;
  for (uint32_t i = 0; i < kWaiting; ++i) {
    const PathId path = *lab.a().open_path(peer);
    ASSERT_TRUE(send(lab.a(), path, i, 100));
    lab.a().close_path(path);
  }
  for (uint32_t i = 0; i < 10'000; ++i) {
    const PathId path = *lab.a().open_path(peer);
    ASSERT_LE(path.value, kWaiting);
    TxFrame frame;
    ASSERT_TRUE(lab.a().tx_alloc(frame));
    lab.a().tx_cancel(frame);
    lab.a().close_path(path);
    lab.a().close_path(path);  // says nothing new
  }
  lab.a().tx_flush(0);
  std::set<uint32_t> open;
  for (uint32_t i = 0; i <= kWaiting; ++i) open.insert(lab.a().open_path(peer)->value);
  EXPECT_EQ(open.size(), kWaiting + 1) << "each its own";
  EXPECT_EQ(*open.rbegin(), kWaiting);
}

TEST(UringPort, DestructionReleasesPinsOfWhatWasNeverSent) {
  Lab<true> lab;
  std::vector<std::byte> payload(100);
  PayloadPin pin;
  TxFrame frame;
  ASSERT_TRUE(lab.a().tx_alloc(frame));
  lab.a().tx_send_shared(frame, 8, *lab.a().open_path(lab.b().info().local), payload, pin);
  lab.port_a.reset();
  EXPECT_FALSE(lab.b().pin_busy(pin));
}

template <class L>
void expect_ecn_both_ways() {
  L lab;
  PlainSocket plain(lab.a().info().local);
  ASSERT_TRUE(send(lab.a(), *lab.a().open_path(plain.local()), 1, 32));
  lab.a().tx_flush(0);
  EXPECT_EQ(plain.receive_class(), 2) << "frames must be marked as ECN-capable";
  std::array<RxFrame, 4> burst;
  for (const auto& [traffic_class, ce] : {std::pair{0, false}, {2, false}, {3, true}}) {
    plain.send(lab.a().info().local, traffic_class, 16);
    uint32_t count = 0;
    for (int i = 0; i < 1000 && count == 0; ++i) count = lab.a().rx_burst(burst, 0);
    ASSERT_EQ(count, 1u);
    EXPECT_EQ(burst[0].ecn_ce, ce) << traffic_class;
    lab.a().rx_release();
  }
  // Nothing in it: no frame, a count.
  plain.send(lab.a().info().local, 0, 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(lab.a().rx_burst(burst, 0), 0u);
  EXPECT_EQ(lab.counters_a.get(Counter::kDropTruncated), 1u);
}

TEST(UringPort, MarksAndReadsEcnOverIPv4) { expect_ecn_both_ways<LabV4>(); }
TEST(UringPort, MarksAndReadsEcnOverIPv6) { expect_ecn_both_ways<LabV6>(); }

// More frames at once than there are receive buffers: multishot ends and begins again.
TEST(UringPort, RunsOutOfReceiveBuffersAndRecovers) {
  Counters counters;
  auto port = UringPort::create(
      {.local = *Endpoint::parse("127.0.0.1"), .tx_frames = 8, .rx_buffers = 4}, counters);
  ASSERT_TRUE(port);
  PlainSocket plain((*port)->info().local);
  std::array<RxFrame, 64> burst;
  EXPECT_EQ((*port)->rx_burst(burst, 0), 0u);
  for (int i = 0; i < 50; ++i) plain.send((*port)->info().local, i % 2 * 2, 100);
  uint32_t got = 0;
  for (int i = 0; i < 1000 && got < 50; ++i) {
    got += (*port)->rx_burst(burst, 0);
    (*port)->rx_release();
  }
  EXPECT_EQ(got, 50u);
}

// What finds no room in the socket's buffer is lost, counted within a second, and nothing else is.
TEST(UringPort, CountsWhatFindsNoRoom) {
  Counters counters;
  auto port = open("127.0.0.1:0", counters);
  PlainSocket plain(port->info().local);
  port->tick(1);
  constexpr uint32_t kSent = 20000;
  for (uint32_t i = 0; i < kSent; ++i) plain.send(port->info().local, 2, 8000);
  port->tick(2);
  EXPECT_EQ(counters.get(Counter::kDropNoBuffer), 0u);  // not asked so often
  std::array<RxFrame, 64> burst;
  uint32_t got = 0;
  for (uint32_t more = 1, idle = 0; idle<10; idle = more> 0 ? 0 : idle + 1) {
    got += more = port->rx_burst(burst, 0);
    port->rx_release();
  }
  EXPECT_GT(got, 0u);
  EXPECT_LT(got, kSent);
  port->tick(1'000'000'001);
  EXPECT_EQ(counters.get(Counter::kDropNoBuffer), kSent - got);
  port->tick(2'000'000'001);
  EXPECT_EQ(counters.get(Counter::kDropNoBuffer), kSent - got);
}

bool set_loopback(int mtu) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  request.ifr_name[0] = 'l';
  request.ifr_name[1] = 'o';
  request.ifr_mtu = mtu;
  bool done = ioctl(fd, SIOCSIFMTU, &request) == 0;
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  done &= ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  ::close(fd);
  return done;
}

// Runs in a user and network namespace of its own, without privileges outside of it, and with
// little locked memory (which rings of earlier tests may still use: they go in the background). Its
// exit status is the test's verdict.
int shrinking_route() {
  const rlimit limit{1 << 20, 1 << 20};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !set_loopback(9000)) return 2;
  Lab<true> lab;
  if (!lab.port_a || !lab.port_b || lab.a().info().max_udp_payload != 8972) return 3;
  const PathId path = *lab.a().open_path(lab.b().info().local);
  if (!set_loopback(1500)) return 4;
  // A batch of the old size is refused whole, then frame by frame; smaller frames still go.
  for (uint32_t i = 0; i < 8; ++i) send(lab.a(), path, i, 4000);
  if (!await(lab, lab.b(), 1).empty()) return 5;
  if (lab.counters_a.get(Counter::kDropTooLarge) != 8) return 6;
  for (uint32_t i = 0; i < 8; ++i) send(lab.a(), path, i, i % 2 ? 1472 : 1473);
  auto received = await(lab, lab.b(), 4);
  for (uint32_t i = 0; i < 8; ++i) send(lab.a(), path, 2 * i + 9, 1000);
  for (Received& one : await(lab, lab.b(), 8)) received.push_back(std::move(one));
  if (received.size() != 12) return 7;
  for (uint32_t i = 0; i < 12; ++i) {
    if (!holds(received[i].bytes, i * 2 + 1)) return 8;
  }
  if (lab.counters_a.get(Counter::kDropTooLarge) != 12) return 9;
  TxFrame frame;
  for (int i = 0; i < 512; ++i) {
    if (!lab.a().tx_alloc(frame)) return 10;  // every buffer has come back
  }
  return testing::Test::HasFailure() ? 1 : 0;
}

// What a kernel before 5.19 says of the ring's flags. The filter is of this thread alone.
void refuse_rings_as_old_kernels() {
  std::array<sock_filter, 4> rules = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{static_cast<unsigned short>(rules.size()), rules.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(UringPort, AKernelThatKnowsNotTheRingsFlagsIsTooOld) {
  std::thread([] {
    refuse_rings_as_old_kernels();
    Counters counters;
    const auto port = UringPort::create({.local = *Endpoint::parse("127.0.0.1:0")}, counters);
    ASSERT_FALSE(port);
    EXPECT_EQ(port.error().code, Errc::kUnsupported);
    EXPECT_NE(port.error().message.find("needs Linux 6.0"), std::string::npos)
        << port.error().message;
  }).join();
}

TEST(UringPort, WorksUnprivilegedAndDropsWhatTheRouteNoLongerCarries) {
  constexpr int kNoNamespaces = 77;
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(kNoNamespaces);
    _exit(shrinking_route());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespaces) GTEST_SKIP() << "no user namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace mercury::uring
