// The scheduler against the same rules written down plainly, over many seeds: maps and deques,
// nothing shared with the code under test but its types.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "scheduler/scheduler.h"

namespace mercury {
namespace {

constexpr uint32_t kJobs = 3, kSessions = 7;

class Reference {
 public:
  Reference(uint32_t max_ranges, int64_t quantum) : max_ranges_(max_ranges), quantum_(quantum) {}

  struct JobTurn {
    int64_t weight, deficit = 0;
    bool in_turn = false;
  };
  struct SessionQueues {
    uint16_t job;
    std::map<uint16_t, std::deque<ChunkRange>> again{}, fresh{};
    bool blocked = false;
    int top = -1;        // most urgent priority, -1: may not send
    uint64_t since = 0;  // when it joined the list of its top priority
  };

  void add_job(uint16_t job, uint32_t weight) { jobs_[job] = {weight}; }
  void remove_job(uint16_t job) {
    std::erase_if(sessions_, [job](const auto& s) { return s.second.job == job; });
    jobs_.erase(job);
  }
  void add_session(uint32_t session, uint16_t job) { sessions_[session] = {job}; }
  void remove_session(uint32_t session) { sessions_.erase(session); }
  bool has_job(uint16_t job) const { return jobs_.count(job) != 0; }
  bool has_session(uint32_t session) const { return sessions_.count(session) != 0; }

  bool admit(uint32_t session, const ChunkRange& range, bool again) {
    SessionQueues& s = sessions_.at(session);
    auto& queues = again ? s.again : s.fresh;
    auto& queue = queues[range.priority];
    if (!queue.empty() && queue.back().tensor == range.tensor &&
        queue.back().round == range.round && queue.back().chunks.end() == range.chunks.first) {
      queue.back().chunks.count += range.chunks.count;
    } else if (free_ranges() == 0) {
      return false;
    } else {
      queue.push_back(range);
    }
    place(s, false);
    return true;
  }
  void set_blocked(uint32_t session, bool blocked) {
    sessions_.at(session).blocked = blocked;
    place(sessions_.at(session), false);
  }
  void charge(uint16_t job, uint32_t bytes) {
    if (has_job(job)) jobs_.at(job).deficit -= bytes;
  }

  bool next(ScheduledChunk& out) {
    while (!round_.empty()) {
      const uint16_t job = round_.front();
      const bool stays = top_session(job) != sessions_.end();
      if (stays) {
        JobTurn& j = jobs_.at(job);
        if (!j.in_turn) j.deficit += quantum_ * j.weight;
        j.in_turn = true;
        if (j.deficit > 0) {
          cut(top_session(job), out);
          return true;
        }
        round_.push_back(job);
      }
      round_.pop_front();
      if (!has_job(job)) continue;
      jobs_.at(job).in_turn = false;
      if (!stays) jobs_.at(job).deficit = std::min<int64_t>(jobs_.at(job).deficit, 0);
    }
    return false;
  }

  bool idle() const {
    return std::none_of(sessions_.begin(), sessions_.end(),
                        [](const auto& s) { return s.second.top >= 0; });
  }
  uint32_t free_ranges() const {
    size_t used = 0;
    for (const auto& [id, s] : sessions_) {
      for (const auto* queues : {&s.again, &s.fresh}) {
        for (const auto& [priority, queue] : *queues) used += queue.size();
      }
    }
    return max_ranges_ - static_cast<uint32_t>(used);
  }
  uint64_t chunks(const SessionQueues& s) const {
    uint64_t sum = 0;
    for (const auto* queues : {&s.again, &s.fresh}) {
      for (const auto& [priority, queue] : *queues) {
        for (const ChunkRange& range : queue) sum += range.chunks.count;
      }
    }
    return sum;
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
  using Place = std::map<uint32_t, SessionQueues>::iterator;

  static int top(const SessionQueues& s) {
    int best = -1;
    for (const auto* queues : {&s.again, &s.fresh}) {
      for (const auto& [priority, queue] : *queues) {
        if (!queue.empty() && (best < 0 || priority < best)) best = priority;
      }
    }
    return s.blocked ? -1 : best;
  }
  void place(SessionQueues& s, bool to_end) {
    const int now = top(s);
    if (now != s.top || to_end) s.since = ++clock_;
    s.top = now;
    if (now >= 0 && std::find(round_.begin(), round_.end(), s.job) == round_.end()) {
      round_.push_back(s.job);
    }
  }
  Place top_session(uint16_t job) {
    Place best = sessions_.end();
    for (Place it = sessions_.begin(); it != sessions_.end(); ++it) {
      const SessionQueues& s = it->second;
      if (s.job != job || s.top < 0) continue;
      if (best == sessions_.end() || s.top < best->second.top ||
          (s.top == best->second.top && s.since < best->second.since)) {
        best = it;
      }
    }
    return best;
  }
  void cut(Place it, ScheduledChunk& out) {
    SessionQueues& s = it->second;
    const auto priority = static_cast<uint16_t>(s.top);
    const bool again = !s.again[priority].empty();
    auto& queue = again ? s.again[priority] : s.fresh[priority];
    ChunkRange& range = queue.front();
    out = {SessionSlot(it->first),
           JobSlot(s.job),
           {range.tensor, range.round, range.chunks.take_first()},
           priority,
           again};
    if (range.chunks.count == 0) queue.pop_front();
    place(s, true);
  }

  const uint32_t max_ranges_;
  const int64_t quantum_;
  std::map<uint16_t, JobTurn> jobs_;
  std::map<uint32_t, SessionQueues> sessions_;
  std::deque<uint16_t> round_;
  uint64_t clock_ = 0;
};

// One seed: both do the same random things.
class Twins {
 public:
  explicit Twins(uint32_t seed)
      : random_(seed),
        max_ranges_(seed % 2 == 0 ? 12 : 2000),
        quantum_(1024 + below(30'000)),
        far_(below(2) != 0),
        real_({kJobs, kSessions, max_ranges_, quantum_}),
        plain_(max_ranges_, quantum_) {}

  void step() {
    const auto session = below(kSessions);
    const auto job = static_cast<uint16_t>(below(kJobs));
    switch (below(20)) {
      case 0:
        return toggle_job(job);
      case 1:
      case 2:
        return toggle_session(session, job);
      case 3:
      case 4:
        return set_blocked(session, below(2) != 0);
      case 5:
      case 6:
      case 7:
      case 8:
      case 9:
        return admit(session, false);
      case 10:
      case 11:
        return admit(session, true);
      default:
        return send();
    }
  }
  void compare() {
    ASSERT_EQ(real_.idle(), plain_.idle());
    ASSERT_EQ(real_.free_ranges(), plain_.free_ranges());
    ASSERT_EQ(real_.empty(), plain_.free_ranges() == max_ranges_);
    for (uint32_t s = 0; s < kSessions; ++s) {
      ASSERT_EQ(real_.queued_chunks(SessionSlot(s)), plain_.session_chunks(s));
    }
    for (uint16_t j = 0; j < kJobs; ++j) {
      ASSERT_EQ(real_.queued_chunks(JobSlot(j)), plain_.job_chunks(j));
    }
  }

 private:
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  void toggle_job(uint16_t job) {
    if (!plain_.has_job(job)) {
      const uint32_t weight = 1 + below(3);
      ASSERT_TRUE(real_.add_job(JobSlot(job), weight).ok());
      plain_.add_job(job, weight);
    } else if (below(8) == 0) {
      real_.remove_job(JobSlot(job));
      real_.drop_removed(max_ranges_);
      plain_.remove_job(job);
    }
  }
  void toggle_session(uint32_t session, uint16_t job) {
    if (!plain_.has_session(session)) {
      const bool added = real_.add_session(SessionSlot(session), JobSlot(job)).ok();
      ASSERT_EQ(added, plain_.has_job(job));
      if (added) plain_.add_session(session, job);
    } else if (below(8) == 0) {
      real_.remove_session(SessionSlot(session));
      real_.drop_removed(max_ranges_);
      plain_.remove_session(session);
    }
  }
  void set_blocked(uint32_t session, bool blocked) {
    blocked ? real_.block(SessionSlot(session)) : real_.unblock(SessionSlot(session));
    if (plain_.has_session(session)) plain_.set_blocked(session, blocked);
  }
  void admit(uint32_t session, bool again) {
    ChunkRange range;
    range.priority = static_cast<uint16_t>(far_ ? below(kPriorities) : below(4));
    range.tensor = TensorIndex(below(3));
    range.round = Round(~uint32_t{0} + below(2));
    range.chunks.first = ChunkIndex(below(4));
    range.chunks.count = below(5);
    const bool real = again ? real_.readmit(SessionSlot(session), range)
                            : real_.admit(SessionSlot(session), range);
    const bool counts = plain_.has_session(session) && range.chunks.count != 0;
    ASSERT_EQ(real, !counts || plain_.admit(session, range, again));
  }
  void send() {
    ScheduledChunk real, plain;
    const bool any = plain_.next(plain);
    ASSERT_EQ(real_.next(real), any);
    if (!any) return;
    ASSERT_EQ(real.session, plain.session);
    ASSERT_EQ(real.job, plain.job);
    ASSERT_EQ(real.key, plain.key);
    ASSERT_EQ(real.priority, plain.priority);
    ASSERT_EQ(real.retransmit, plain.retransmit);
    const uint32_t bytes = 1 + below(9000);
    real_.charge(real.job, bytes);
    plain_.charge(real.job.value, bytes);
  }

  std::mt19937 random_;
  const uint32_t max_ranges_;
  const uint32_t quantum_;
  const bool far_;  // priorities from all 65,536, or from a few
  Scheduler real_;
  Reference plain_;
};

TEST(SchedulerModel, EqualsThePlainRulesOverManySeeds) {
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    Twins twins(seed);
    for (int step = 0; step < 400; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      twins.step();
      twins.compare();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace mercury
