#include "transport/flow/stream/stream_sender.h"

#include <algorithm>

namespace mercury {

void StreamSender::append(std::span<const std::byte> bytes) {
  bytes_.write(end_, bytes);
  end_ += bytes.size();
  unacknowledged_bytes_ += bytes.size();
}

void StreamSender::appended(size_t bytes) {
  end_ += bytes;
  unacknowledged_bytes_ += bytes;
  bytes_.extend(end_);
}

std::optional<StreamSender::Segment> StreamSender::next(uint32_t most,
                                                        uint64_t limit) const noexcept {
  if (lost_ > 0) {
    const Record& record = segments_[head_ + first_lost_];
    return Segment{first_number_ + static_cast<uint32_t>(first_lost_), record.bytes, record.offset,
                   record.end};
  }
  const uint64_t room = limit - std::min(limit, cut_);
  const auto bytes = static_cast<uint32_t>(std::min({uint64_t{most}, end_ - cut_, room}));
  const bool end = finished_ && !end_cut_ && cut_ + bytes == end_;
  if (bytes == 0 && !end) return std::nullopt;
  return Segment{first_number_ + static_cast<uint32_t>(segments()), bytes, cut_, end};
}

void StreamSender::on_sent(const Segment& segment) {
  in_flight_bytes_ += segment.bytes;
  if (Record* again = find(segment.number)) {
    again->place = Place::kInFlight;
    --lost_;
    while (lost_ > 0 && segments_[head_ + first_lost_].place != Place::kLost) ++first_lost_;
    return;
  }
  segments_.push_back({segment.offset, segment.bytes, Place::kInFlight, segment.end});
  cut_ += segment.bytes;
  end_cut_ = end_cut_ || segment.end;
}

StreamSender::Record* StreamSender::find(uint32_t number) noexcept {
  const uint32_t index = number - first_number_;
  return index < segments() ? &segments_[head_ + index] : nullptr;
}

void StreamSender::on_lost(uint32_t number) noexcept {
  Record* record = find(number);
  if (record == nullptr || record->place != Place::kInFlight) return;
  record->place = Place::kLost;
  in_flight_bytes_ -= record->bytes;
  const size_t index = number - first_number_;
  first_lost_ = lost_ == 0 ? index : std::min(first_lost_, index);
  ++lost_;
}

void StreamSender::on_acked(uint32_t number) noexcept {
  Record* record = find(number);
  if (record == nullptr || record->place != Place::kInFlight) return;
  record->place = Place::kAcked;
  in_flight_bytes_ -= record->bytes;
  unacknowledged_bytes_ -= record->bytes;
  drop_acknowledged();
}

void StreamSender::drop_acknowledged() noexcept {
  size_t count = 0;
  while (head_ < segments_.size() && segments_[head_].place == Place::kAcked) {
    ++head_;
    ++count;
  }
  if (count == 0) return;
  first_number_ += static_cast<uint32_t>(count);
  first_lost_ -= std::min(first_lost_, count);
  if (segments() == 0) {
    empty_at_rest(segments_);
    head_ = 0;
  } else if (head_ >= segments()) {  // as many have gone as are moved
    segments_.erase(segments_.begin(), segments_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  bytes_.release_before(base());
}

uint64_t StreamSender::abandon() noexcept {
  first_number_ += static_cast<uint32_t>(segments());
  empty_at_rest(segments_);
  head_ = first_lost_ = 0;
  lost_ = 0;
  in_flight_bytes_ = unacknowledged_bytes_ = 0;
  end_ = cut_;
  finished_ = end_cut_ = true;
  bytes_.clear();
  return cut_;
}

}  // namespace mercury
