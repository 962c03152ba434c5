// What one session has queued: ranges of chunks by priority, first-in first-out inside a priority,
// retransmissions before everything else of their priority in the order in which they came.
//
// Owner/thread: one engine. All operations take constant time but drop(), which is told how long.
// Nothing allocates after the pools were made.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/priority_trie.h"
#include "scheduler/scheduler.h"

namespace mercury {

struct RangeNode {
  TensorIndex tensor;
  Round round;
  ChunkSpan chunks;
  uint32_t next;
  // In the first node of a list: the last retransmission of the list, kNil if it holds none. The
  // other nodes' is not read before they come first.
  uint32_t last_again;
  uint32_t holders;  // of a range that sessions share (SharedRanges)
};

// The chunks of `range` become the last of a range that they continue. In 64 bits, so that neither
// the end of a range nor its length wraps. False: they do not, and nothing has changed.
inline bool extend(RangeNode& last, const ChunkRange& range) noexcept {
  const uint64_t count = uint64_t{last.chunks.count} + range.chunks.count;
  if (last.tensor != range.tensor || last.round != range.round ||
      uint64_t{last.chunks.first.value} + last.chunks.count != range.chunks.first.value ||
      count > ~uint32_t{0}) {
    return false;
  }
  last.chunks.count = static_cast<uint32_t>(count);
  return true;
}

// Shared by all sessions of an engine. A session needs at most 1,024 leaves and 16 middle nodes for
// its own ranges, and as many for its places in those that are shared (SharedPlaces). So where
// sessions are few, all find what they may use, and as much again is there for those that are
// removed and not dropped yet. Otherwise there are as many of both as ranges, and one for each
// session beside these: own ranges alone never run out of them, places may. Worst case, all
// priorities of all ranges far apart: 28 + 520 + 264 bytes a range and 12 for the free lists, 270
// MB at 327,680 ranges; what is never used is never touched.
struct RangePools {
  RangePools(uint32_t max_ranges, uint32_t max_sessions)
      : ranges(max_ranges),
        trie(at_most(max_ranges + max_sessions, 3 * 16, max_sessions),
             at_most(max_ranges + max_sessions, 3 * 1024, max_sessions)),
        never_needed_(trie.leaf.available() == max_ranges + max_sessions ? 0
                                                                         : ~trie.leaf.available()) {
  }

  // More than anybody asks for where they cannot run out.
  uint32_t free_leaves() const noexcept { return trie.leaf.available() + never_needed_; }

  NodePool<RangeNode> ranges;
  TriePools trie;

 private:
  static uint32_t at_most(uint32_t ranges, uint64_t per_session, uint32_t sessions) {
    return static_cast<uint32_t>(std::min<uint64_t>(ranges, per_session * sessions));
  }
  uint32_t never_needed_;  // leaves that are not there, as there are too few sessions for them
};

class RangeQueue {
 public:
  bool empty() const noexcept { return trie_.empty(); }
  // The most urgent priority that is queued. Only when not empty.
  uint16_t top(const RangePools& pools) const noexcept { return trie_.top(pools.trie); }
  bool holds(uint16_t priority, const RangePools& pools) const noexcept {
    return trie_.contains(priority, pools.trie);
  }

  // Whether what cut() would cut of the range's priority is one of these, for the first time.
  bool begins_with(const ChunkRange& range, RangePools& pools) noexcept {
    if (!holds(range.priority, pools)) return false;
    const RangeNode& first = pools.ranges[trie_.at(range.priority, pools.trie).head];
    return first.last_again == kNil && first.tensor == range.tensor && first.round == range.round &&
           range.chunks.contains(first.chunks.first);
  }

  // Whether a range continues the one that append() put somewhere last, which is longer now. Else
  // nothing changed. (Sums become complete one after the other: mostly it does.)
  bool continue_last(const ChunkRange& range, RangePools& pools) noexcept {
    return last_ != kNil && range.priority == last_priority_ && extend(pools.ranges[last_], range);
  }
  // kNot: no node is free, nothing changed. kLonger: the last range is, nothing else changed.
  enum class Appended : uint8_t { kNot, kLonger, kNew };
  // Behind everything of its priority.
  Appended append(const ChunkRange& range, RangePools& pools) noexcept {
    PriorityList* list = trie_.ensure(range.priority, pools.trie);
    if (list == nullptr) return Appended::kNot;
    const bool has_fresh = list->head != kNil && pools.ranges[list->head].last_again != list->tail;
    if (has_fresh && extend(pools.ranges[list->tail], range)) {
      remember(list->tail, range.priority);
      return Appended::kLonger;
    }
    const uint32_t node = take(*list, range, pools);
    if (node == kNil) return Appended::kNot;
    (list->tail == kNil ? list->head : pools.ranges[list->tail].next) = node;
    list->tail = node;
    remember(node, range.priority);
    return Appended::kNew;
  }

  // Behind the retransmissions of its priority, before the rest of it. False: no node is free.
  bool append_again(const ChunkRange& range, RangePools& pools) noexcept {
    PriorityList* list = trie_.ensure(range.priority, pools.trie);
    if (list == nullptr) return false;
    const uint32_t last = list->head == kNil ? kNil : pools.ranges[list->head].last_again;
    if (last != kNil && extend(pools.ranges[last], range)) return true;
    const uint32_t node = take(*list, range, pools);
    if (node == kNil) return false;
    uint32_t& before = last == kNil ? list->head : pools.ranges[last].next;
    pools.ranges[node].next = before;
    before = node;
    if (list->tail == last) list->tail = node;
    pools.ranges[list->head].last_again = node;
    return true;
  }

  struct Cut {
    bool more;         // of this priority is left
    RangeNode* range;  // that was cut; null: it was its last chunk
  };
  // Cuts the first chunk of `priority`, which is queued; sets all of `out` but session and job.
  Cut cut(uint16_t priority, ScheduledChunk& out, RangePools& pools) noexcept {
    PriorityList& list = trie_.at(priority, pools.trie);
    const uint32_t index = list.head;
    RangeNode& node = pools.ranges[index];
    const uint32_t last_again = node.last_again;
    out.key.tensor = node.tensor;
    out.key.round = node.round;
    out.key.chunk = node.chunks.take_first();
    out.priority = priority;
    out.retransmit = last_again != kNil;
    if (node.chunks.count != 0) return {true, &node};
    if (last_ == index) last_ = kNil;
    list.head = node.next;
    if (last_again != kNil && last_again != index) pools.ranges[list.head].last_again = last_again;
    pools.ranges.give(index);
    if (list.head != kNil) return {true, nullptr};
    trie_.erase(priority, pools.trie);
    return {false, nullptr};
  }

  // Drops ranges, `most` of them at most, which it counts down. Nothing is appended or cut from the
  // first call on.
  void drop(RangePools& pools, uint32_t& most) noexcept {
    while (most > 0 && !trie_.empty()) {
      const uint16_t priority = trie_.top(pools.trie);
      PriorityList& list = trie_.at(priority, pools.trie);
      for (; most > 0 && list.head != kNil; --most) {
        const uint32_t index = list.head;
        list.head = pools.ranges[index].next;
        pools.ranges.give(index);
      }
      if (list.head == kNil) trie_.erase(priority, pools.trie);
    }
  }

 private:
  // A node for `range`; kNil if there is none, and then an empty `list` leaves the trie again.
  uint32_t take(const PriorityList& list, const ChunkRange& range, RangePools& pools) noexcept {
    const uint32_t node = pools.ranges.take();
    if (node != kNil) {
      pools.ranges[node] = {range.tensor, range.round, range.chunks, kNil, kNil, 0};
    } else if (list.head == kNil) {
      trie_.erase(range.priority, pools.trie);
    }
    return node;
  }

  void remember(uint32_t node, uint16_t priority) noexcept {
    last_ = node;
    last_priority_ = priority;
  }

  PriorityTrie trie_;
  // What append() put somewhere last, if it is still queued: the last range of its priority, and no
  // retransmission (those go before it).
  uint32_t last_ = kNil;
  uint16_t last_priority_ = 0;
};

}  // namespace mercury
