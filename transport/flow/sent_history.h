// The packets in flight of one session, in the order of their numbers.
//
// Data, what a service sends, is bounded by the session's part of the pool and by `most_blocks`,
// however few bytes its packets have. The session's own packets (control messages, PINGs) are
// bounded so too. Beside that each kind has a block in reserve, which the other cannot take: what a
// full window of data waits for is never held up by it, and own packets that are always under way
// never hold up all data.
//
// Invariants: numbers ascend; a block in the chain has at least one record in flight;
// bytes_in_flight() is the sum over records in flight; beside data there is room for own packets,
// and beside a block of own packets for data.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <cstdint>
#include <limits>

#include "transport/flow/sent_pool.h"

namespace mercury {

enum class SentKind : uint8_t { kData, kOwn };

// Where a session has its records: `part` null means one of its own.
struct SentSource {
  SentPool& pool;
  SentPart* part = nullptr;
  uint32_t most_blocks = std::numeric_limits<uint32_t>::max();
};

class SentHistory {
 public:
  explicit SentHistory(const SentSource& source)
      : pool_(source.pool),
        part_(source.part == nullptr ? own_part_ : *source.part),
        most_blocks_(source.most_blocks) {}
  ~SentHistory();
  SentHistory(const SentHistory&) = delete;
  SentHistory& operator=(const SentHistory&) = delete;

  uint64_t bytes_in_flight() const noexcept { return bytes_in_flight_; }
  uint32_t packets_in_flight() const noexcept { return packets_in_flight_; }

  bool has_room(SentKind kind) const noexcept {
    return (tail_ != nullptr && tail_->used < end_for(kind, *tail_)) || may_grow(kind);
  }
  // False when there is no room; `number` is above all before it.
  bool append(SentKind kind, uint64_t number, const SentTag& tag, uint32_t bytes,
              uint64_t now_ns) noexcept;
  void clear() noexcept;
  // What is in flight takes nothing of bytes_in_flight() from now on.
  [[gnu::cold]] void weigh_nothing() noexcept;

  // Walks the records in flight, oldest first. Appending does not disturb a cursor; remove() moves
  // it to the next record.
  class Cursor {
   public:
    SentRecord* record() const noexcept { return record_; }  // nullptr: behind the last

   private:
    friend class SentHistory;
    SentBlock* block_ = nullptr;
    SentRecord* record_ = nullptr;
  };
  Cursor oldest() const noexcept;
  void next(Cursor& cursor) const noexcept;
  // To the first record in flight at or after the cursor whose number is at least `number`.
  void seek(Cursor& cursor, uint64_t number) const noexcept;
  // The oldest in the reserve of own packets; at nothing if that is not in use. When all of these
  // have been removed there is room for own packets.
  Cursor own_reserve() const noexcept;
  bool in_own_reserve(const Cursor& cursor) const noexcept {
    return cursor.block_ != nullptr && cursor.block_ == own_reserve_;
  }
  // The record is no longer in flight.
  void remove(Cursor& cursor) noexcept {
    SentBlock* const block = cursor.block_;
    SentRecord* const record = cursor.record_;
    record->in_flight = false;
    bytes_in_flight_ -= record->bytes;
    --packets_in_flight_;
    --block->live;  // if the next is in flight, as mostly, the block stays
    if (record + 1 != end(*block) && record[1].in_flight) [[likely]] {
      ++cursor.record_;
      return;
    }
    next(cursor);
    if (block->live == 0) unlink(block);
  }

 private:
  static uint16_t end_for(SentKind kind, const SentBlock& block) noexcept {
    return kind == SentKind::kData ? block.data_end : kSentBlockRecords;
  }
  bool may_share() const noexcept { return blocks_ < most_blocks_ && pool_.may_grow(part_); }
  bool may_grow(SentKind kind) const noexcept;
  SentBlock* grow(SentKind kind) noexcept;
  static SentRecord* end(SentBlock& block) noexcept { return block.records.data() + block.used; }
  void enter(Cursor& cursor, SentBlock* block) const noexcept;
  void settle(Cursor& cursor) const noexcept;  // onto the next record in flight
  void unlink(SentBlock* block) noexcept;

  SentPool& pool_;
  SentPart own_part_;
  SentPart& part_;
  const uint32_t most_blocks_;
  uint32_t blocks_ = 0;
  SentBlock* own_reserve_ = nullptr;  // of these, if it is in use
  SentBlock* head_ = nullptr;
  SentBlock* tail_ = nullptr;
  uint64_t bytes_in_flight_ = 0;
  uint32_t packets_in_flight_ = 0;
};

}  // namespace mercury
