// The scheduler against the same rules written down plainly, over many seeds, where ranges are few.
#include <gtest/gtest.h>

#include <random>

#include "scheduler/scheduler.h"
#include "tests/scheduler/plain_rules.h"
#include "tests/seeds.h"

namespace mercury {
namespace {

constexpr uint32_t kJobs = 3, kSessions = 7;

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
      case 12:
        return set_held(job, below(2) != 0);
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
  void set_held(uint16_t job, bool held) {
    held ? real_.hold(JobSlot(job)) : real_.go_on(JobSlot(job));
    held ? plain_.hold(job) : plain_.go_on(job);
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
    ASSERT_EQ(real, !counts || plain_.admit(session, range,
                                            again ? PlainRules::kAgain : PlainRules::kFresh));
  }
  void send() {
    ScheduledChunk real;
    if (!next_of_both(real_, plain_, real)) return;
    const uint32_t bytes = 1 + below(9000);
    real_.charge(real.job, bytes);
    plain_.charge(real.job.value, bytes);
  }

  std::mt19937 random_;
  const uint32_t max_ranges_;
  const uint32_t quantum_;
  const bool far_;  // priorities from all 65,536, or from a few
  Scheduler real_;
  PlainRules plain_;
};

TEST(SchedulerModel, EqualsThePlainRulesOverManySeeds) {
  for_each_seed(3000, [](uint64_t number) {
    const auto seed = static_cast<uint32_t>(number);
    Twins twins(seed);
    for (int step = 0; step < 400; ++step) {
      twins.step();
      twins.compare();
      if (testing::Test::HasFatalFailure()) FAIL() << "in step " << step;
    }
  });
}

}  // namespace
}  // namespace mercury
