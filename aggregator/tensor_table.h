// From a tensor's number to its slots, in constant time and without allocation: one probe of a
// power-of-two table that is at most half full.
//
// Owner/thread: one engine. insert may throw std::bad_alloc, which the caller catches; find never.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "aggregator/tensor_slots.h"

namespace mercury::aggregation {

class TensorTable {
 public:
  // (Inlined where it is called: it saves a contribution 13 instructions.)
  [[gnu::always_inline]] TensorSlots* find(TensorId tensor) noexcept {
    if (places_.empty()) return nullptr;
    for (size_t i = place_of(tensor);; i = (i + 1) & (places_.size() - 1)) {
      TensorSlots* slots = places_[i].slots;
      if (slots == nullptr || places_[i].tensor == tensor) return slots;
    }
  }

  // The tensor is not in the table yet.
  void insert(TensorSlots slots) {
    if (places_.size() < 2 * (owned_.size() + 1)) grow();
    slots.tensor_index = TensorIndex(size());
    owned_.push_back(std::make_unique<TensorSlots>(std::move(slots)));
    place(owned_.back().get());
  }

  // The one that was declared last leaves, and none is found by its number any more.
  void drop_last() noexcept {
    places_.clear();
    owned_.pop_back();
  }

  // In the order of declaration.
  uint32_t size() const noexcept { return static_cast<uint32_t>(owned_.size()); }
  bool has(TensorIndex index) const noexcept { return index.value < owned_.size(); }
  const TensorSlots& at(TensorIndex index) const noexcept { return *owned_[index.value]; }
  TensorSlots& at(TensorIndex index) noexcept { return *owned_[index.value]; }

 private:
  struct Place {
    TensorId tensor;
    TensorSlots* slots = nullptr;
  };

  // Fibonacci hashing (Knuth, TAOCP 6.4): neighbouring numbers spread over the table.
  size_t place_of(TensorId tensor) const noexcept {
    return (tensor.value * uint64_t{0x9e3779b97f4a7c15} >> 32) & (places_.size() - 1);
  }
  void place(TensorSlots* slots) noexcept {
    size_t i = place_of(slots->id());
    while (places_[i].slots != nullptr) i = (i + 1) & (places_.size() - 1);
    places_[i] = {slots->id(), slots};
  }
  void grow() {
    std::vector<Place> larger(places_.empty() ? 16 : 2 * places_.size());
    places_.swap(larger);
    for (const auto& slots : owned_) place(slots.get());
  }

  std::vector<Place> places_;
  std::vector<std::unique_ptr<TensorSlots>> owned_;
};

}  // namespace mercury::aggregation
