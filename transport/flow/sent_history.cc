#include "transport/flow/sent_history.h"

namespace mercury {

SentHistory::~SentHistory() { clear(); }

void SentHistory::clear() noexcept {
  while (head_ != nullptr) unlink(head_);
  bytes_in_flight_ = 0;
  packets_in_flight_ = 0;
}

bool SentHistory::append(uint64_t number, const SentTag& tag, uint32_t bytes,
                         uint64_t now_ns) noexcept {
  if (tail_ == nullptr || tail_->used == kSentBlockRecords) {
    SentBlock* block = pool_.take();
    if (block == nullptr) return false;
    block->prev = tail_;
    if (tail_ != nullptr) {
      tail_->next = block;
    } else {
      head_ = block;
    }
    tail_ = block;
  }
  SentRecord& record = tail_->records[tail_->used++];
  record.number = number;
  record.sent_ns = now_ns;
  record.tag = tag;
  record.bytes = bytes;
  record.in_flight = true;
  ++tail_->live;
  bytes_in_flight_ += bytes;
  ++packets_in_flight_;
  return true;
}

SentHistory::Cursor SentHistory::oldest() const noexcept {
  Cursor cursor;
  cursor.block_ = head_;
  settle(cursor);
  return cursor;
}

void SentHistory::next(Cursor& cursor) const noexcept {
  ++cursor.index_;
  settle(cursor);
}

void SentHistory::seek(Cursor& cursor, uint64_t number) const noexcept {
  while (cursor.block_ != nullptr) {
    const SentBlock& block = *cursor.block_;
    if (block.records[block.used - 1].number < number) {
      cursor.block_ = block.next;
      cursor.index_ = 0;
      settle(cursor);
    } else if (block.records[cursor.index_].number < number) {
      next(cursor);
    } else {
      return;
    }
  }
}

void SentHistory::remove(Cursor& cursor) noexcept {
  SentBlock* block = cursor.block_;
  SentRecord& record = block->records[cursor.index_];
  record.in_flight = false;
  bytes_in_flight_ -= record.bytes;
  --packets_in_flight_;
  --block->live;
  next(cursor);
  if (block->live == 0) unlink(block);
}

void SentHistory::settle(Cursor& cursor) const noexcept {
  while (cursor.block_ != nullptr) {
    while (cursor.index_ < cursor.block_->used) {
      if (cursor.block_->records[cursor.index_].in_flight) return;
      ++cursor.index_;
    }
    cursor.block_ = cursor.block_->next;
    cursor.index_ = 0;
  }
}

void SentHistory::unlink(SentBlock* block) noexcept {
  (block->prev != nullptr ? block->prev->next : head_) = block->next;
  (block->next != nullptr ? block->next->prev : tail_) = block->prev;
  pool_.give(block);
}

}  // namespace mercury
