// First in, first out, in room that was reserved: within it nothing allocates, beyond it the room
// grows. Memory is touched as items come.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace mercury {

template <class T>
class Fifo {
 public:
  // For so many items at a time. By doubling, so that room for one more is not copied each time.
  void reserve(size_t most) {
    if (items_.capacity() < 2 * most) items_.reserve(2 * std::max(most, items_.capacity()));
  }
  size_t size() const noexcept { return items_.size() - first_; }
  bool empty() const noexcept { return size() == 0; }
  const T& front() const noexcept { return items_[first_]; }
  void pop() noexcept {
    if (++first_ < items_.size()) return;
    items_.clear();
    first_ = 0;
  }
  void push(const T& item) {
    // Half of the room has been left, so that as many have been popped as are moved.
    if (items_.size() == items_.capacity() && first_ >= items_.size() - first_) close_gap();
    items_.push_back(item);
  }
  template <class Condition>
  void erase_if(Condition gone) {
    close_gap();
    std::erase_if(items_, gone);
  }

 private:
  void close_gap() noexcept {
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

  std::vector<T> items_;
  size_t first_ = 0;
};

}  // namespace mercury
