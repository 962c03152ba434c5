#include "transport/flow/control_stream.h"

#include <algorithm>
#include <cstring>

#include "transport/wire/be.h"

namespace mercury {
namespace {

constexpr size_t kPrefixBytes = sizeof(wire::Be32);

size_t message_bytes(std::span<const std::byte> stream) noexcept {
  wire::Be32 length;
  std::memcpy(&length, stream.data(), kPrefixBytes);
  return length.value();
}

// `vector = {}` keeps the memory.
template <class T>
void release(std::vector<T>& vector) noexcept {
  std::vector<T>().swap(vector);
}

}  // namespace

bool ControlSender::push(std::span<const std::byte> message) {
  const size_t total = kPrefixBytes + message.size();
  if (unacknowledged_bytes_ + total > kMaxControlUnacknowledgedBytes) return false;
  const wire::Be32 length(static_cast<uint32_t>(message.size()));
  append(std::as_bytes(std::span(&length, 1)));
  append(message);
  unacknowledged_bytes_ += total;
  return true;
}

// Small messages share a segment, as long as it was never sent.
void ControlSender::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (segments_.empty() || segments_.back().sent ||
        segments_.back().bytes.size() == kControlSegmentBytes) {
      segments_.push_back(Piece{end_, Place::kWaiting, false, {}});
    }
    std::vector<std::byte>& last = segments_.back().bytes;
    const size_t take = std::min<size_t>(kControlSegmentBytes - last.size(), bytes.size());
    last.insert(last.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(take));
    end_ += take;
    bytes = bytes.subspan(take);
  }
}

ControlSender::Segment ControlSender::next() const noexcept {
  if (first_waiting_ >= segments_.size()) return {};
  const Piece& piece = segments_[first_waiting_];
  const uint64_t window_end = segments_.front().offset + kControlWindowBytes;
  if (piece.offset + piece.bytes.size() > window_end) return {};
  return Segment{piece.offset, piece.bytes};
}

ControlSender::Piece* ControlSender::find(uint64_t offset) noexcept {
  const auto found =
      std::lower_bound(segments_.begin(), segments_.end(), offset,
                       [](const Piece& piece, uint64_t wanted) { return piece.offset < wanted; });
  return found == segments_.end() || found->offset != offset ? nullptr : &*found;
}

void ControlSender::on_sent(uint64_t offset) noexcept {
  Piece* piece = find(offset);
  if (piece == nullptr || piece->place != Place::kWaiting) return;
  piece->place = Place::kInFlight;
  piece->sent = true;
  in_flight_bytes_ += piece->bytes.size();
  while (first_waiting_ < segments_.size() && segments_[first_waiting_].place != Place::kWaiting) {
    ++first_waiting_;
  }
}

void ControlSender::on_lost(uint64_t offset) noexcept {
  Piece* piece = find(offset);
  if (piece == nullptr || piece->place != Place::kInFlight) return;
  piece->place = Place::kWaiting;
  in_flight_bytes_ -= piece->bytes.size();
  first_waiting_ = std::min(first_waiting_, static_cast<size_t>(piece - segments_.data()));
}

void ControlSender::on_acked(uint64_t offset) noexcept {
  Piece* piece = find(offset);
  if (piece == nullptr || piece->place != Place::kInFlight) return;
  piece->place = Place::kAcked;
  in_flight_bytes_ -= piece->bytes.size();
  unacknowledged_bytes_ -= piece->bytes.size();
  release(piece->bytes);
  const auto still = std::find_if(segments_.begin(), segments_.end(),
                                  [](const Piece& other) { return other.place != Place::kAcked; });
  first_waiting_ -= std::min(first_waiting_, static_cast<size_t>(still - segments_.begin()));
  if (still == segments_.end()) {
    release(segments_);
    first_waiting_ = 0;
  } else {
    segments_.erase(segments_.begin(), still);
  }
}

bool ControlReceiver::on_bytes(uint64_t offset, std::span<const std::byte> bytes) {
  // Written so that a hostile offset near 2^64 cannot wrap.
  if (bytes.size() > kControlWindowBytes) return false;
  if (offset > next_ && offset - next_ > kControlWindowBytes - bytes.size()) return false;
  if (offset > next_) return keep(offset, bytes);
  if (next_ - offset >= bytes.size()) return true;  // all of it arrived before
  deliver(bytes.subspan(static_cast<size_t>(next_ - offset)));
  while (!pieces_.empty() && pieces_.begin()->first <= next_) {
    const auto piece = pieces_.extract(pieces_.begin());
    pieces_bytes_ -= piece.mapped().size();
    const uint64_t known = next_ - piece.key();
    if (known >= piece.mapped().size()) continue;
    deliver(std::span(piece.mapped()).subspan(static_cast<size_t>(known)));
  }
  return true;
}

bool ControlReceiver::keep(uint64_t offset, std::span<const std::byte> bytes) {
  const auto found = pieces_.find(offset);
  const size_t held = found == pieces_.end() ? 0 : found->second.size();
  if (held >= bytes.size()) return true;
  if (found == pieces_.end() && pieces_.size() == kMaxPieces) return false;
  if (pieces_bytes_ - held + bytes.size() > kControlWindowBytes) return false;
  pieces_[offset].assign(bytes.begin(), bytes.end());
  pieces_bytes_ += bytes.size() - held;
  return true;
}

void ControlReceiver::deliver(std::span<const std::byte> bytes) {
  ready_.insert(ready_.end(), bytes.begin(), bytes.end());
  next_ += bytes.size();
}

ControlReceiver::Next ControlReceiver::next_message(std::vector<std::byte>& message) {
  const std::span<const std::byte> left = std::span(ready_).subspan(taken_);
  if (left.size() >= kPrefixBytes) {
    const size_t bytes = message_bytes(left);
    if (bytes > kMaxControlMessageBytes) return Next::kBad;
    if (left.size() - kPrefixBytes >= bytes) {
      const std::span<const std::byte> body = left.subspan(kPrefixBytes, bytes);
      message.assign(body.begin(), body.end());
      taken_ += kPrefixBytes + bytes;
      return Next::kMessage;
    }
  }
  // Once for all messages that were taken, so that many small ones do not cost their square.
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  if (ready_.empty()) release(ready_);
  return Next::kNone;
}

}  // namespace mercury
