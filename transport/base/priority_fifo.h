// First in, first out among items of one priority, and the highest priority first.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/base/fifo.h"

namespace mercury {

template <class T, size_t kPriorities>
class PriorityFifo {
 public:
  static_assert(kPriorities <= 32);
  // Of each priority, see Fifo.
  void reserve(size_t most) {
    for (Fifo<T>& line : lines_) line.reserve(most);
  }
  bool empty() const noexcept { return used_ == 0; }
  // Of the first item. Not empty.
  uint8_t priority() const noexcept { return static_cast<uint8_t>(std::bit_width(used_) - 1); }
  const T& front() const noexcept { return lines_[priority()].front(); }
  void pop() noexcept {
    const uint8_t first = priority();
    lines_[first].pop();
    note(first);
  }
  void push(const T& item, uint8_t priority) {
    lines_[priority].push(item);
    note(priority);
  }
  template <class Condition>
  void erase_if(Condition gone) {
    for (size_t priority = 0; priority < kPriorities; ++priority) {
      if (lines_[priority].empty()) continue;
      lines_[priority].erase_if(gone);
      note(static_cast<uint8_t>(priority));
    }
  }

 private:
  void note(uint8_t priority) noexcept {
    const uint32_t bit = uint32_t{1} << priority;
    used_ = lines_[priority].empty() ? used_ & ~bit : used_ | bit;
  }

  std::array<Fifo<T>, kPriorities> lines_;
  uint32_t used_ = 0;  // a bit for each that is not empty
};

}  // namespace mercury
