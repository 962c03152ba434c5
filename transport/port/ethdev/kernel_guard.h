// Manners on an interface that the kernel uses too.
//
// The kernel sees Mercury's frames (af_packet is a tap) and would answer each with an ICMP port
// unreachable: so a socket of the kernel is kept bound to each of our UDP ports, with a filter that
// drops whatever comes. This also reserves the ports against other programs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury::ethdev {

class KernelGuard {
 public:
  KernelGuard() = default;
  KernelGuard(KernelGuard&&) noexcept = default;
  KernelGuard& operator=(KernelGuard&&) = delete;
  ~KernelGuard();

  // Errors: kBusy if a program uses the port; what is said of a source port names the setting that
  // it is of.
  Status hold(const Endpoint& local, bool is_source = false);

 private:
  std::vector<int> sockets_;
};

// Descriptors of this process that are sockets of `domain` (AF_PACKET, AF_XDP), in ascending order.
// What a driver opened is the difference between two calls.
std::vector<int> sockets_of_domain(int domain);

// Lets only UDP frames for first .. first + count - 1 that arrive (not those that leave) into the
// ring of an AF_PACKET socket: other traffic of the interface then costs us nothing.
Status filter_packet_socket(int fd, uint16_t first, uint16_t count);

}  // namespace mercury::ethdev
