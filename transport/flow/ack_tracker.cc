#include "transport/flow/ack_tracker.h"

#include <algorithm>

namespace mercury {

// Index of the first range that ends at or after `number`; count_ when there is none. Arrivals are
// mostly at the top, so the search begins there.
uint32_t AckTracker::find(uint64_t number) const noexcept {
  uint32_t index = count_;
  while (index > 0 && ranges_[index - 1].last >= number) --index;
  return index;
}

bool AckTracker::is_new_elsewhere(uint64_t number) const noexcept {
  if (is_ahead(number)) return !is_far_ahead(number);
  if (number < floor_) return false;
  const uint32_t index = find(number);
  if (index < count_ && ranges_[index].first <= number) return false;
  // A range of its own below all others would be the next one forgotten.
  return index > 0 || count_ < kMaxRanges || number + 1 == ranges_[0].first;
}

bool AckTracker::on_out_of_order(uint64_t number, bool eliciting, bool ack_now, uint64_t now_ns,
                                 const Arrival& arrival) noexcept {
  if (!is_new(number)) return false;
  const bool first = count_ == 0;
  if (first || number > ranges_[count_ - 1].last) {
    largest_at_ns_ = now_ns;
    largest_arrival_ = arrival;
  }
  record(number);
  next_ = largest() + 1;
  if (eliciting) note_eliciting(ack_now || !first, now_ns);
  return true;
}

void AckTracker::record(uint64_t number) noexcept {
  const uint32_t index = find(number);
  const bool joins_below = index > 0 && ranges_[index - 1].last + 1 == number;
  const bool joins_above = index < count_ && number + 1 == ranges_[index].first;
  if (joins_below && joins_above) {
    ranges_[index].first = ranges_[index - 1].first;
    reports_[index] = kReports;
    erase_range(index - 1);
  } else if (joins_below) {
    ranges_[index - 1].last = number;
    reports_[index - 1] = kReports;
  } else if (joins_above) {
    ranges_[index].first = number;
    reports_[index] = kReports;
  } else {
    insert_range(index, number);
  }
}

void AckTracker::insert_range(uint32_t index, uint64_t number) noexcept {
  if (count_ == kMaxRanges) {  // what is missing below it stays so
    floor_ = ranges_[0].last + 1;
    erase_range(0);
    --index;  // is_new() refused index 0
  }
  for (uint32_t i = count_; i > index; --i) {
    ranges_[i] = ranges_[i - 1];
    reports_[i] = reports_[i - 1];
  }
  ranges_[index] = NumberRange{number, number};
  reports_[index] = kReports;
  ++count_;
}

void AckTracker::erase_range(uint32_t index) noexcept {
  for (uint32_t i = index; i + 1 < count_; ++i) {
    ranges_[i] = ranges_[i + 1];
    reports_[i] = reports_[i + 1];
  }
  --count_;
}

// What is missing below a number that arrived before is told, if it is one gap or has become
// several.
bool AckTracker::find_missing() noexcept {
  uint64_t behind = 0;
  for (uint32_t i = count_ - 1; i > 0 && ranges_[i].first > missing_below_; --i) {
    behind += ranges_[i].last - ranges_[i].first + 1;
    if (behind < kOvertaking) continue;
    missing_below_ = ranges_[i].first;
    return true;
  }
  return false;
}

bool AckTracker::take_missing_for_long(uint64_t now_ns, uint64_t bear_ns) noexcept {
  if (watched_to_ == 0) {
    const uint64_t known = missing_below_;
    if (!take_missing()) return false;
    watched_from_ = std::max(known, ranges_[0].first);
    watched_to_ = missing_below_;
    watched_ns_ = now_ns;
    return false;
  }
  if (now_ns - watched_ns_ < bear_ns) return false;
  const uint32_t index = find(watched_from_);
  const bool all_came =
      index < count_ && ranges_[index].first <= watched_from_ && ranges_[index].last >= watched_to_;
  watched_to_ = 0;
  return !all_came;
}

uint32_t AckTracker::report(std::span<NumberRange> out) noexcept {
  uint32_t written = 0;
  for (uint32_t i = count_; i > 0 && written < out.size(); --i) {
    if (i != count_ && reports_[i - 1] == 0) continue;  // the highest is always said
    out[written++] = ranges_[i - 1];
    if (reports_[i - 1] > 0) --reports_[i - 1];
  }
  unacknowledged_ = 0;
  deadline_ns_ = kNever;
  return written;
}

}  // namespace mercury
