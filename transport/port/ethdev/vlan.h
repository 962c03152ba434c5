// The tags of a VLAN (IEEE 802.1Q) on a port's frames: filled in and taken off by the device where
// it can, here where it cannot. All behind it, both ways, sees frames without one. Only for what
// includes DPDK.
//
// Owner/thread: the engine that has the frame.
#pragma once

#include <rte_ether.h>
#include <rte_mbuf.h>

#include <cstdint>

#include "transport/port/ethdev/l2.h"

namespace mercury::ethdev {

// Priority code points follow the upper three bits of the DSCP, as switches derive them where
// nobody tells them otherwise.
constexpr uint16_t tag_priority(uint8_t class_byte) {
  return static_cast<uint16_t>(class_byte >> 5 << RTE_VLAN_PRI_SHIFT);
}

// Takes the tag off a received frame, unless the device did. Which VLAN it named, its priority
// stays in the mbuf; 0: no tag, or one that names none.
inline uint16_t take_tag(rte_mbuf* frame) noexcept {
  const bool taken = (frame->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0;
  const bool has_room = rte_pktmbuf_data_len(frame) >= kEtherHeaderBytes + kVlanTagBytes;
  if (!taken && (!has_room || rte_vlan_strip(frame) != 0)) return 0;
  return RTE_VLAN_TCI_ID(frame->vlan_tci);
}

// Of a frame whose headers are written, and whose mbuf has the priority. False: there is no room
// before it.
inline bool put_tag(rte_mbuf* frame, uint16_t vlan, bool by_device) noexcept {
  frame->vlan_tci = static_cast<uint16_t>((frame->vlan_tci & RTE_VLAN_PRI_MASK) | vlan);
  if (by_device) {
    frame->ol_flags |= RTE_MBUF_F_TX_VLAN;
    return true;
  }
  return rte_vlan_insert(&frame) == 0;
}

}  // namespace mercury::ethdev
