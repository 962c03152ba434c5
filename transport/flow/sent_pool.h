// Blocks of records of packets in flight, shared by all sessions of one engine: a session takes
// blocks as it sends and gives them back as packets are acknowledged or lost, so memory follows
// what is in flight and an idle session holds none.
//
// Peers decide how long a packet is in flight, so nobody may take all. Each job has some blocks of
// its own, which nobody else takes, however many jobs come and take what they may. Beyond these its
// part may grow while it is smaller than what is free: one job has a half of that at most, two have
// a third each (SentPart). Beside these, every session has kReservedBlocks of its own, so that
// whatever others hold it may send a few packets, and say and ask what it must (SentHistory).
//
// Owner/thread: one engine. Taking and giving back is O(1) and does not allocate: the pool reserves
// its address space once, and the kernel backs a page when it is first written. A job's part is
// made when it is first asked for, and stays.
//
// Paper: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches",
// Transactions on Networking 1998, with alpha = 1; Kamoun and Kleinrock, "Analysis of Shared Finite
// Storage in a Computer Network Node Environment under General Traffic Conditions", Transactions on
// Communications 1980 (sharing with a minimum allocation).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>

#include "transport/base/types.h"
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
  uint16_t used = 0;                      // records written
  uint16_t live = 0;                      // of these, still in flight
  uint16_t data_end = kSentBlockRecords;  // data is written before it, other packets anywhere
  bool reserved = false;                  // of its session's own, not of a part
  std::array<SentRecord, kSentBlockRecords> records;
};

// Of every session, beside what it shares: one that data may begin in when it has no other, and one
// of the session's own packets.
inline constexpr uint32_t kReservedBlocks = 2;

// What one job's sessions hold together, or all that belong to no job.
struct SentPart {
  uint32_t blocks = 0;
  uint32_t own = 0;  // of these, the first so many are of nobody's share
};

class SentPool {
 public:
  // Default: 131,072 packets in flight in one engine (5.4 MB if all are used at once), and what is
  // reserved for up to `sessions` at a time. Up to `jobs` of them, and all that is of none, have
  // half as much together of their own.
  explicit SentPool(uint32_t blocks = 4096, uint32_t sessions = 1, uint32_t jobs = 0)
      : blocks_(blocks),
        reserved_(sessions * kReservedBlocks),
        parts_with_own_(jobs == 0 ? 0 : jobs + 1),
        own_(jobs == 0 ? 0 : std::max(blocks / (2 * jobs), 1U)) {
    const size_t all = size_t{blocks_} + reserved_ + size_t{parts_with_own_} * own_;
    const size_t bytes = all * sizeof(SentBlock);
    size_t room = bytes + sizeof(SentBlock);
    storage_ = std::make_unique_for_overwrite<std::byte[]>(room);
    void* aligned = storage_.get();
    first_ = std::align(alignof(SentBlock), bytes, aligned, room);
  }
  SentPool(const SentPool&) = delete;
  SentPool& operator=(const SentPool&) = delete;

  // The part of all sessions of `job`, or of kNoJob, at the same address as long as the pool lives.
  // Cold.
  SentPart& part_of(JobSlot job) {
    const auto [part, made] = parts_.try_emplace(job);
    if (made && parts_.size() <= parts_with_own_) part->second.own = own_;
    return part->second;
  }

  bool may_grow(const SentPart& part) const noexcept {
    return part.blocks < part.own || part.blocks - part.own < blocks_ - shared_;
  }
  bool has_reserved() const noexcept { return reserved_in_use_ < reserved_; }
  uint32_t blocks_in_use() const noexcept { return in_use_; }

  // For `part`, which may grow.
  SentBlock* take(SentPart& part) noexcept {
    if (part.blocks >= part.own) ++shared_;
    ++part.blocks;
    return take();
  }
  SentBlock* take_reserved() noexcept {
    SentBlock* const block = take();
    block->reserved = true;
    ++reserved_in_use_;
    return block;
  }
  void give(SentBlock* block, SentPart& part) noexcept {
    if (block->reserved) {
      --reserved_in_use_;
    } else {
      --part.blocks;
      if (part.blocks >= part.own) --shared_;
    }
    --in_use_;
    block->next = free_;
    free_ = block;
  }

 private:
  SentBlock* take() noexcept {
    ++in_use_;
    if (free_ == nullptr) {
      return new (static_cast<std::byte*>(first_) + size_t{touched_++} * sizeof(SentBlock))
          SentBlock;
    }
    SentBlock* block = free_;
    free_ = block->next;
    block->next = block->prev = nullptr;
    block->used = block->live = 0;  // records beyond `used` mean nothing
    block->data_end = kSentBlockRecords;
    block->reserved = false;
    return block;
  }

  uint32_t blocks_;          // that parts share
  uint32_t reserved_;        // and these beside them
  uint32_t parts_with_own_;  // and for so many
  uint32_t own_;             // each
  uint32_t touched_ = 0;     // blocks ever taken
  uint32_t in_use_ = 0;
  uint32_t shared_ = 0;  // of these, what parts hold beyond their own
  uint32_t reserved_in_use_ = 0;
  std::map<JobSlot, SentPart> parts_;
  SentBlock* free_ = nullptr;
  std::unique_ptr<std::byte[]> storage_;
  void* first_ = nullptr;
};

}  // namespace mercury
