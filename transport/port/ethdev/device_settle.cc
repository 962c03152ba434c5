// What a device is before DPDK knows it: MTU, queues, addresses.
#include <algorithm>

#include "transport/port/ethdev/device.h"
#include "transport/port/ethdev/netdev.h"

namespace mercury::ethdev {

// MTU, MAC and queue count that an interface of the kernel imposes.
Status Device::settle_netdev() {
  queues_ = config_.queues != 0 ? config_.queues : config_.engines;
  mtu_ = config_.mtu != 0 ? config_.mtu : std::min(1500U, row_.max_mtu);
  if (!config_.has_netdev()) return {};
  const auto facts = read_netdev(config_.device);
  if (!facts) return facts.error();
  netdev_index_ = facts->index;
  local_.mac = facts->mac;
  if (!facts->up) {
    return Error(Errc::kConfig, "interface " + config_.device + " is down; run: ip link set dev " +
                                    config_.device + " up");
  }
  if (config_.mtu > facts->mtu) {
    return Error(Errc::kConfig, "mtu " + std::to_string(config_.mtu) + " is more than interface " +
                                    config_.device + " has (" + std::to_string(facts->mtu) +
                                    "); run: ip link set dev " + config_.device + " mtu " +
                                    std::to_string(config_.mtu));
  }
  if (facts->mtu > row_.max_mtu) {
    return Error(Errc::kConfig, "interface " + config_.device + " has mtu " +
                                    std::to_string(facts->mtu) + ", " + row_.name + " carries " +
                                    std::to_string(row_.max_mtu) + "; run: ip link set dev " +
                                    config_.device + " mtu " + std::to_string(row_.max_mtu) +
                                    (row_.uses_xdp() ? ", or use af_packet" : ""));
  }
  if (config_.mtu == 0) mtu_ = facts->mtu;
  if (row_.uses_xdp()) {
    const uint16_t served = served_queues(*facts, queues_);
    if (facts->queues > served) {
      return Error(Errc::kConfig,
                   "interface " + config_.device + " has " + std::to_string(facts->queues) +
                       " queues, and only " + std::to_string(served) +
                       " can be served; run: " + channels_command(config_.device, *facts, served));
    }
    queues_ = facts->queues;
  }
  if (config_.is_shared() && !config_.v4 && !config_.v6) {
    if (facts->v4) config_.v4 = LocalAddress{*facts->v4, 32, {}};
    if (facts->v6) config_.v6 = LocalAddress{*facts->v6, 128, {}};
  }
  return {};
}

Status Device::settle_addresses() {
  if (!config_.v4 && !config_.v6) {
    return Error(Errc::kConfig, "interface " + config_.device +
                                    " has no address; run: ip address add ADDRESS/PREFIX dev " +
                                    config_.device);
  }
  local_.has_v4 = config_.v4.has_value();
  local_.has_v6 = config_.v6.has_value();
  if (config_.v4) local_.v4 = config_.v4->ip;
  if (config_.v6) local_.v6 = config_.v6->ip;
  local_.udp_port = config_.udp_port;
  local_.udp_ports = config_.engines;
  if (!config_.is_shared()) return {};
  for (uint32_t i = 0; i < config_.udp_ports(); ++i) {
    const auto port = static_cast<uint16_t>(config_.udp_port + i);
    for (const auto& address : {config_.v4, config_.v6}) {
      if (!address) continue;
      const bool is_source = i >= config_.engines;
      if (Status held = guard_.hold({address->ip, port}, is_source); !held) return held;
    }
  }
  return {};
}

}  // namespace mercury::ethdev
