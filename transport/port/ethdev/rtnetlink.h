// The kernel's routes and neighbours, for interfaces that it shares with us (rtnetlink(7)).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/port/ethdev/kernel_neighbours.h"
#include "transport/port/ethdev/l2.h"

namespace mercury::ethdev {

// One netlink socket in the network namespace of the thread that opened it. Not thread-safe. Each
// call waits for the kernel's answer, which comes at once.
class RouteSocket {
 public:
  static Result<RouteSocket> open(uint32_t interface_index);
  RouteSocket(RouteSocket&& other) noexcept;
  RouteSocket& operator=(RouteSocket&& other) noexcept;
  ~RouteSocket();

  // The neighbour that leads to `destination` over the interface: the destination itself, or a
  // gateway. Errors: kNotFound (no route), kSystem.
  Result<IpAddress> next_hop(const IpAddress& destination);
  // The neighbour's MAC address, if the kernel holds one that it has not found to be dead.
  std::optional<MacAddress> neighbour(const IpAddress& ip);
  // Makes the kernel resolve the neighbour, or confirm it again if it is stale.
  void touch(const IpAddress& ip);

 private:
  RouteSocket(int fd, uint32_t interface_index) : fd_(fd), interface_index_(interface_index) {}
  struct Message;
  // Sends, and receives one answer into the message. 0, or an errno.
  int exchange(Message& message);

  int fd_ = -1;
  uint32_t interface_index_ = 0;
  uint32_t sequence_ = 0;
};

// A socket for each of the threads that ask.
class RouteSockets final : public KernelNeighbours {
 public:
  static Result<std::unique_ptr<KernelNeighbours>> open(uint32_t interface_index);
  Result<IpAddress> next_hop(const IpAddress& destination) override {
    return ways_.next_hop(destination);
  }
  // The kernel does not see our frames, so that it would forget the neighbour: keep it in use.
  std::optional<MacAddress> ask(const IpAddress& ip) override {
    neighbours_.touch(ip);
    return neighbours_.neighbour(ip);
  }

 private:
  RouteSockets(RouteSocket ways, RouteSocket neighbours)
      : ways_(std::move(ways)), neighbours_(std::move(neighbours)) {}

  RouteSocket ways_;
  RouteSocket neighbours_;
};

}  // namespace mercury::ethdev
