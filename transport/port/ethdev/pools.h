// Buffer pools, laid out as each driver needs them, and what a port takes from them in advance.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "transport/port/ethdev/config.h"

struct rte_mbuf;
struct rte_mempool;

namespace mercury::ethdev {

// Null if there is not enough memory. `data_room` includes the headroom.
rte_mempool* create_frame_pool(PoolLayout layout, const std::string& name, uint32_t data_room,
                               uint32_t mbufs);
// Of mbufs without room of their own, each with a Loan (loan.h).
rte_mempool* create_gather_pool(const std::string& name, uint32_t mbufs);

// Buffers that a port has taken from a pool before it needs them: several cost hardly more than
// one, and the next is in the cache when its turn comes. All of one stock come from one pool, which
// outlives it. Owner/thread: one engine.
class BufferStock {
 public:
  BufferStock() = default;
  ~BufferStock();
  BufferStock(const BufferStock&) = delete;
  BufferStock& operator=(const BufferStock&) = delete;

  rte_mbuf* take(rte_mempool* pool) noexcept;  // null: the pool is empty
  void give(rte_mbuf* buffer) noexcept;        // back, unsent
  uint32_t count() const noexcept { return count_; }

 private:
  static constexpr uint32_t kMost = 8;
  bool refill(rte_mempool* pool) noexcept;

  std::array<rte_mbuf*, kMost> buffers_{};
  uint32_t count_ = 0;
};

}  // namespace mercury::ethdev
