// Blocks of records of packets in flight, shared by all sessions of one engine: a session takes
// blocks as it sends and gives them back as packets are acknowledged or lost, so memory follows
// what is in flight and an idle session holds none.
//
// Owner/thread: one engine. take() and give() are O(1) and do not allocate: the pool reserves its
// address space once, and the kernel backs a page when it is first written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "transport/flow/sent_tag.h"

namespace mercury {

struct SentRecord {
  uint64_t number = 0;
  uint64_t sent_ns = 0;
  SentTag tag;
  uint32_t bytes = 0;  // UDP payload
  bool in_flight = false;
};

// Records of consecutive sends, oldest first. 32 records are 1.3 KB: small enough that a session
// with one packet in flight wastes little, large enough that most sends touch no list.
inline constexpr uint16_t kSentBlockRecords = 32;
struct SentBlock {
  SentBlock* next = nullptr;
  SentBlock* prev = nullptr;
  uint16_t used = 0;  // records written
  uint16_t live = 0;  // of these, still in flight
  std::array<SentRecord, kSentBlockRecords> records;
};

class SentPool {
 public:
  // Default: 131,072 packets in flight in one engine (5.4 MB if all are used at once).
  explicit SentPool(uint32_t blocks = 4096)
      : blocks_(blocks),
        storage_(std::make_unique_for_overwrite<std::byte[]>((blocks + 1) * sizeof(SentBlock))) {
    void* aligned = storage_.get();
    size_t room = (blocks + 1) * sizeof(SentBlock);
    first_ = std::align(alignof(SentBlock), blocks * sizeof(SentBlock), aligned, room);
  }
  SentPool(const SentPool&) = delete;
  SentPool& operator=(const SentPool&) = delete;

  bool empty() const noexcept { return in_use_ == blocks_; }
  uint32_t blocks_in_use() const noexcept { return in_use_; }

  // nullptr when all blocks are in use.
  SentBlock* take() noexcept {
    if (empty()) return nullptr;
    ++in_use_;
    if (free_ == nullptr) {
      return new (static_cast<std::byte*>(first_) + size_t{touched_++} * sizeof(SentBlock))
          SentBlock;
    }
    SentBlock* block = free_;
    free_ = block->next;
    block->next = block->prev = nullptr;
    block->used = block->live = 0;  // records beyond `used` mean nothing
    return block;
  }
  void give(SentBlock* block) noexcept {
    --in_use_;
    block->next = free_;
    free_ = block;
  }

 private:
  uint32_t blocks_;
  uint32_t touched_ = 0;  // blocks ever taken
  uint32_t in_use_ = 0;
  SentBlock* free_ = nullptr;
  std::unique_ptr<std::byte[]> storage_;
  void* first_ = nullptr;
};

}  // namespace mercury
