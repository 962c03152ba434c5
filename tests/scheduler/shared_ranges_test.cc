// Ranges that several sessions of a job share: next() answers as if each session had been given its
// own, whatever else happens; they take one range for all; and all is free again in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/seeds.h"

namespace mercury::sharing {
namespace {

constexpr JobSlot kJob{0};

ChunkRange range(uint16_t priority, uint32_t tensor, uint32_t first, uint32_t count) {
  return {TensorIndex(tensor), 1, {ChunkIndex(first), count}, priority};
}

class SharedRangesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(scheduler_.add_job(kJob).ok());
    ASSERT_TRUE(scheduler_.share(kJob).ok());
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(scheduler_.add_session(SessionSlot(i), kJob).ok());
      sessions_.push_back(SessionSlot(i));
    }
  }
  bool admit_all(const ChunkRange& range) { return scheduler_.admit_all(kJob, sessions_, range); }
  // Session of the next chunk, -1 if there is none.
  int64_t next() {
    if (!scheduler_.next(out_)) return -1;
    scheduler_.charge(out_.job, 1000);
    return out_.session.value;
  }

  Scheduler scheduler_{{4, 64, 1000, 4096}};
  std::vector<SessionSlot> sessions_;
  ScheduledChunk out_;
};

TEST_F(SharedRangesTest, OneRangeIsKeptUntilTheLastSessionHasTakenIt) {
  ASSERT_TRUE(admit_all(range(5, 1, 0, 2)));
  EXPECT_EQ(scheduler_.free_ranges(), 999U);
  EXPECT_EQ(scheduler_.held_ranges(kJob), 1U);
  EXPECT_EQ(scheduler_.queued_chunks(kJob), 8U);
  EXPECT_EQ(scheduler_.queued_chunks(SessionSlot(3)), 2U);
  scheduler_.block(SessionSlot(3));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(next(), i % 3);
  EXPECT_EQ(next(), -1);
  EXPECT_EQ(scheduler_.free_ranges(), 999U);
  ASSERT_TRUE(admit_all(range(5, 1, 2, 1)));  // goes on where three have come to the end
  EXPECT_EQ(scheduler_.free_ranges(), 999U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(next(), i);
    EXPECT_EQ(out_.key.chunk.value, 2U);
  }
  EXPECT_EQ(next(), -1);
  scheduler_.unblock(SessionSlot(3));
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(next(), 3);
    EXPECT_EQ(out_.key.chunk.value, chunk);
  }
  EXPECT_EQ(next(), -1);
  EXPECT_TRUE(scheduler_.empty());
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
  EXPECT_EQ(scheduler_.free_leaves(), 1000U);
  EXPECT_EQ(scheduler_.held_ranges(kJob), 0U);
  EXPECT_EQ(scheduler_.held_leaves(kJob), 0U);
}

TEST_F(SharedRangesTest, WhoeverComesLaterGetsWhatIsAdmittedFromThenOn) {
  ASSERT_TRUE(admit_all(range(5, 1, 0, 2)));
  ASSERT_TRUE(scheduler_.add_session(SessionSlot(9), kJob).ok());
  sessions_.push_back(SessionSlot(9));
  ASSERT_TRUE(admit_all(range(5, 1, 2, 1)));
  ASSERT_TRUE(admit_all(range(5, 2, 0, 1)));
  EXPECT_EQ(scheduler_.queued_chunks(SessionSlot(9)), 2U);
  for (uint32_t i = 0; i < 4; ++i) scheduler_.block(SessionSlot(i));
  EXPECT_EQ(next(), 9);
  EXPECT_EQ(out_.key.chunk.value, 2U);
  EXPECT_EQ(next(), 9);
  EXPECT_EQ(out_.key.tensor.value, 2U);
  EXPECT_EQ(next(), -1);
}

TEST_F(SharedRangesTest, WhoLeavesIsSentNoMoreAndKeepsNothing) {
  for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(admit_all(range(5, i, 0, 1)));
  for (uint32_t i = 0; i < 3; ++i) scheduler_.block(SessionSlot(i));
  EXPECT_EQ(next(), 3);
  scheduler_.leave_shared(SessionSlot(3));
  sessions_.pop_back();
  EXPECT_EQ(scheduler_.queued_chunks(SessionSlot(3)), 0U);
  ASSERT_TRUE(admit_all(range(5, 10, 0, 1)));
  EXPECT_EQ(next(), -1);
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(3), range(5, 0, 0, 1)));
  EXPECT_EQ(next(), 3) << "what is its own goes on";
  for (uint32_t i = 0; i < 3; ++i) scheduler_.unblock(SessionSlot(i));
  for (uint32_t i = 0; i < 33; ++i) EXPECT_EQ(next(), i % 3);
  scheduler_.drop_removed(100);
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
  EXPECT_EQ(scheduler_.free_leaves(), 1000U);
}

// The last that had not taken them is gone: its ranges go in steps, and the slot is another's.
TEST_F(SharedRangesTest, WhatARemovedSessionHeldAloneIsFreedInSteps) {
  for (uint32_t i = 0; i < 600; ++i) {
    ASSERT_TRUE(admit_all(range(static_cast<uint16_t>(i / 200), i, 0, 1)));
  }
  scheduler_.block(SessionSlot(3));
  for (int i = 0; i < 1800; ++i) ASSERT_GE(next(), 0);
  EXPECT_EQ(next(), -1);
  EXPECT_EQ(scheduler_.free_ranges(), 400U);
  scheduler_.remove_session(SessionSlot(3));
  EXPECT_TRUE(scheduler_.empty());
  ASSERT_TRUE(scheduler_.add_session(SessionSlot(3), kJob).ok());
  for (uint32_t left = 600; left > 0;) {
    EXPECT_EQ(scheduler_.free_ranges(), 1000 - left);
    const uint32_t dropped = scheduler_.drop_removed(70);
    EXPECT_EQ(dropped, std::min(left, 70U));
    left -= dropped;
    ASSERT_TRUE(admit_all(range(3, 1000 + left, 0, 1)));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(next(), i) << "others go on";
  }
  EXPECT_EQ(scheduler_.drop_removed(70), 0U);
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
  EXPECT_EQ(scheduler_.free_leaves(), 1000U);
}

TEST_F(SharedRangesTest, OfAJobThatIsRemovedAllIsFreed) {
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(admit_all(range(static_cast<uint16_t>(640 * (i % 7)), i, 0, 2)));
  }
  for (int i = 0; i < 250; ++i) ASSERT_GE(next(), 0);
  scheduler_.remove_job(kJob);
  EXPECT_TRUE(scheduler_.empty());
  ASSERT_TRUE(scheduler_.add_job(kJob).ok());
  ASSERT_TRUE(scheduler_.share(kJob).ok());
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(scheduler_.add_session(SessionSlot(i), kJob).ok());
  ASSERT_TRUE(admit_all(range(640, 7, 0, 1)));
  while (scheduler_.drop_removed(3) > 0) {
  }
  EXPECT_EQ(scheduler_.free_ranges(), 999U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(next(), i);
    EXPECT_EQ(out_.key.tensor.value, 7U);
  }
  EXPECT_EQ(next(), -1);
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
  EXPECT_EQ(scheduler_.free_leaves(), 1000U);
}

// Each far from the others: a leaf for each of four sessions. Of these there are a thousand, and
// one for each session that there may be.
TEST_F(SharedRangesTest, WithoutRoomForAllNothingIsAdmitted) {
  uint32_t admitted = 0;
  while (admit_all(range(static_cast<uint16_t>(64 * admitted), admitted, 0, 1))) ++admitted;
  EXPECT_EQ(admitted, 266U);
  EXPECT_EQ(scheduler_.held_leaves(kJob), 1064U);
  EXPECT_EQ(scheduler_.free_ranges(), 734U);
  EXPECT_EQ(scheduler_.queued_chunks(kJob), 1064U);
  EXPECT_FALSE(scheduler_.readmit(SessionSlot(0), range(64 * 300, 0, 0, 1)));
  EXPECT_TRUE(scheduler_.admit(SessionSlot(0), ChunkRange{})) << "no chunks";
  for (int i = 0; i < 1064; ++i) ASSERT_GE(next(), 0);
  EXPECT_EQ(next(), -1);
  EXPECT_EQ(scheduler_.free_leaves(), 1000U);
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
}

// With fewer ranges than sessions have places, each far enough from the other for a middle node.
TEST(SharedRanges, OfManySessionsFindTheirNodes) {
  Scheduler scheduler({1, 64, 100, 4096});
  ASSERT_TRUE(scheduler.add_job(kJob).ok());
  ASSERT_TRUE(scheduler.share(kJob).ok());
  std::vector<SessionSlot> sessions;
  for (uint32_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(scheduler.add_session(SessionSlot(i), kJob).ok());
    sessions.push_back(SessionSlot(i));
  }
  ASSERT_TRUE(scheduler.admit_all(kJob, sessions, range(0, 0, 0, 1)));
  ASSERT_TRUE(scheduler.admit_all(kJob, sessions, range(4096, 1, 0, 1)));
  EXPECT_EQ(scheduler.held_leaves(kJob), 128U);
  EXPECT_EQ(scheduler.queued_chunks(kJob), 128U);
}

// Two schedulers do the same random things, but that in one each session is given its own.
class Twins {
 public:
  explicit Twins(uint32_t seed) : random_(seed), far_(below(2) != 0) {
    for (Scheduler* one : {&shared_, &plain_}) {
      for (uint16_t job = 0; job < 2; ++job) {
        EXPECT_TRUE(one->add_job(JobSlot(job), 1 + job).ok());
        EXPECT_TRUE(one->share(JobSlot(job)).ok());
        one->set_unit(JobSlot(job), 1 + 3 * (seed >> job & 1));
      }
    }
    for (uint32_t session = 0; session < kSessions; ++session) add(session);
  }
  void step() {
    const uint32_t session = below(kSessions);
    switch (below(24)) {
      case 0:
        if (below(4) == 0) return replace(session);
        return;
      case 1:
        return both([&](Scheduler& one) { one.block(SessionSlot(session)); });
      case 2:
      case 3:
      case 4:
        return both([&](Scheduler& one) { one.unblock(SessionSlot(session)); });
      case 5:
        return readmit(session);
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        return admit_all();
      default:
        return send();
    }
  }
  void compare() {
    ASSERT_EQ(shared_.idle(), plain_.idle());
    ASSERT_EQ(shared_.empty(), plain_.empty());
    for (uint32_t session = 0; session < kSessions; ++session) {
      ASSERT_EQ(shared_.queued_chunks(SessionSlot(session)),
                plain_.queued_chunks(SessionSlot(session)));
    }
    ASSERT_EQ(shared_.queued_chunks(JobSlot(0)), plain_.queued_chunks(JobSlot(0)));
    ASSERT_LE(shared_.max_used(), plain_.max_used());
  }
  void end() {
    for (uint32_t session = 0; session < kSessions; ++session) {
      both([&](Scheduler& one) { one.unblock(SessionSlot(session)); });
    }
    while (!plain_.empty()) send();
    both([](Scheduler& one) {
      while (one.drop_removed(5) > 0) {
      }
    });
    ASSERT_TRUE(shared_.empty());
    ASSERT_EQ(shared_.free_ranges(), kRanges);
    ASSERT_EQ(shared_.free_leaves(), kRanges);
    ASSERT_EQ(shared_.held_leaves(JobSlot(0)) + shared_.held_leaves(JobSlot(1)), 0U);
  }

 private:
  static constexpr uint32_t kSessions = 7, kRanges = 10'000;
  struct Counted : Scheduler {
    using Scheduler::Scheduler;
    uint32_t max_used() const { return kRanges - free_ranges(); }
  };

  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  template <class F>
  void both(F each) {
    each(shared_);
    each(plain_);
  }
  static JobSlot job_of(uint32_t session) { return JobSlot(static_cast<uint16_t>(session % 2)); }
  void add(uint32_t session) {
    both([&](Scheduler& one) {
      EXPECT_TRUE(one.add_session(SessionSlot(session), job_of(session)).ok());
    });
    members_.insert(members_.begin() + (members_.empty() ? 0 : below(2)), session);
  }
  void replace(uint32_t session) {
    std::erase(members_, session);
    both([&](Scheduler& one) {
      one.remove_session(SessionSlot(session));
      one.drop_removed(3);
    });
    add(session);
  }
  uint16_t priority() { return static_cast<uint16_t>(far_ ? below(40) * 1500 : below(4)); }
  void admit_all() {
    const JobSlot job(static_cast<uint16_t>(below(2)));
    const ChunkRange range{
        TensorIndex(below(2)), 1, {ChunkIndex(below(4)), 1 + below(4)}, priority()};
    std::vector<SessionSlot> sessions;
    for (const uint32_t one : members_) {
      if (job_of(one) == job) sessions.push_back(SessionSlot(one));
    }
    ASSERT_TRUE(shared_.admit_all(job, sessions, range));
    for (const SessionSlot one : sessions) ASSERT_TRUE(plain_.admit(one, range));
  }
  void readmit(uint32_t session) {
    const ChunkRange range{TensorIndex(below(2)), 1, {ChunkIndex(below(4)), 1}, priority()};
    both([&](Scheduler& one) { ASSERT_TRUE(one.readmit(SessionSlot(session), range)); });
  }
  void send() {
    ScheduledChunk shared, plain;
    const bool any = plain_.next(plain);
    ASSERT_EQ(shared_.next(shared), any);
    if (!any) return;
    ASSERT_EQ(shared.session, plain.session);
    ASSERT_EQ(shared.job, plain.job);
    ASSERT_EQ(shared.key, plain.key);
    ASSERT_EQ(shared.priority, plain.priority);
    ASSERT_EQ(shared.retransmit, plain.retransmit);
    const uint32_t bytes = 1 + below(9000);
    both([&](Scheduler& one) { one.charge(plain.job, bytes); });
  }

  std::mt19937 random_;
  const bool far_;  // priorities of which each needs a leaf, or a few
  std::vector<uint32_t> members_;
  Counted shared_{Scheduler::Limits{2, kSessions, kRanges, 9000}};
  Counted plain_{Scheduler::Limits{2, kSessions, kRanges, 9000}};
};

TEST(SharedRanges, ChangeNothingOfTheOrderOverManySeeds) {
  for_each_seed(2000, [](uint64_t number) {
    const auto seed = static_cast<uint32_t>(number);
    Twins twins(seed);
    for (int step = 0; step < 600; ++step) {
      twins.step();
      twins.compare();
      if (testing::Test::HasFatalFailure()) FAIL() << "in step " << step;
    }
    twins.end();
  });
}

}  // namespace
}  // namespace mercury::sharing
