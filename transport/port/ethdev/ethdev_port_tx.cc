// Sending: headers in front of what the engine wrote, then to the device in order.
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "transport/port/ethdev/ethdev_port.h"
#include "transport/port/ethdev/loan.h"
#include "transport/port/ethdev/vlan.h"

namespace mercury::ethdev {
namespace {

static_assert(RTE_PKTMBUF_HEADROOM >= kMaxHeaderBytes + kVlanTagBytes,
              "headers are written into the headroom");

rte_mbuf* mbuf_of(const TxFrame& frame) { return static_cast<rte_mbuf*>(frame.cookie); }

}  // namespace

bool EthdevPort::tx_alloc(TxFrame& frame) noexcept {
  if (pending_last_ - pending_first_ + building_ >= kPending) return false;
  rte_mbuf* mbuf = spare_.take(lane_.pool);
  if (mbuf == nullptr) [[unlikely]]
    return false;
  ++building_;
  frame.data = rte_pktmbuf_mtod(mbuf, std::byte*);
  frame.capacity = info_.max_udp_payload;
  frame.cookie = mbuf;
  return true;
}

void EthdevPort::tx_cancel(TxFrame& frame) noexcept {
  spare_.give(mbuf_of(frame));
  frame.cookie = nullptr;
  --building_;
}

bool EthdevPort::address(Path& path) noexcept {
  if (path.loops || path.fixed) return true;
  const uint64_t mac = device_->neighbours().mac(path.neighbour);
  if (mac != path.mac) [[unlikely]] {
    path.mac = mac;
    path.borrowed = false;
    set_destination(path.header, MacAddress::unpack(mac));
  }
  return mac != 0 || path.borrowed;
}

void EthdevPort::tx_send(TxFrame& frame, PathId path_id, uint32_t bytes) noexcept {
  rte_mbuf* mbuf = mbuf_of(frame);
  Path& path = paths_[path_id.value];
  if (!address(path)) [[unlikely]] {
    counters_.add(Counter::kDropNeighbor);
    tx_cancel(frame);
    return;
  }
  --building_;
  const uint32_t total = bytes + path.header.length;
  mbuf->data_off = static_cast<uint16_t>(mbuf->data_off - path.header.length);
  mbuf->data_len = static_cast<uint16_t>(total);
  mbuf->pkt_len = total;
  const bool offload = leave_checksum(mbuf, path);
  head(frame, bytes, {}, path, offload);
  queue(mbuf, path);
}

void EthdevPort::head(TxFrame& frame, uint32_t bytes, std::span<const std::byte> more,
                      const Path& path, bool offload) noexcept {
  std::byte* const at = frame.data - path.header.length;
  write_headers(path.header, at, {frame.data, bytes}, more, offload);
  if (classes_.any()) [[unlikely]] {
    const uint8_t class_byte = classes_.byte_of(frame.data);
    set_class_byte(path.header, at, class_byte);
    mbuf_of(frame)->vlan_tci = tag_priority(class_byte);
  }
}

bool EthdevPort::leave_checksum(rte_mbuf* frame, const Path& path) const noexcept {
  if (!path.header.v6 || !device_->checksum_offload() || path.loops) return false;
  frame->ol_flags |= RTE_MBUF_F_TX_IPV6 | RTE_MBUF_F_TX_UDP_CKSUM;
  frame->l2_len = kEtherHeaderBytes;
  frame->l3_len = kIpv6HeaderBytes;
  return true;
}

void EthdevPort::tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path_id,
                                std::span<const std::byte> payload, PayloadPin& pin) noexcept {
  Path& path = paths_[path_id.value];
  // What crosses to another thread is copied: the pin is counted without atomics.
  const bool here = lane_.gather_pool != nullptr && !path.loops && address(path);
  uint16_t segments = 1;
  const Pointing how{lane_.gather_pool, lends_, page_bytes_};
  rte_mbuf* const tail = here ? point_at(tails_, how, payload, pin, segments) : nullptr;
  if (tail == nullptr) {
    std::memcpy(frame.data + bytes, payload.data(), payload.size());
    tx_send(frame, path_id, bytes + static_cast<uint32_t>(payload.size()));
    return;
  }
  --building_;
  counters_.add(Counter::kTxGathered);
  rte_mbuf* mbuf = mbuf_of(frame);
  const uint32_t head_bytes = bytes + path.header.length;
  mbuf->data_off = static_cast<uint16_t>(mbuf->data_off - path.header.length);
  mbuf->data_len = static_cast<uint16_t>(head_bytes);
  mbuf->pkt_len = head_bytes + static_cast<uint32_t>(payload.size());
  mbuf->nb_segs = segments;
  mbuf->next = tail;
  const bool offload = leave_checksum(mbuf, path);
  head(frame, bytes, payload, path, offload);
  queue(mbuf, path);
}

bool EthdevPort::pin_busy(PayloadPin& pin) noexcept {
  if (info_of(pin)->refcnt == 0) [[likely]]
    return false;
  if (lends_) device_->let_go(lane_.queue);
  return info_of(pin)->refcnt != 0;
}

void EthdevPort::queue(rte_mbuf* frame, const Path& path) noexcept {
  if (path.loops) [[unlikely]] {
    hand_off(frame, path.loop_engine);
    return;
  }
  if (vlan_ != 0 && !put_tag(frame, vlan_, device_->inserts_tags())) [[unlikely]] {
    counters_.add(Counter::kDropTxFull);
    rte_pktmbuf_free(frame);
    return;
  }
  if (pending_last_ == kPending) [[unlikely]] {
    std::copy(pending_.begin() + pending_first_, pending_.begin() + pending_last_,
              pending_.begin());
    pending_last_ -= pending_first_;
    pending_first_ = 0;
  }
  pending_[pending_last_++] = frame;
}

void EthdevPort::tx_flush(uint64_t) noexcept {
  const bool idle = pending_first_ == pending_last_;
  if (!device_->link_up()) [[unlikely]] {
    drop_pending();
  } else if (!owns_queue_) {
    if (!idle) flush_to_owner();
  } else {
    // An owner serves the others too, in turn with itself: neither starves.
    if (lane_.outbox != nullptr) flush_outbox();
    if (!idle) flush_own();
  }
  if (pending_first_ == pending_last_) pending_first_ = pending_last_ = 0;
}

void EthdevPort::flush_own() noexcept {
  while (pending_first_ != pending_last_) {
    const auto wanted = static_cast<uint16_t>(std::min(pending_last_ - pending_first_, kBurst));
    const uint16_t sent =
        rte_eth_tx_burst(dpdk_port_, lane_.queue, pending_.data() + pending_first_, wanted);
    pending_first_ += sent;
    if (sent < wanted) return;
  }
}

void EthdevPort::flush_outbox() noexcept {
  if (foreign_first_ == foreign_last_) {
    foreign_first_ = 0;
    foreign_last_ = rte_ring_sc_dequeue_burst(
        lane_.outbox, reinterpret_cast<void**>(foreign_.data()), kBurst, nullptr);
  }
  if (foreign_first_ == foreign_last_) return;
  const auto wanted = static_cast<uint16_t>(foreign_last_ - foreign_first_);
  foreign_first_ +=
      rte_eth_tx_burst(dpdk_port_, lane_.queue, foreign_.data() + foreign_first_, wanted);
}

void EthdevPort::flush_to_owner() noexcept {
  Lane& owner = device_->lane(lane_.queue);
  const unsigned sent = rte_ring_mp_enqueue_burst(
      owner.outbox, reinterpret_cast<void**>(pending_.data() + pending_first_),
      pending_last_ - pending_first_, nullptr);
  pending_first_ += sent;
  if (sent != 0) owner.wake();
}

// The link is down: what waits is lost, as it would be on a wire that was pulled.
void EthdevPort::drop_pending() noexcept {
  const uint32_t count = pending_last_ - pending_first_;
  if (count != 0) rte_pktmbuf_free_bulk(pending_.data() + pending_first_, count);
  counters_.add(Counter::kDropTxFull, count);
  pending_first_ = pending_last_;
}

}  // namespace mercury::ethdev
