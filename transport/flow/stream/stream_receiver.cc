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
  if (!note(offset, end)) return false;
  bytes_.write(offset, bytes);
  return true;
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

size_t StreamReceiver::read(std::span<std::byte> out) noexcept {
  const size_t bytes = std::min(out.size(), readable());
  if (bytes == 0) return 0;
  bytes_.read(consumed_, out.first(bytes));
  consume(bytes);
  return bytes;
}

void StreamReceiver::consume(size_t bytes) noexcept {
  consumed_ += bytes;
  bytes_.release_before(consumed_);
}

void StreamReceiver::discard_to(uint64_t offset) noexcept {
  empty_at_rest(pieces_);
  bytes_.clear();
  arrived_ = consumed_ = std::max(offset, arrived_);
}

}  // namespace mercury
