#include "transport/port/ethdev/kernel_guard.h"

#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace mercury::ethdev {
namespace {

bool attach_filter(int fd, sock_filter* code, size_t length) {
  const sock_fprog program{static_cast<unsigned short>(length), code};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0;
}

int bind_v4(const Endpoint& local) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(local.port);
  std::memcpy(&address.sin_addr, &local.ip.bytes[12], 4);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

int bind_v6(const Endpoint& local) {
  const int fd = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return fd;
  const int on = 1;
  ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  // An address that duplicate address detection has not finished with can be held already.
  ::setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof(on));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(local.port);
  std::memcpy(&address.sin6_addr, local.ip.bytes.data(), 16);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

}  // namespace

KernelGuard::~KernelGuard() {
  for (const int fd : sockets_) ::close(fd);
}

Status KernelGuard::hold(const Endpoint& local, bool is_source) {
  const int fd = local.ip.is_v4() ? bind_v4(local) : bind_v6(local);
  if (fd < 0) {
    const int why = errno;
    if (why == EADDRINUSE) {
      const std::string which = is_source ? ", one of port.source_ports," : "";
      const std::string choice = is_source ? "set port.source_ports = 1, or another port.udp_port"
                                           : "choose another udp_port";
      return Error(Errc::kBusy, why,
                   "UDP port " + local.to_string() + which +
                       " is in use; find the program with: ss -ulpn, or " + choice);
    }
    return Error(Errc::kSystem, why,
                 "reserving UDP port " + local.to_string() + ": " + errno_text(why) +
                     "; is the address one of this interface's? see: ip address");
  }
  sockets_.push_back(fd);
  sock_filter drop_all[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  if (!attach_filter(fd, drop_all, 1)) return Error::system(errno, "filter of a UDP socket");
  return {};
}

std::vector<int> sockets_of_domain(int domain) {
  std::vector<int> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int its = 0;
    socklen_t bytes = sizeof(its);
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &its, &bytes) == 0 && its == domain) {
      found.push_back(fd);
    }
  }
  std::ranges::sort(found);
  return found;
}

Status filter_packet_socket(int fd, uint16_t first, uint16_t count) {
  const auto extension = [](int what) { return static_cast<uint32_t>(SKF_AD_OFF + what); };
  const uint32_t last = uint32_t{first} + count - 1;
  // Jumps count instructions to skip; "no" is the last but one, "yes" the last.
  sock_filter code[] = {
      /* 0*/ BPF_STMT(BPF_LD | BPF_W | BPF_ABS, extension(SKF_AD_PKTTYPE)),
      /* 1*/ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_OUTGOING, 14, 0),
      /* 2*/ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
      /* 3*/ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 5),
      /* 4*/ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
      /* 5*/ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 10),
      /* 6*/ BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 14),
      /* 7*/ BPF_STMT(BPF_LD | BPF_H | BPF_IND, 16),
      /* 8*/ BPF_STMT(BPF_JMP | BPF_JA, 4),
      /* 9*/ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IPV6, 0, 6),
      /*10*/ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 20),
      /*11*/ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 4),
      /*12*/ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 56),
      /*13*/ BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 2),
      /*14*/ BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, last, 1, 0),
      /*15*/ BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
      /*16*/ BPF_STMT(BPF_RET | BPF_K, 0),
  };
  if (attach_filter(fd, code, std::size(code))) return {};
  return Error::system(errno, "filter of an AF_PACKET socket");
}

}  // namespace mercury::ethdev
