#include "transport/flow/sent_history.h"

namespace mercury {

SentHistory::~SentHistory() { clear(); }

void SentHistory::clear() noexcept {
  while (head_ != nullptr) unlink(head_);
  bytes_in_flight_ = 0;
  packets_in_flight_ = 0;
}

bool SentHistory::may_grow(SentKind kind) const noexcept {
  if (may_share()) return true;
  const bool may_reserve = kind == SentKind::kOwn ? reserved_ < kReservedBlocks : blocks_ == 0;
  return may_reserve && pool_.has_reserved();
}

SentBlock* SentHistory::grow(SentKind kind) noexcept {
  if (!may_grow(kind)) return nullptr;
  const bool shares = may_share();
  ++blocks_;
  if (shares) return pool_.take(part_);
  ++reserved_;
  SentBlock* const block = pool_.take_reserved();
  if (kind == SentKind::kOwn) block->data_end = 0;
  return block;
}

bool SentHistory::append(SentKind kind, uint64_t number, const SentTag& tag, uint32_t bytes,
                         uint64_t now_ns) noexcept {
  if (tail_ == nullptr || tail_->used >= end_for(kind, *tail_)) {
    SentBlock* block = grow(kind);
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
  --blocks_;
  if (block->reserved) --reserved_;
  pool_.give(block, part_);
}

}  // namespace mercury
