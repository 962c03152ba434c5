// A set of lists, one a priority, whose most urgent non-empty one is found in three find-first-set
// steps at any number of priorities. Nodes come from pools: an empty trie holds none, so a session
// that has nothing to send costs the 68 bytes of the trie's root.
//
// The lists are intrusive: the trie keeps head and tail, the owner the links.
// Owner/thread: one engine. Nothing allocates after the pools were made.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "transport/base/types.h"

namespace mercury {

inline constexpr uint32_t kNil = ~uint32_t{0};

// Fixed capacity; memory is first touched when a node is first used, so that a pool made for the
// worst case costs address space and not memory.
template <class Node>
class NodePool {
  static_assert(std::is_aggregate_v<Node> && std::is_trivially_copyable_v<Node>,
                "is there where memory is, so that none is touched when the pool is made");

 public:
  explicit NodePool(uint32_t capacity)
      : nodes_(static_cast<Node*>(::operator new(capacity * sizeof(Node)))),
        next_free_(std::make_unique_for_overwrite<uint32_t[]>(capacity)),
        capacity_(capacity),
        available_(capacity) {}
  // kNil when all are in use. The node is not cleared.
  uint32_t take() noexcept {
    if (free_ != kNil) {
      const uint32_t index = free_;
      free_ = next_free_[index];
      --available_;
      return index;
    }
    if (fresh_ == capacity_) return kNil;
    --available_;
    return fresh_++;
  }
  void give(uint32_t index) noexcept {
    next_free_[index] = free_;
    free_ = index;
    ++available_;
  }
  Node& operator[](uint32_t index) noexcept { return nodes_[index]; }
  const Node& operator[](uint32_t index) const noexcept { return nodes_[index]; }
  uint32_t available() const noexcept { return available_; }

 private:
  struct Free {
    void operator()(Node* nodes) const noexcept { ::operator delete(nodes); }
  };
  std::unique_ptr<Node[], Free> nodes_;
  std::unique_ptr<uint32_t[]> next_free_;
  uint32_t capacity_;
  uint32_t fresh_ = 0;  // nodes from here on were never used
  uint32_t free_ = kNil;
  uint32_t available_;
};

struct PriorityList {
  uint32_t head;
  uint32_t tail;
};

// A priority has 16 bits: 4 choose the middle node, 6 the leaf, 6 the list.
struct TrieLeaf {
  uint64_t bits;
  PriorityList lists[64];
};
struct TrieMiddle {
  uint64_t bits;
  uint32_t leaves[64];
};
struct TriePools {
  TriePools(uint32_t middles, uint32_t leaves) : middle(middles), leaf(leaves) {}
  NodePool<TrieMiddle> middle;
  NodePool<TrieLeaf> leaf;
};

class PriorityTrie {
 public:
  bool empty() const noexcept { return bits_ == 0; }

  // Only when not empty.
  uint16_t top(const TriePools& pools) const noexcept {
    const auto high = static_cast<uint32_t>(std::countr_zero(bits_));
    const TrieMiddle& middle = pools.middle[middles_[high]];
    const auto mid = static_cast<uint32_t>(std::countr_zero(middle.bits));
    const TrieLeaf& leaf = pools.leaf[middle.leaves[mid]];
    const auto low = static_cast<uint32_t>(std::countr_zero(leaf.bits));
    return static_cast<uint16_t>(high << 12 | mid << 6 | low);
  }

  bool contains(uint16_t priority, const TriePools& pools) const noexcept {
    const uint32_t high = priority >> 12, mid = (priority >> 6) & 63, low = priority & 63;
    if ((bits_ >> high & 1) == 0) return false;
    const TrieMiddle& middle = pools.middle[middles_[high]];
    if ((middle.bits >> mid & 1) == 0) return false;
    return (pools.leaf[middle.leaves[mid]].bits >> low & 1) != 0;
  }

  // The list of `priority`, made if it is not there; null when a pool has run out. The caller puts
  // something into it at once.
  PriorityList* ensure(uint16_t priority, TriePools& pools) noexcept {
    const uint32_t high = priority >> 12, mid = (priority >> 6) & 63, low = priority & 63;
    const bool new_middle = (bits_ >> high & 1) == 0;
    if (new_middle) {
      const uint32_t index = pools.middle.take();
      if (index == kNil) return nullptr;
      pools.middle[index].bits = 0;
      middles_[high] = index;
    }
    TrieMiddle& middle = pools.middle[middles_[high]];
    if ((middle.bits >> mid & 1) == 0) {
      const uint32_t index = pools.leaf.take();
      if (index == kNil) {
        if (new_middle) pools.middle.give(middles_[high]);
        return nullptr;
      }
      pools.leaf[index].bits = 0;
      middle.leaves[mid] = index;
      middle.bits |= uint64_t{1} << mid;
    }
    bits_ = static_cast<uint16_t>(bits_ | 1U << high);
    TrieLeaf& leaf = pools.leaf[middle.leaves[mid]];
    if ((leaf.bits >> low & 1) == 0) {
      leaf.bits |= uint64_t{1} << low;
      leaf.lists[low] = {kNil, kNil};
    }
    return &leaf.lists[low];
  }

  // The list of a priority that is in the trie.
  PriorityList& at(uint16_t priority, TriePools& pools) noexcept {
    const TrieMiddle& middle = pools.middle[middles_[priority >> 12]];
    return pools.leaf[middle.leaves[(priority >> 6) & 63]].lists[priority & 63];
  }

  // The list of `priority` has become empty: its nodes go back if nothing else is in them.
  void erase(uint16_t priority, TriePools& pools) noexcept {
    const uint32_t high = priority >> 12, mid = (priority >> 6) & 63, low = priority & 63;
    TrieMiddle& middle = pools.middle[middles_[high]];
    TrieLeaf& leaf = pools.leaf[middle.leaves[mid]];
    leaf.bits &= ~(uint64_t{1} << low);
    if (leaf.bits != 0) return;
    pools.leaf.give(middle.leaves[mid]);
    middle.bits &= ~(uint64_t{1} << mid);
    if (middle.bits != 0) return;
    pools.middle.give(middles_[high]);
    bits_ = static_cast<uint16_t>(bits_ & ~(1U << high));
  }

 private:
  uint16_t bits_ = 0;
  uint32_t middles_[16];
};
static_assert(sizeof(PriorityTrie) <= 72);
static_assert(kPriorities == 1U << 16);

}  // namespace mercury
