// A payload that lies elsewhere, and the mbuf that points at it. Only for what includes DPDK.
//
// Owner/thread: the engine that sends it.
#pragma once

#include <rte_mbuf.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/port/ethdev/pools.h"
#include "transport/port/port.h"

namespace mercury::ethdev {

static_assert(sizeof(rte_mbuf_ext_shared_info) <= sizeof(PayloadPin::opaque));
static_assert(alignof(rte_mbuf_ext_shared_info) <= alignof(PayloadPin));

// How many frames still point at the payload, as DPDK counts them.
inline rte_mbuf_ext_shared_info* info_of(PayloadPin& pin) {
  return reinterpret_cast<rte_mbuf_ext_shared_info*>(pin.opaque);
}

// Where the NIC reads a payload after the call, DPDK's count stands in the mbuf's own room, not in
// the pin: a driver may let go of the mbuf when the payload's owner is gone.
struct Loan {
  rte_mbuf_ext_shared_info info;
  PayloadPin* pin;  // null: not lent, or its owner is gone

  void end() noexcept {
    if (pin != nullptr) --info_of(*pin)->refcnt;
    pin = nullptr;
  }
};
static_assert(sizeof(Loan) % RTE_MBUF_PRIV_ALIGN == 0);

inline Loan* loan_of(rte_mbuf* mbuf) { return static_cast<Loan*>(rte_mbuf_to_priv(mbuf)); }

// How a port gives its driver a payload where it lies.
struct Pointing {
  rte_mempool* pool = nullptr;  // create_gather_pool
  bool lends = false;           // the NIC reads it after the call
  size_t page_bytes = 0;        // that no segment may cross; 0: none
};

// Mbufs of `pool`, by way of `stock`, that point at the payload: it counts in `pin` until each is
// freed. Adds their number to `segments`. Null: no mbuf is left, and `pin` is as it was.
rte_mbuf* point_at(BufferStock& stock, const Pointing& how, std::span<const std::byte> payload,
                   PayloadPin& pin, uint16_t& segments) noexcept;

}  // namespace mercury::ethdev
