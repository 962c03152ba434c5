#include "transport/port/uring/socket.h"

#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>

#include "transport/port/port.h"

namespace mercury::uring {
namespace {

constexpr int kSocketBufferBytes = 8 * 1024 * 1024;

// The kernel caps the plain option at net.core.[rw]mem_max; root goes beyond.
void set_buffer(int fd, int forced, int plain) {
  if (setsockopt(fd, SOL_SOCKET, forced, &kSocketBufferBytes, sizeof kSocketBufferBytes) != 0) {
    setsockopt(fd, SOL_SOCKET, plain, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  }
}

uint64_t to_ns(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

bool set(int fd, int level, int option, int value) {
  return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

uint32_t mtu_of(int fd, const Endpoint& local) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return 1500;
  uint32_t mtu = 1500;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    Endpoint address;
    if (!one->ifa_addr || !read_source(one->ifa_addr, sizeof(sockaddr_in6), address)) continue;
    const bool loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    // All of 127.0.0.0/8 is the loopback interface's, whatever address it lists.
    const bool same =
        address.ip == local.ip || (loopback && local.ip.is_v4() && local.ip.v4_bytes()[0] == 127);
    if (!same) continue;
    ifreq request{};
    std::strncpy(request.ifr_name, one->ifa_name, IFNAMSIZ - 1);
    if (ioctl(fd, SIOCGIFMTU, &request) == 0) mtu = static_cast<uint32_t>(request.ifr_mtu);
    break;
  }
  freeifaddrs(all);
  return mtu;
}

// A killed process can be waited for before its io_uring, which holds the socket, is gone: the
// kernel ends that in the background (14 ms at most on two busy cores) and announces nothing. A
// daemon that is started again at once would find its own address taken.
constexpr auto kDyingSocketTime = std::chrono::seconds(1);
constexpr auto kBindInterval = std::chrono::milliseconds(5);

// False, and errno, as bind.
bool bind_when_free(int fd, const sockaddr_storage& address, socklen_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + kDyingSocketTime;
  while (bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    if (errno != EADDRINUSE || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kBindInterval);
  }
  return true;
}

Error closed(int fd, const std::string& what) {
  const int error = errno;
  ::close(fd);
  return Error::system(error, what);
}

// Frames beyond the path's MTU are dropped, not fragmented, and the kernel keeps no opinion of the
// path: Mercury probes it.
Result<int> open_socket(const Endpoint& local) {
  const bool v4 = local.ip.is_v4();
  const int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Error::system(errno, "UDP socket");
  const bool options = v4 ? set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE) &&
                                set(fd, IPPROTO_IP, IP_TOS, kEcnCapable)
                          : set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE) &&
                                set(fd, IPPROTO_IPV6, IPV6_TCLASS, kEcnCapable) &&
                                set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (!options) return closed(fd, "UDP socket options");
  set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF);
  return fd;
}

// Not, and the socket closed: an error that names the address, of a source port as that.
Status bind_to(int fd, const Endpoint& local, bool is_source) {
  sockaddr_storage address;
  const socklen_t bytes = write_address(local, address);
  if (bind_when_free(fd, address, bytes)) return {};
  if (is_source) {
    return closed(fd, "cannot send from " + local.to_string() +
                          ", one of port.source_ports (ss -ulpn shows who has it; or set "
                          "port.source_ports = 1, or another port.udp_port)");
  }
  const char* hint = errno == EADDRINUSE      ? " (ss -ulpn shows who does)"
                     : errno == EADDRNOTAVAIL ? " (ip address shows this host's addresses)"
                                              : "";
  return closed(fd, "cannot listen on " + local.to_string() + hint);
}

}  // namespace

socklen_t write_address(const Endpoint& endpoint, sockaddr_storage& out) {
  out = {};
  if (endpoint.ip.is_v4()) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(endpoint.port);
    std::memcpy(&four.sin_addr, endpoint.ip.bytes.data() + 12, 4);
    std::memcpy(&out, &four, sizeof four);
    return sizeof four;
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(endpoint.port);
  std::memcpy(&six.sin6_addr, endpoint.ip.bytes.data(), 16);
  std::memcpy(&out, &six, sizeof six);
  return sizeof six;
}

bool read_source(const void* name, uint32_t bytes, Endpoint& out) noexcept {
  sa_family_t family;
  if (bytes < sizeof family) return false;
  std::memcpy(&family, name, sizeof family);
  if (family == AF_INET && bytes >= sizeof(sockaddr_in)) {
    sockaddr_in four;
    std::memcpy(&four, name, sizeof four);
    uint8_t b[4];
    std::memcpy(b, &four.sin_addr, 4);
    out = {IpAddress::v4(b[0], b[1], b[2], b[3]), ntohs(four.sin_port)};
    return true;
  }
  if (family == AF_INET6 && bytes >= sizeof(sockaddr_in6)) {
    sockaddr_in6 six;
    std::memcpy(&six, name, sizeof six);
    std::memcpy(out.ip.bytes.data(), &six.sin6_addr, 16);
    out.port = ntohs(six.sin6_port);
    return true;
  }
  return false;
}

void read_control(const cmsghdr& control, ReceivedFacts& facts) noexcept {
  const void* data = CMSG_DATA(&control);
  if (control.cmsg_level == SOL_UDP && control.cmsg_type == UDP_GRO) {
    int bytes;
    std::memcpy(&bytes, data, sizeof bytes);
    facts.segment_bytes = static_cast<uint32_t>(std::max(bytes, 0));
  } else if ((control.cmsg_level == IPPROTO_IP && control.cmsg_type == IP_TOS) ||
             (control.cmsg_level == IPPROTO_IPV6 && control.cmsg_type == IPV6_TCLASS)) {
    uint8_t class_byte;  // an int for IPv6: its low byte comes first on a little-endian host
    std::memcpy(&class_byte, data, sizeof class_byte);
    facts.ecn_ce = (class_byte & kEcnMask) == kEcnCe;
  } else if (control.cmsg_level == SOL_SOCKET && control.cmsg_type == SCM_TIMESTAMPNS) {
    timespec at;
    std::memcpy(&at, data, sizeof at);
    facts.arrived_ns = to_ns(at);
  }
}

int64_t wall_ahead_ns() noexcept {
  timespec wall{};
  timespec monotonic{};
  clock_gettime(CLOCK_REALTIME, &wall);
  clock_gettime(CLOCK_MONOTONIC, &monotonic);
  return static_cast<int64_t>(to_ns(wall) - to_ns(monotonic));
}

uint32_t missed_datagrams(int fd) noexcept {
  std::array<uint32_t, SK_MEMINFO_VARS> memory{};
  socklen_t bytes = sizeof memory;
  getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory.data(), &bytes);  // before Linux 4.12: nothing
  return memory[SK_MEMINFO_DROPS];
}

Result<int> open_source(const Endpoint& local) {
  Result<int> fd = open_socket(local);
  if (!fd) return fd;
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop_all};
  if (setsockopt(*fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) {
    return closed(*fd, "filter of a UDP socket");
  }
  if (Status bound = bind_to(*fd, local, true); !bound) return bound.error();
  return fd;
}

Result<UdpSocket> open_udp(const Endpoint& local) {
  const Result<int> fd = open_socket(local);
  if (!fd) return fd.error();
  UdpSocket result;
  result.fd = *fd;
  const bool options = local.ip.is_v4() ? set(*fd, IPPROTO_IP, IP_RECVTOS, 1)
                                        : set(*fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  if (!options) return closed(*fd, "UDP socket options");
  set(*fd, SOL_UDP, UDP_GRO, 1);            // without it each frame comes alone
  set(*fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);  // without it nobody knows how long one has waited
  set_buffer(*fd, SO_RCVBUFFORCE, SO_RCVBUF);
  if (Status bound = bind_to(*fd, local, false); !bound) return bound.error();
  sockaddr_storage address;
  socklen_t length = sizeof address;
  if (getsockname(result.fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      !read_source(&address, length, result.local)) {
    return closed(*fd, "getsockname");
  }
  result.mtu = mtu_of(result.fd, local);
  return result;
}

}  // namespace mercury::uring
