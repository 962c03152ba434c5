// First in, first out, in room that was reserved: below it nothing allocates, beyond it the room
// grows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace mercury {

template <class T>
class Fifo {
 public:
  // By doubling, so that room for one more at a time is not copied each time.
  void reserve(size_t most) {
    if (items_.capacity() < most) items_.reserve(std::max(most, 2 * items_.capacity()));
  }
  size_t size() const noexcept { return items_.size() - first_; }
  bool empty() const noexcept { return size() == 0; }
  const T& front() const noexcept { return items_[first_]; }
  void pop() noexcept {
    if (++first_ == items_.size()) clear();
  }
  void push(const T& item) {
    if (items_.size() == items_.capacity() && first_ > 0) close_gap();
    items_.push_back(item);
  }
  template <class Condition>
  void erase_if(Condition gone) {
    close_gap();
    std::erase_if(items_, gone);
  }

 private:
  void clear() noexcept {
    items_.clear();
    first_ = 0;
  }
  void close_gap() noexcept {
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

  std::vector<T> items_;
  size_t first_ = 0;
};

}  // namespace mercury
