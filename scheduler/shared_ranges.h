// Ranges that all sessions of a job have to send, each kept once for all of them: by priority, in
// the order in which they came. A session has a place in the list of each priority of which
// something is left for it, and no ranges of its own.
//
// Owner/thread: one engine. All operations take constant time but drop(), which is told how long.
// Nothing allocates after the pools were made. Paper: ours.
#pragma once

#include <cstdint>
#include <utility>

#include "scheduler/priority_trie.h"
#include "scheduler/range_queue.h"
#include "scheduler/scheduler.h"
#include "transport/base/mapped_memory.h"

namespace mercury {

// What is queued for all sessions of one job.
//
// Invariants: (1) a range is kept as long as some session has not come to its end, and so are those
// behind it; `holders` counts the sessions that stand in it, and the range before it, if there is
// one. (2) A session that stands in a list comes to all that is appended to it later.
class SharedRanges {
 public:
  explicit SharedRanges(MappedMemory last) : last_(std::move(last)) {}
  static MappedMemory memory() noexcept {
    return MappedMemory::anonymous(kPriorities * sizeof(uint32_t));
  }

  // Where the chunks of an appended range begin.
  struct Appended {
    uint32_t node;
    uint32_t taken;  // so many chunks of the node are others, before them
  };
  // Behind everything of its priority. The caller has made sure that a node is free, and has
  // sessions stand there.
  Appended append(const ChunkRange& range, RangePools& pools) noexcept {
    uint32_t& last = last_of(range.priority);
    uint32_t holders = 0;
    if (last != 0) {
      RangeNode& before = pools.ranges[last - 1];
      const uint32_t taken = before.chunks.count;
      if (extend(before, range)) return {last - 1, taken};
      holders = 1;
    }
    const uint32_t node = pools.ranges.take();
    pools.ranges[node] = {range.tensor, range.round, range.chunks, kNil, kNil, holders};
    if (last != 0) pools.ranges[last - 1].next = node;
    last = node + 1;
    return {node, 0};
  }
  // One holder of a node fewer: it goes with the last.
  void release(uint32_t index, uint16_t priority, RangePools& pools) noexcept {
    RangeNode& node = pools.ranges[index];
    if (--node.holders != 0) return;
    if (node.next != kNil) {
      --pools.ranges[node.next].holders;
    } else {
      last_of(priority) = 0;
    }
    pools.ranges.give(index);
  }

 private:
  uint32_t& last_of(uint16_t priority) noexcept {
    return reinterpret_cast<uint32_t*>(last_.data())[priority];
  }

  // By priority, the last node of its list and one; 0: it is empty. Never searched, so only what
  // is used of it is touched.
  MappedMemory last_;
};

// One session's places in the lists of its job: in each the node that it stands in (the head of a
// PriorityList), and how many of its chunks it has taken (the tail).
class SharedPlaces {
 public:
  bool empty() const noexcept { return trie_.empty(); }
  // The most urgent priority of which something is left. Only when not empty.
  uint16_t top(const RangePools& pools) const noexcept { return trie_.top(pools.trie); }

  // Whether it has come to stand in this list last, and does.
  bool stands_in(uint16_t priority) const noexcept { return stands_in_ == priority; }
  // Has the session stand where a range begins, unless it stands in that list already. True: it
  // does now. The caller has made sure that there is room.
  bool stand(const SharedRanges::Appended& at, uint16_t priority, RangePools& pools) noexcept {
    stands_in_ = priority;
    PriorityList& place = *trie_.ensure(priority, pools.trie);
    if (place.head != kNil) return false;
    place = {at.node, at.taken};
    ++pools.ranges[at.node].holders;
    return true;
  }

  // Cuts the first chunk of `priority`, of which something is left; sets all of `out` but session
  // and job. Its place in the range that `cut` says was cut.
  PriorityList* cut(uint16_t priority, ScheduledChunk& out, SharedRanges& shared, RangePools& pools,
                    RangeQueue::Cut& cut) noexcept {
    PriorityList& place = trie_.at(priority, pools.trie);
    RangeNode& node = pools.ranges[place.head];
    out.key.tensor = node.tensor;
    out.key.round = node.round;
    out.key.chunk = node.chunks.at(place.tail++);
    out.priority = priority;
    out.retransmit = false;
    if (place.tail != node.chunks.count) {
      cut = {true, &node};
      return &place;
    }
    cut = {go_on(place, priority, shared, pools), nullptr};
    return nullptr;
  }

  // Leaves its places, looking at `most` ranges at most, which it counts down. Nothing else is
  // asked of it from the first call on.
  void drop(SharedRanges& shared, RangePools& pools, uint32_t& most) noexcept {
    for (; most > 0 && !trie_.empty(); --most) {
      const uint16_t priority = trie_.top(pools.trie);
      PriorityList& place = trie_.at(priority, pools.trie);
      if (pools.ranges[place.head].holders > 1) {  // and so whoever stands there keeps the rest
        const uint32_t node = place.head;
        leave(priority, pools);
        shared.release(node, priority, pools);
      } else {
        go_on(place, priority, shared, pools);
      }
    }
  }

 private:
  // To the range behind. False: there is none, and the session has left the list.
  bool go_on(PriorityList& place, uint16_t priority, SharedRanges& shared,
             RangePools& pools) noexcept {
    const uint32_t node = place.head;
    const uint32_t next = pools.ranges[node].next;
    if (next != kNil) {
      ++pools.ranges[next].holders;
      place = {next, 0};
    } else {
      leave(priority, pools);
    }
    shared.release(node, priority, pools);
    return next != kNil;
  }
  void leave(uint16_t priority, RangePools& pools) noexcept {
    trie_.erase(priority, pools.trie);
    if (priority == stands_in_) stands_in_ = kNowhere;
  }

  static constexpr uint32_t kNowhere = kPriorities;

  PriorityTrie trie_;
  uint32_t stands_in_ = kNowhere;  // the list that stand() was told of last, while it does
};

}  // namespace mercury
