// A job's tensors, of which there may be tens of thousands: by number, in constant time and without
// allocation (one probe of a power-of-two table that is about half full at most), and in the order
// of declaration.
//
// An insertion moves no tensor, and few of the table's places: one twice as large fills beside the
// table that is half full, and takes its place when all tensors are in it. Its memory comes zeroed
// from the kernel, so no insertion clears it.
//
// T has id(), and a tensor_index that is set here. Owner/thread: one engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/terms/chunk.h"
#include "transport/base/mapped_memory.h"

namespace mercury {

template <class T>
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;

  // (Inlined where it is called: it saves a contribution 13 instructions.)
  [[gnu::always_inline]] T* find(TensorId tensor) noexcept {
    if (places_.empty()) return nullptr;
    for (size_t i = place_of(places_, tensor);; i = (i + 1) & (places_.size() - 1)) {
      T* one = places_[i].one;
      if (one == nullptr || places_[i].tensor == tensor) return one;
    }
  }

  // It is not in the table yet, and none has been dropped. Null: there is no memory for it.
  T* insert(T tensor) {
    if (places_.empty() && !allocate(kFewest, places_, memory_)) return nullptr;
    if (next_.empty() && places_.size() < 2 * (owned_.size() + 1)) {
      if (!allocate(2 * places_.size(), next_, next_memory_)) return nullptr;
      in_next_ = 0;
    }
    tensor.tensor_index = TensorIndex(size());
    owned_.push_back(std::make_unique<T>(std::move(tensor)));
    T& added = *owned_.back();
    put(places_, added);
    if (!next_.empty()) fill_next();
    return &added;
  }

  // The one that was declared last leaves, and none is found by its number any more.
  void drop_last() noexcept {
    places_ = next_ = Places();
    memory_ = MappedMemory();
    next_memory_ = MappedMemory();
    owned_.pop_back();
  }

  // In the order of declaration.
  uint32_t size() const noexcept { return static_cast<uint32_t>(owned_.size()); }
  bool has(TensorIndex index) const noexcept { return index.value < owned_.size(); }
  const T& at(TensorIndex index) const noexcept { return *owned_[index.value]; }
  T& at(TensorIndex index) noexcept { return *owned_[index.value]; }

 private:
  struct Place {
    TensorId tensor;
    T* one = nullptr;
  };
  using Places = std::span<Place>;

  static constexpr size_t kFewest = 4096 / sizeof(Place);  // a page
  // The table is a little more than half full when the next one has all.
  static constexpr uint32_t kAtOnce = 8;

  // Zeroes are what an empty place is.
  static bool allocate(size_t count, Places& places, MappedMemory& memory) noexcept {
    memory = MappedMemory::anonymous(count * sizeof(Place));
    if (memory) places = {reinterpret_cast<Place*>(memory.data()), count};
    return static_cast<bool>(memory);
  }
  // Fibonacci hashing (Knuth, TAOCP 6.4): neighbouring numbers spread over the table.
  static size_t place_of(Places places, TensorId tensor) noexcept {
    return (tensor.value * uint64_t{0x9e3779b97f4a7c15} >> 32) & (places.size() - 1);
  }
  static void put(Places places, T& tensor) noexcept {
    size_t i = place_of(places, tensor.id());
    while (places[i].one != nullptr) i = (i + 1) & (places.size() - 1);
    places[i] = {tensor.id(), &tensor};
  }
  void fill_next() noexcept {
    for (uint32_t left = kAtOnce; left > 0 && in_next_ < size(); --left) {
      put(next_, *owned_[in_next_++]);
    }
    if (in_next_ < size()) return;
    places_ = std::exchange(next_, Places());
    memory_ = std::exchange(next_memory_, MappedMemory());
  }

  Places places_;
  std::vector<std::unique_ptr<T>> owned_;
  Places next_;           // empty: none is due
  uint32_t in_next_ = 0;  // the first so many tensors are
  MappedMemory memory_;   // of the places
  MappedMemory next_memory_;
};

}  // namespace mercury
