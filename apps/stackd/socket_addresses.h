// Addresses as the kernel's calls take and give them.
#pragma once

#include <sys/socket.h>

#include "transport/base/endpoint.h"

namespace mercury {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

SocketAddress to_kernel(const Endpoint& endpoint);  // of IPv4 where it is
// Nothing in particular where it is of another family.
Endpoint from_kernel(const sockaddr* address);

}  // namespace mercury
