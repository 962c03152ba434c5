#include "transport/flow/stream/stream_receiver.h"

#include <algorithm>

namespace mercury {

bool StreamReceiver::on_bytes(uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  if (bytes.empty() || end <= arrived_) return true;  // all of it arrived before
  if (offset < arrived_) {
    bytes = bytes.subspan(static_cast<size_t>(arrived_ - offset));
    offset = arrived_;
  }
  if (offset == arrived_) keep();
  if (!note(offset, end)) return false;
  bytes_.write(offset, bytes);
  return true;
}

bool StreamReceiver::on_lent_bytes(uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  const bool joins = !pieces_.empty() && end >= pieces_.front().begin;
  if (offset > arrived_ || end <= arrived_ || joins) return on_bytes(offset, bytes);
  lent_.push_back(bytes.subspan(static_cast<size_t>(arrived_ - offset)));
  lent_bytes_ += lent_.back().size();
  arrived_ = end;
  return true;
}

void StreamReceiver::keep() {
  for (const std::span<const std::byte> bytes : lent_) {
    bytes_.write(kept_end(), bytes);
    lent_bytes_ -= bytes.size();
  }
  empty_at_rest(lent_);
}

size_t StreamReceiver::peek(std::span<iovec> parts) const noexcept {
  size_t count = bytes_.parts(consumed_, readable() - lent_bytes_, parts);
  for (size_t i = 0; i < lent_.size() && count < parts.size(); ++i) {
    parts[count++] = {const_cast<std::byte*>(lent_[i].data()), lent_[i].size()};
  }
  return count;
}

// [begin, end) joins the pieces that it meets, or what arrived without a gap.
bool StreamReceiver::note(uint64_t begin, uint64_t end) {
  const auto first = std::find_if(pieces_.begin(), pieces_.end(),
                                  [&](const Piece& piece) { return piece.end >= begin; });
  auto last = first;
  while (last != pieces_.end() && last->begin <= end) ++last;
  if (first != last) {
    begin = std::min(begin, first->begin);
    end = std::max(end, std::prev(last)->end);
  } else if (begin > arrived_ && pieces_.size() == kMaxGaps) {
    return false;
  }
  if (begin <= arrived_) {
    pieces_.erase(first, last);
    arrived_ = end;
    if (pieces_.empty()) empty_at_rest(pieces_);
  } else if (first == last) {
    pieces_.insert(first, {begin, end});
  } else {
    *first = {begin, end};
    pieces_.erase(std::next(first), last);
  }
  return true;
}

size_t StreamReceiver::read(std::span<std::byte> out) {
  const size_t bytes = std::min(out.size(), readable());
  if (bytes == 0) return 0;
  keep();
  bytes_.read(consumed_, out.first(bytes));
  consume(bytes);
  return bytes;
}

void StreamReceiver::consume(size_t bytes) noexcept {
  const uint64_t kept = kept_end();
  consumed_ += bytes;
  if (consumed_ > kept) return_bytes(static_cast<size_t>(consumed_ - kept));
  bytes_.release_before(consumed_);
}

// The first `bytes` of what is lent.
void StreamReceiver::return_bytes(size_t bytes) noexcept {
  lent_bytes_ -= bytes;
  auto first = lent_.begin();
  for (; first != lent_.end() && first->size() <= bytes; ++first) bytes -= first->size();
  if (first != lent_.end()) *first = first->subspan(bytes);
  lent_.erase(lent_.begin(), first);
}

void StreamReceiver::discard_to(uint64_t offset) noexcept {
  empty_at_rest(pieces_);
  empty_at_rest(lent_);
  lent_bytes_ = 0;
  bytes_.clear();
  arrived_ = consumed_ = std::max(offset, arrived_);
}

}  // namespace mercury
