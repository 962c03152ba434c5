// The packets in flight of one session, in the order of their numbers.
//
// Invariants: numbers ascend; a block in the chain has at least one record in flight;
// bytes_in_flight() is the sum over records in flight.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <cstdint>

#include "transport/flow/sent_pool.h"

namespace mercury {

class SentHistory {
 public:
  explicit SentHistory(SentPool& pool) : pool_(pool) {}
  ~SentHistory();
  SentHistory(const SentHistory&) = delete;
  SentHistory& operator=(const SentHistory&) = delete;

  uint64_t bytes_in_flight() const noexcept { return bytes_in_flight_; }
  uint32_t packets_in_flight() const noexcept { return packets_in_flight_; }

  bool has_room() const noexcept {
    return (tail_ != nullptr && tail_->used < kSentBlockRecords) || !pool_.empty();
  }
  // False when the pool is empty; `number` is above all before it.
  bool append(uint64_t number, const SentTag& tag, uint32_t bytes, uint64_t now_ns) noexcept;
  void clear() noexcept;

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
  static SentRecord* end(SentBlock& block) noexcept { return block.records.data() + block.used; }
  void enter(Cursor& cursor, SentBlock* block) const noexcept;
  void settle(Cursor& cursor) const noexcept;  // onto the next record in flight
  void unlink(SentBlock* block) noexcept;

  SentPool& pool_;
  SentBlock* head_ = nullptr;
  SentBlock* tail_ = nullptr;
  uint64_t bytes_in_flight_ = 0;
  uint32_t packets_in_flight_ = 0;
};

}  // namespace mercury
