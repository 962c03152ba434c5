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
  enter(cursor, head_);
  return cursor;
}

void SentHistory::next(Cursor& cursor) const noexcept {
  ++cursor.record_;
  settle(cursor);
}

void SentHistory::seek(Cursor& cursor, uint64_t number) const noexcept {
  while (cursor.record_ != nullptr) {
    const SentBlock& block = *cursor.block_;
    if (block.records[block.used - 1].number < number) {
      enter(cursor, block.next);
    } else if (cursor.record_->number < number) {
      next(cursor);
    } else {
      return;
    }
  }
}

// At the first record in flight of `block`, or of those behind it.
void SentHistory::enter(Cursor& cursor, SentBlock* block) const noexcept {
  cursor.block_ = block;
  cursor.record_ = block == nullptr ? nullptr : block->records.data();
  settle(cursor);
}

void SentHistory::settle(Cursor& cursor) const noexcept {
  while (cursor.block_ != nullptr) {
    for (SentRecord* const past = end(*cursor.block_); cursor.record_ != past; ++cursor.record_) {
      if (cursor.record_->in_flight) return;
    }
    cursor.block_ = cursor.block_->next;
    cursor.record_ = cursor.block_ == nullptr ? nullptr : cursor.block_->records.data();
  }
}

void SentHistory::unlink(SentBlock* block) noexcept {
  (block->prev != nullptr ? block->prev->next : head_) = block->next;
  (block->next != nullptr ? block->next->prev : tail_) = block->prev;
  pool_.give(block);
}

}  // namespace mercury
