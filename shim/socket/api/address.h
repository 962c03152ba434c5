// Between the kernel's addresses and Mercury's.
#pragma once

#include <sys/socket.h>

#include <optional>

#include "transport/base/endpoint.h"

namespace mercury::sockets {

// Nothing: none of IPv4 or IPv6, too short, or one that is only good with an interface (fe80::/10).
std::optional<Endpoint> endpoint_of(const sockaddr* address, socklen_t length);
// As accept() and its like fill it: as much as there is room for, and in `length` how long it is.
// A socket of `family` AF_INET6 sees IPv4 as mapped. Null pointers are left alone.
void give_address(int family, const Endpoint& endpoint, sockaddr* address, socklen_t* length);
// What the descriptor's own end is bound to in the kernel. Nothing: as endpoint_of.
std::optional<Endpoint> kernel_name(int fd);

}  // namespace mercury::sockets
