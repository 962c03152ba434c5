// The scheduler against the plain rules where sessions take turns and mostly go on where each was
// cut last, while what they hold changes in all ways: ranges of their own and ranges that they
// share, losses of what was sent, units that change, sessions that leave and come back in the
// places of others.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/plain_rules.h"
#include "tests/seeds.h"

namespace mercury {
namespace {

constexpr uint32_t kMaxRanges = 5'000;  // more than are ever queued

// One seed: both do the same random things.
class TurnsTwins {
 public:
  explicit TurnsTwins(uint32_t seed)
      : random_(seed),
        jobs_(1 + seed % 3),
        sessions_(2 + seed % 6),
        priorities_(1 + seed % 4),
        far_(seed % 5 == 0),
        limits_{.max_jobs = jobs_,
                .max_sessions = sessions_,
                .max_ranges = kMaxRanges,
                .quantum_bytes = 1024 + below(30'000),
                .turns = seed % 4 == 0 ? Scheduler::Turns::kUrgency : Scheduler::Turns::kFair},
        real_(limits_),
        plain_(kMaxRanges, limits_.quantum_bytes, limits_.turns),
        shares_(sessions_) {}

  void step() {
    const uint32_t session = below(sessions_);
    const auto job = static_cast<uint16_t>(below(jobs_));
    const uint32_t what = below(64);
    if (what < 2) return toggle_job(job);
    if (what < 6) return toggle_session(session, job);
    if (what < 8) return set_blocked(session, true);
    if (what < 11) return set_blocked(session, false);
    if (what < 18) return admit(session);
    if (what < 26) return admit_all(job);
    if (what < 30) return lose(session);
    if (what < 31) return below(4) == 0 ? set_unit(job) : finish(session);
    if (what < 32) return leave_shared(session);
    if (what < 34) return static_cast<void>(real_.drop_removed(1 + below(4)));
    for (uint32_t left = 1 + below(below(4) == 0 ? 20 : 3); left > 0; --left) send();
  }
  void compare() {
    ASSERT_EQ(real_.idle(), plain_.idle());
    uint64_t all = 0;
    for (uint16_t j = 0; j < jobs_; ++j) {
      const uint64_t chunks = plain_.job_chunks(j);
      ASSERT_EQ(real_.queued_chunks(JobSlot(j)), chunks);
      all += chunks;
    }
    ASSERT_EQ(real_.empty(), all == 0);
    for (uint32_t s = 0; s < sessions_; ++s) {
      ASSERT_EQ(real_.queued_chunks(SessionSlot(s)), plain_.session_chunks(s));
    }
  }
  void end() {
    for (uint16_t j = 0; j < jobs_; ++j) real_.remove_job(JobSlot(j));
    real_.drop_removed(~uint32_t{0});
    ASSERT_EQ(real_.free_ranges(), kMaxRanges);
  }

 private:
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  void toggle_job(uint16_t job) {
    if (!plain_.has_job(job)) {
      const uint32_t weight = 1 + below(3);
      ASSERT_TRUE(real_.add_job(JobSlot(job), weight).ok());
      ASSERT_TRUE(real_.share(JobSlot(job)).ok());
      plain_.add_job(job, weight);
    } else if (below(12) == 0) {
      real_.remove_job(JobSlot(job));
      plain_.remove_job(job);
    }
  }
  void toggle_session(uint32_t session, uint16_t job) {
    if (!plain_.has_session(session)) {
      if (!plain_.has_job(job)) return;
      ASSERT_TRUE(real_.add_session(SessionSlot(session), JobSlot(job)).ok());
      plain_.add_session(session, job);
      shares_[session] = false;
    } else if (below(12) == 0) {
      real_.remove_session(SessionSlot(session));
      plain_.remove_session(session);
    }
  }
  void set_blocked(uint32_t session, bool blocked) {
    blocked ? real_.block(SessionSlot(session)) : real_.unblock(SessionSlot(session));
    if (plain_.has_session(session)) plain_.set_blocked(session, blocked);
  }
  // Mostly one that continues another, or stands behind it.
  ChunkRange range() {
    const auto priority = static_cast<uint16_t>(far_ ? below(8) * 8191 : below(priorities_));
    return {TensorIndex(below(2)), Round(1), {ChunkIndex(below(4)), 1 + below(5)}, priority};
  }
  void admit(uint32_t session) {
    if (!plain_.has_session(session)) return;
    const ChunkRange more = range();
    ASSERT_TRUE(real_.admit(SessionSlot(session), more));
    ASSERT_TRUE(plain_.admit(session, more, PlainRules::kFresh));
  }
  // To those of a job that share its ranges, to which others come now and then.
  void admit_all(uint16_t job) {
    if (!plain_.has_job(job)) return;
    std::vector<SessionSlot> to;
    for (uint32_t s = 0; s < sessions_; ++s) {
      if (!plain_.has_session(s) || real_.job_of(SessionSlot(s)).value != job) continue;
      if (below(3) == 0) shares_[s] = true;
      if (shares_[s]) to.push_back(SessionSlot(s));
    }
    const ChunkRange more = range();
    ASSERT_TRUE(real_.admit_all(JobSlot(job), to, more));
    for (const SessionSlot s : to) ASSERT_TRUE(plain_.admit(s.value, more, PlainRules::kShared));
  }
  void lose(uint32_t session) {
    ChunkRange lost = range();
    if (!sent_.empty() && below(2) != 0) {
      const ScheduledChunk& chunk = sent_[below(static_cast<uint32_t>(sent_.size()))];
      lost = range_of(chunk.key, chunk.priority);
      session = chunk.session.value;
    }
    if (!plain_.has_session(session)) return;
    ASSERT_TRUE(real_.readmit(SessionSlot(session), lost));
    ASSERT_TRUE(plain_.admit(session, lost, PlainRules::kAgain));
  }
  void set_unit(uint16_t job) {
    const uint32_t chunks = below(2) == 0 ? 1 : 1 + below(4);
    real_.set_unit(JobSlot(job), chunks);
    plain_.set_unit(job, chunks);
  }
  void finish(uint32_t session) {
    const ChunkRange which = range();
    ASSERT_EQ(real_.finish(SessionSlot(session), which), plain_.finish(session, which));
  }
  void leave_shared(uint32_t session) {
    if (!plain_.has_session(session)) return;
    real_.leave_shared(SessionSlot(session));
    plain_.leave_shared(session);
    shares_[session] = false;
  }
  void send() {
    ScheduledChunk real;
    if (!next_of_both(real_, plain_, real)) return;
    sent_.push_back(real);
    if (sent_.size() > 20) sent_.erase(sent_.begin());
    if (below(16) == 0) return;  // as where it does not leave after all
    const uint32_t bytes = 1 + below(9000);
    real_.charge(real.job, bytes);
    plain_.charge(real.job.value, bytes);
  }

  std::mt19937 random_;
  const uint32_t jobs_, sessions_;
  const uint32_t priorities_;  // of ranges, or
  const bool far_;             // some far apart
  const Scheduler::Limits limits_;
  Scheduler real_;
  PlainRules plain_;
  std::vector<bool> shares_;          // a session has been in admit_all, and is in each from now on
  std::vector<ScheduledChunk> sent_;  // the last of them
};

TEST(SchedulerModel, SessionsInTurnsGoOnByThePlainRulesWhateverChanges) {
  for_each_seed(3000, [](uint64_t number) {
    const auto seed = static_cast<uint32_t>(number);
    TurnsTwins turns(seed);
    for (int step = 0; step < 600; ++step) {
      turns.step();
      turns.compare();
      if (testing::Test::HasFatalFailure()) FAIL() << "in step " << step;
    }
    turns.end();
  });
}

}  // namespace
}  // namespace mercury
