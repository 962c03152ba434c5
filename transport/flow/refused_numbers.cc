#include "transport/flow/refused_numbers.h"

#include <algorithm>

namespace mercury {

bool RefusedNumbers::add(uint64_t number) noexcept {
  if (number < floor_) return false;
  uint32_t index = count_;  // of the first range above
  while (index > 0 && ranges_[index - 1].first > number) --index;
  const bool joins_below = index > 0 && ranges_[index - 1].last + 1 == number;
  const bool joins_above = index < count_ && number + 1 == ranges_[index].first;
  if (joins_below) {
    ranges_[index - 1].last = joins_above ? ranges_[index].last : number;
    reports_[index - 1] = kReports;
    if (!joins_above) return true;
    std::copy(ranges_.begin() + index + 1, ranges_.begin() + count_, ranges_.begin() + index);
    std::copy(reports_.begin() + index + 1, reports_.begin() + count_, reports_.begin() + index);
    --count_;
    return true;
  }
  if (joins_above) {
    ranges_[index].first = number;
    reports_[index] = kReports;
    return true;
  }
  if (count_ == kMaxRanges) return false;
  std::copy_backward(ranges_.begin() + index, ranges_.begin() + count_,
                     ranges_.begin() + count_ + 1);
  std::copy_backward(reports_.begin() + index, reports_.begin() + count_,
                     reports_.begin() + count_ + 1);
  ranges_[index] = {number, number};
  reports_[index] = kReports;
  ++count_;
  return true;
}

uint32_t RefusedNumbers::report(std::span<wire::AckRange> out, uint64_t largest) noexcept {
  for (uint32_t i = 0; i < count_; ++i) {
    out[count_ - 1 - i] = ranges_[i];
    if (reports_[i] > 0) --reports_[i];
  }
  const uint32_t said = count_;
  // The lowest go first: the floor is above all that is not named any more.
  uint32_t gone = 0;
  while (gone < count_ && reports_[gone] == 0 && ranges_[gone].last < largest) ++gone;
  if (gone == 0) return said;
  floor_ = ranges_[gone - 1].last + 1;
  std::copy(ranges_.begin() + gone, ranges_.begin() + count_, ranges_.begin());
  std::copy(reports_.begin() + gone, reports_.begin() + count_, reports_.begin());
  count_ -= gone;
  return said;
}

}  // namespace mercury
