#include "transport/port/ethdev/pools.h"

#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>

#include "transport/port/ethdev/loan.h"

namespace mercury::ethdev {
namespace {

constexpr unsigned kCache = 256;  // buffers that a thread takes from or gives to a pool at once

}  // namespace

rte_mempool* create_frame_pool(PoolLayout layout, const std::string& name, uint32_t data_room,
                               uint32_t mbufs) {
  if (layout == PoolLayout::kDma) {
    return rte_pktmbuf_pool_create(name.c_str(), mbufs, kCache, 0, static_cast<uint16_t>(data_room),
                                   SOCKET_ID_ANY);
  }
  // af_xdp registers the pool as one piece of memory and computes its length from the number of
  // objects: so they must lie back to back, without the gaps that DPDK leaves at page borders to
  // keep objects physically contiguous (no virtual device needs that), nor the padding that
  // spreads them over memory channels (it would make them larger than a page, which is refused).
  const unsigned flags = RTE_MEMPOOL_F_NO_IOVA_CONTIG | RTE_MEMPOOL_F_NO_SPREAD;
  rte_mempool* pool = rte_mempool_create_empty(
      name.c_str(), mbufs, static_cast<unsigned>(sizeof(rte_mbuf)) + data_room, kCache,
      sizeof(rte_pktmbuf_pool_private), SOCKET_ID_ANY, flags);
  if (pool == nullptr) return nullptr;
  rte_pktmbuf_pool_private priv{};
  priv.mbuf_data_room_size = static_cast<uint16_t>(data_room);
  rte_pktmbuf_pool_init(pool, &priv);
  const bool one_piece_needed = layout == PoolLayout::kOnePiece;
  if (rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), nullptr) != 0 ||
      rte_mempool_populate_default(pool) < 0 || (one_piece_needed && pool->nb_mem_chunks != 1)) {
    rte_mempool_free(pool);
    return nullptr;
  }
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, nullptr);
  return pool;
}

rte_mempool* create_gather_pool(const std::string& name, uint32_t mbufs) {
  return rte_pktmbuf_pool_create(name.c_str(), mbufs, kCache, sizeof(Loan), 0, SOCKET_ID_ANY);
}

BufferStock::~BufferStock() { rte_pktmbuf_free_bulk(buffers_.data(), count_); }

rte_mbuf* BufferStock::take(rte_mempool* pool) noexcept {
  if (count_ == 0 && !refill(pool)) [[unlikely]]
    return nullptr;
  rte_mbuf* const taken = buffers_[--count_];
  if (count_ > 0) rte_prefetch0(buffers_[count_ - 1]);
  return taken;
}

void BufferStock::give(rte_mbuf* buffer) noexcept {
  if (count_ < kMost) {
    buffers_[count_++] = buffer;
  } else {
    rte_pktmbuf_free(buffer);
  }
}

bool BufferStock::refill(rte_mempool* pool) noexcept {
  for (uint32_t count = kMost; count > 0; count /= 2) {
    if (rte_pktmbuf_alloc_bulk(pool, buffers_.data(), count) == 0) {
      count_ = count;
      return true;
    }
  }
  return false;
}

}  // namespace mercury::ethdev
