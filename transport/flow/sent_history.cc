#include "transport/flow/sent_history.h"

namespace mercury {
namespace {

// Of a block's records; the rest are enough for a probe time-out's PINGs and a question or two.
constexpr uint16_t kDataBesideOwn = kSentBlockRecords - 8;

}  // namespace

SentHistory::~SentHistory() { clear(); }

void SentHistory::clear() noexcept {
  while (head_ != nullptr) unlink(head_);
  bytes_in_flight_ = 0;
  packets_in_flight_ = 0;
}

void SentHistory::weigh_nothing() noexcept {
  for (Cursor cursor = oldest(); cursor.record() != nullptr; next(cursor)) {
    cursor.record_->bytes = 0;
  }
  bytes_in_flight_ = 0;
}

// Data begins in its reserve where it has no other block: that bounds it, and is enough to go on.
bool SentHistory::may_grow(SentKind kind) const noexcept {
  if (may_share()) return true;
  const bool may_reserve = kind == SentKind::kOwn ? own_reserve_ == nullptr
                                                  : blocks_ == (own_reserve_ == nullptr ? 0U : 1U);
  return may_reserve && pool_.has_reserved();
}

SentBlock* SentHistory::grow(SentKind kind) noexcept {
  if (!may_grow(kind)) return nullptr;
  const bool shares = may_share();
  // Behind the reserve of own packets nothing is left to them but the end of this block.
  const uint16_t data_end = own_reserve_ == nullptr ? kSentBlockRecords : kDataBesideOwn;
  ++blocks_;
  SentBlock* const block = shares ? pool_.take(part_) : pool_.take_reserved();
  block->data_end = data_end;
  if (shares) return block;
  if (kind == SentKind::kOwn) {
    own_reserve_ = block;
    block->data_end = 0;
  }
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

SentHistory::Cursor SentHistory::own_reserve() const noexcept {
  Cursor cursor;
  enter(cursor, own_reserve_);
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
  if (block == own_reserve_) own_reserve_ = nullptr;
  pool_.give(block, part_);
}

}  // namespace mercury
