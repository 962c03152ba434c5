// What the kernel knows about one of its interfaces, by ioctl and getifaddrs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/port/ethdev/l2.h"

namespace mercury::ethdev {

struct NetdevFacts {
  uint32_t index = 0;
  uint32_t mtu = 0;  // bytes of IP packet
  MacAddress mac;
  bool up = false;
  uint16_t queues = 1;   // on which frames arrive
  bool combined = true;  // its queues receive and transmit: DPDK's af_xdp takes one of others
  std::optional<IpAddress> v4;  // the first of each; IPv6: the first that is not link-local
  std::optional<IpAddress> v6;
};

// Errors: kNoDevice, with the command that lists interfaces.
Result<NetdevFacts> read_netdev(const std::string& name);

// Up, and its carrier too (of a veth: the other end is up). False if it does not exist.
bool netdev_running(const std::string& name);

// The rate on which the link of a NIC has agreed, bytes per second; 0: it has not, does not say, or
// is no NIC (what a veth says is made up). Waits for the kernel's lock of all interfaces.
uint64_t netdev_link_rate(const std::string& name);

// How many of an interface's queues af_xdp can serve with so many engines; frames that arrive on
// others would be lost.
uint16_t served_queues(const NetdevFacts& facts, uint16_t engines);
// The command that leaves an interface so many queues.
std::string channels_command(const std::string& name, const NetdevFacts& facts, uint16_t queues);

// Where several UDP datagrams travel as one packet of the kernel. Its own sockets take such packets
// apart; a packet socket gets them whole.
struct NetdevBatches {
  // A veth does not cut what one UDP_SEGMENT call sends: its other end may.
  bool leave_uncut = false;
  bool are_made = false;  // of datagrams that arrive (rx-gro-list)
};
// Nothing: it could not be asked.
std::optional<NetdevBatches> read_batches(const std::string& name);

// The interface that has this address; none for one that is only routed here, as most of 127/8.
std::optional<std::string> netdev_with(const IpAddress& ip);

}  // namespace mercury::ethdev
