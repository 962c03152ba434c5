#include "transport/port/sim/frame_pool.h"

#include <algorithm>

namespace mercury::sim {

Frame* FramePool::acquire(uint32_t bytes) {
  size_t size_class = 0;
  while (size_class + 1 < kCapacity.size() && kCapacity[size_class] < bytes) ++size_class;
  if (free_[size_class] == nullptr) grow(size_class);
  Frame* frame = free_[size_class];
  free_[size_class] = frame->next;
  std::byte* const data = frame->data;
  *frame = Frame{};
  frame->data = data;
  frame->capacity = kCapacity[size_class];
  frame->size_class = static_cast<uint8_t>(size_class);
  ++in_use_;
  return frame;
}

void FramePool::release(Frame* frame) noexcept {
  frame->next = free_[frame->size_class];
  free_[frame->size_class] = frame;
  --in_use_;
}

void FramePool::grow(size_t size_class) {
  // Slabs of a quarter megabyte keep the number of heap calls small at every frame size.
  const uint32_t capacity = kCapacity[size_class];
  const size_t count = std::max<size_t>(4, (size_t{256} << 10) / capacity);
  slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(count * capacity));
  frames_.push_back(std::make_unique<Frame[]>(count));
  for (size_t i = 0; i < count; ++i) {
    Frame& frame = frames_.back()[i];
    frame.data = slabs_.back().get() + i * capacity;
    frame.next = free_[size_class];
    free_[size_class] = &frame;
  }
}

}  // namespace mercury::sim
