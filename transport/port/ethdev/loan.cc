#include "transport/port/ethdev/loan.h"

#include <algorithm>

namespace mercury::ethdev {
namespace {

// The payload is not ours to free; its owner asks pin_busy.
void keep_payload(void*, void*) {}
void end_loan(void*, void* loan) { static_cast<Loan*>(loan)->end(); }

// A driver that copies counts in the pin itself, one that lends when the mbuf is let go.
void attach(rte_mbuf* tail, std::span<const std::byte> payload, PayloadPin& pin,
            bool lends) noexcept {
  rte_mbuf_ext_shared_info* info = info_of(pin);
  ++info->refcnt;
  info->free_cb = keep_payload;
  rte_iova_t address = RTE_BAD_IOVA;
  if (lends) {
    Loan* const loan = loan_of(tail);
    *loan = {{.free_cb = end_loan, .fcb_opaque = loan, .refcnt = 1}, &pin};
    info = &loan->info;
    address = reinterpret_cast<rte_iova_t>(payload.data());
  }
  const auto bytes = static_cast<uint16_t>(payload.size());
  // DPDK's types know no constant buffers; drivers only read what they send.
  rte_pktmbuf_attach_extbuf(tail, const_cast<std::byte*>(payload.data()), address, bytes, info);
  tail->data_off = 0;
  tail->data_len = bytes;
}

}  // namespace

rte_mbuf* point_at(BufferStock& stock, const Pointing& how, std::span<const std::byte> payload,
                   PayloadPin& pin, uint16_t& segments) noexcept {
  rte_mbuf* first = nullptr;
  rte_mbuf** link = &first;
  while (!payload.empty()) {
    rte_mbuf* const tail = stock.take(how.pool);
    if (tail == nullptr) [[unlikely]] {
      rte_pktmbuf_free(first);
      return nullptr;
    }
    const auto at = reinterpret_cast<uintptr_t>(payload.data());
    const size_t room = how.page_bytes == 0 ? payload.size() : how.page_bytes - at % how.page_bytes;
    const size_t bytes = std::min(payload.size(), room);
    attach(tail, payload.first(bytes), pin, how.lends);
    *link = tail;
    link = &tail->next;
    ++segments;
    payload = payload.subspan(bytes);
  }
  return first;
}

}  // namespace mercury::ethdev
