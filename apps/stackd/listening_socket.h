// Whether a socket still listens: what the kernel knows of this network namespace's sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_set>

#include "shim/channel/unique_fd.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury {

// Owner/thread: one thread.
class ListeningSockets {
 public:
  // Without a descriptor to spare it is opened when it is needed.
  ListeningSockets() { (void)open(); }
  // Whether a connection to `at` goes to the TCP socket that has this cookie of the kernel's,
  // whosever it is, or to one that shares its address with it. kNotFound: that socket listens at
  // this port no more. kBusy: it does, but another one at this very address. Errors besides:
  // kSystem (NETLINK_SOCK_DIAG is not to be had). `shares`: whether a cookie is as good, of a
  // socket that shares its address (SO_REUSEPORT), of which the kernel names any.
  using Shares = std::function<bool(uint64_t cookie)>;
  Status check(uint64_t cookie, const Endpoint& at, const Shares& shares = {});
  // The cookies of all TCP sockets that listen; where others come and go meanwhile one may be
  // missing. Nothing if the kernel does not say.
  std::optional<std::unordered_set<uint64_t>> cookies();

 private:
  Status open();
  std::optional<uint64_t> next(const Endpoint& at);
  template <class Visit>
  Status for_each(uint16_t port, Visit visit);

  UniqueFd socket_;  // as long as its answers are read to their end
};

}  // namespace mercury
