// The scheduler's rules written down plainly: maps and deques, nothing shared with the code under
// test but its types.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>

#include "scheduler/scheduler.h"

namespace mercury {

class PlainRules {
 public:
  PlainRules(uint32_t max_ranges, int64_t quantum, Scheduler::Turns turns = Scheduler::Turns::kFair)
      : max_ranges_(max_ranges), quantum_(quantum), fair_(turns == Scheduler::Turns::kFair) {
    if (!fair_) turns_[kAllJobs] = {1};
  }

  // In the order in which a session sends them at one priority.
  enum Kind : uint8_t { kAgain, kFresh, kShared };
  static constexpr size_t kKinds = 3;

  void add_job(uint16_t job, uint32_t weight) {
    units_[job] = 1;
    if (fair_) turns_[job] = {weight};
  }
  void remove_job(uint16_t job) {
    std::erase_if(sessions_, [job](const auto& s) { return s.second.job == job; });
    units_.erase(job);
    if (fair_) turns_.erase(job);
  }
  void add_session(uint32_t session, uint16_t job) { sessions_[session] = {job}; }
  void remove_session(uint32_t session) { sessions_.erase(session); }
  bool has_job(uint16_t job) const { return units_.count(job) != 0; }
  bool has_session(uint32_t session) const { return sessions_.count(session) != 0; }

  void set_unit(uint16_t job, uint32_t chunks) {
    if (!has_job(job) || units_.at(job) == chunks) return;
    units_.at(job) = chunks;
    for (auto& [id, s] : sessions_) {
      if (s.job != job) continue;
      s.unit_left = 0;
      place(s, false);
    }
  }
  bool finish(uint32_t session, const ChunkRange& range) {
    if (!has_session(session) || range.priority == 0) return false;
    SessionQueues& s = sessions_.at(session);
    if (units_.at(s.job) > 1 || s.unit_left > 0 || s.blocked) return false;
    const auto its = s.queues[kFresh].find(range.priority);
    if (s.queues[kAgain].count(range.priority) != 0 || its == s.queues[kFresh].end()) return false;
    const ChunkRange& first = its->second.front();
    if (first.tensor != range.tensor || first.round != range.round ||
        !range.chunks.contains(first.chunks.first)) {
      return false;
    }
    s.unit_left = 1;
    s.unit_priority = range.priority;
    place(s, false);
    return true;
  }
  void leave_shared(uint32_t session) {
    SessionQueues& s = sessions_.at(session);
    if (s.queues[kShared].empty()) return;
    s.queues[kShared].clear();
    s.unit_left = 0;
    place(s, false);
  }

  bool admit(uint32_t session, const ChunkRange& range, Kind kind) {
    SessionQueues& s = sessions_.at(session);
    const auto its = s.queues[kind].find(range.priority);
    ChunkRange* const last = its == s.queues[kind].end() ? nullptr : &its->second.back();
    if (last && last->tensor == range.tensor && last->round == range.round &&
        last->chunks.end() == range.chunks.first) {
      last->chunks.count += range.chunks.count;
    } else if (kind != kShared && free_ranges() == 0) {
      return false;
    } else {
      s.queues[kind][range.priority].push_back(range);
    }
    place(s, false);
    return true;
  }
  void set_blocked(uint32_t session, bool blocked) {
    sessions_.at(session).blocked = blocked;
    place(sessions_.at(session), false);
  }
  // Where jobs take turns.
  void hold(uint16_t job) {
    if (has_job(job)) turns_.at(job).held = true;
  }
  void go_on(uint16_t job) {
    if (!has_job(job) || !turns_.at(job).held) return;
    turns_.at(job).held = false;
    if (top_session(job) != sessions_.end()) join(job);
  }
  void charge(uint16_t job, uint32_t bytes) {
    if (has_job(job)) turns_.at(turn_of(job)).deficit -= bytes;
  }

  bool next(ScheduledChunk& out) {
    while (!round_.empty()) {
      const uint32_t turn = round_.front();
      const bool stays = top_session(turn) != sessions_.end() && !turns_.at(turn).held;
      if (stays) {
        Turn& t = turns_.at(turn);
        if (!t.now) t.deficit += quantum_ * t.weight;
        t.now = true;
        if (t.deficit > 0) {
          cut(top_session(turn), out);
          return true;
        }
        round_.push_back(turn);
      }
      round_.pop_front();
      if (turns_.count(turn) == 0) continue;
      turns_.at(turn).now = false;
      if (!stays) turns_.at(turn).deficit = std::min<int64_t>(turns_.at(turn).deficit, 0);
    }
    return false;
  }

  bool idle() const {
    return std::none_of(sessions_.begin(), sessions_.end(), [this](const auto& s) {
      return s.second.rank >= 0 && !turns_.at(turn_of(s.second.job)).held;
    });
  }
  // But for those that sessions share.
  uint32_t free_ranges() const {
    size_t used = 0;
    for (const auto& [id, s] : sessions_) {
      for (const Kind kind : {kAgain, kFresh}) {
        for (const auto& [priority, queue] : s.queues[kind]) used += queue.size();
      }
    }
    return max_ranges_ - static_cast<uint32_t>(used);
  }
  uint64_t session_chunks(uint32_t session) const {
    return has_session(session) ? chunks(sessions_.at(session)) : 0;
  }
  uint64_t job_chunks(uint16_t job) const {
    uint64_t sum = 0;
    for (const auto& [id, s] : sessions_) sum += s.job == job ? chunks(s) : 0;
    return sum;
  }

 private:
  using Queues = std::map<uint16_t, std::deque<ChunkRange>>;  // by priority, none empty
  struct Turn {
    int64_t weight, deficit = 0;
    bool now = false;
    bool held = false;
  };
  struct SessionQueues {
    uint16_t job;
    std::array<Queues, kKinds> queues{};
    bool blocked = false;
    uint32_t unit_left = 0;
    uint16_t unit_priority = 0;
    int rank = -1;       // where it stands in its turn, 0 first; -1: may not send
    uint64_t since = 0;  // when it came there
  };
  using Place = std::map<uint32_t, SessionQueues>::iterator;
  static constexpr uint32_t kAllJobs = ~uint32_t{0};

  uint32_t turn_of(uint16_t job) const { return fair_ ? job : kAllJobs; }
  static uint64_t chunks(const SessionQueues& s) {
    uint64_t sum = 0;
    for (const Queues& queues : s.queues) {
      for (const auto& [priority, queue] : queues) {
        for (const ChunkRange& range : queue) sum += range.chunks.count;
      }
    }
    return sum;
  }
  static int top(const SessionQueues& s) {
    int best = -1;
    for (const Queues& queues : s.queues) {
      if (!queues.empty() && (best < 0 || queues.begin()->first < best)) {
        best = queues.begin()->first;
      }
    }
    return best;
  }
  void place(SessionQueues& s, bool to_end) {
    const int most_urgent = top(s);
    const int now = s.blocked || most_urgent < 0 ? -1 : s.unit_left != 0 ? 0 : most_urgent;
    const bool moves = now != s.rank;
    if (moves || to_end) s.since = ++clock_;
    s.rank = now;
    if (now >= 0 && moves) join(turn_of(s.job));
  }
  void join(uint32_t turn) {
    if (std::find(round_.begin(), round_.end(), turn) == round_.end()) round_.push_back(turn);
  }
  Place top_session(uint32_t turn) {
    Place best = sessions_.end();
    for (Place it = sessions_.begin(); it != sessions_.end(); ++it) {
      const SessionQueues& s = it->second;
      if (turn_of(s.job) != turn || s.rank < 0) continue;
      if (best == sessions_.end() || s.rank < best->second.rank ||
          (s.rank == best->second.rank && s.since < best->second.since)) {
        best = it;
      }
    }
    return best;
  }
  void cut(Place it, ScheduledChunk& out) {
    SessionQueues& s = it->second;
    const auto priority = s.unit_left != 0 ? s.unit_priority : static_cast<uint16_t>(s.rank);
    const auto kind =
        std::find_if(s.queues.begin(), s.queues.end(),
                     [priority](const Queues& queues) { return queues.count(priority) != 0; });
    const bool again = kind == s.queues.begin();
    std::deque<ChunkRange>& queue = kind->at(priority);
    ChunkRange& range = queue.front();
    out = {SessionSlot(it->first),
           JobSlot(s.job),
           {range.tensor, range.round, range.chunks.take_first()},
           priority,
           again};
    const bool left = range.chunks.count != 0;
    if (!left) queue.pop_front();
    if (queue.empty()) kind->erase(priority);
    if (units_.at(s.job) == 1) {
      s.unit_left = 0;
    } else if (!again) {
      s.unit_left = left ? (s.unit_left != 0 ? s.unit_left : units_.at(s.job)) - 1 : 0;
      s.unit_priority = priority;
    }
    place(s, true);
  }

  const uint32_t max_ranges_;
  const int64_t quantum_;
  const bool fair_;
  std::map<uint16_t, uint32_t> units_;  // of each job that is there
  std::map<uint32_t, Turn> turns_;      // of each job, or of all together
  std::map<uint32_t, SessionQueues> sessions_;
  std::deque<uint32_t> round_;
  uint64_t clock_ = 0;
};

// Both have the same next chunk, or none (false).
inline bool next_of_both(Scheduler& scheduler, PlainRules& rules, ScheduledChunk& real) {
  ScheduledChunk plain;
  const bool any = rules.next(plain);
  EXPECT_EQ(scheduler.next(real), any);
  if (!any) return false;
  EXPECT_EQ(real.session, plain.session);
  EXPECT_EQ(real.job, plain.job);
  EXPECT_EQ(real.key, plain.key);
  EXPECT_EQ(real.priority, plain.priority);
  EXPECT_EQ(real.retransmit, plain.retransmit);
  return true;
}

}  // namespace mercury
