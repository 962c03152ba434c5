// What a device is asked to do for the frames of a VLAN: to fill in their tags and to take them
// off, and as a NIC to receive them at all. What it cannot do the port does (vlan.h).
#include <rte_ethdev.h>

#include <algorithm>

#include "transport/port/ethdev/device.h"

namespace mercury::ethdev {
namespace {

constexpr uint32_t kCheckSequenceBytes = 4;

}  // namespace

void Device::offload_tags(const rte_eth_dev_info& info, rte_eth_conf& conf) {
  if (config_.vlan == 0) return;
  inserts_tags_ = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_VLAN_INSERT) != 0;
  if (inserts_tags_) conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_VLAN_INSERT;
  conf.rxmode.offloads |= info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
  if (!row_.is_nic()) return;
  // Some NICs drop all tags but those that they are told of, others only where they are asked to.
  filters_tags_ = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_VLAN_FILTER) != 0;
  if (filters_tags_) conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_VLAN_FILTER;
  // Most drivers leave room for a tag beside the MTU that they are told.
  const uint32_t beside = info.max_rx_pktlen - std::min<uint32_t>(info.max_mtu, info.max_rx_pktlen);
  const bool told = info.max_mtu != UINT16_MAX && info.max_mtu != 0;
  const bool has_room = told && beside >= kEtherHeaderBytes + kCheckSequenceBytes + kVlanTagBytes;
  if (!has_room) conf.rxmode.mtu += kVlanTagBytes;
}

Status Device::receive_vlan() {
  if (!filters_tags_) return {};
  const int failed = rte_eth_dev_vlan_filter(port_id_, config_.vlan, 1);
  if (failed == 0) return {};
  return driver_error("cannot receive VLAN " + std::to_string(config_.vlan), failed);
}

}  // namespace mercury::ethdev
