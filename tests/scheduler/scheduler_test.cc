#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <vector>

namespace mercury {
namespace {

constexpr JobSlot kJob{0};

ChunkRange range(uint16_t priority, uint32_t tensor, uint32_t first, uint32_t count) {
  return {tensor, 1, first, count, priority};
}

class SchedulerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(scheduler_.add_job(kJob).ok());
    for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(scheduler_.add_session(SessionSlot(i), kJob).ok());
  }
  // Tensor of the next chunk, -1 if there is none.
  int64_t next() {
    if (!scheduler_.next(out_)) return -1;
    scheduler_.charge(out_.job, 1000);
    return out_.tensor;
  }
  Scheduler scheduler_{{4, 64, 1000, 4096}};
  ScheduledChunk out_;
};

TEST_F(SchedulerTest, AnUrgentTensorPreemptsAtTheNextChunk) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(9, 1, 0, 100'000)));
  EXPECT_EQ(next(), 1);
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(2, 2, 0, 2)));
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), 1);
  EXPECT_EQ(out_.chunk, 1U);
}

TEST_F(SchedulerTest, FirstInFirstOutInsideAPriority) {
  for (uint32_t tensor : {3U, 1U, 2U}) {
    ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, tensor, 0, 2)));
  }
  for (int64_t tensor : {3, 3, 1, 1, 2, 2, -1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, SessionsOfOnePriorityTakeTurns) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 10, 0, 3)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(5, 11, 0, 3)));
  for (int64_t tensor : {10, 11, 10, 11, 10, 11, -1}) EXPECT_EQ(next(), tensor);
}

TEST_F(SchedulerTest, RetransmissionsGoFirstAtTheirOwnPriorityInOrder) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 1, 10, 2)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(4, 2, 0, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 1, 3, 1)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(5, 1, 7, 1)));
  EXPECT_EQ(next(), 2);
  EXPECT_FALSE(out_.retransmit);
  for (uint32_t chunk : {3U, 7U, 10U, 11U}) {
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(out_.chunk, chunk);
    EXPECT_EQ(out_.retransmit, chunk < 10);
  }
  EXPECT_EQ(next(), -1);
}

TEST_F(SchedulerTest, ABlockedSessionHoldsUpNobody) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(0, 1, 0, 2)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(9, 2, 0, 2)));
  scheduler_.block(SessionSlot(0));
  scheduler_.block(SessionSlot(0));
  EXPECT_EQ(next(), 2);
  scheduler_.unblock(SessionSlot(0));
  EXPECT_EQ(next(), 1);
  scheduler_.block(SessionSlot(0));
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), -1);
  EXPECT_TRUE(scheduler_.idle());
  EXPECT_FALSE(scheduler_.empty());
  scheduler_.unblock(SessionSlot(0));
  EXPECT_EQ(next(), 1);
  EXPECT_TRUE(scheduler_.empty());
}

TEST_F(SchedulerTest, ContinuedRangesCostOneNode) {
  const uint32_t before = scheduler_.free_ranges();
  for (uint32_t chunk = 0; chunk < 5000; ++chunk) {
    ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(5, 1, chunk, 1)));
  }
  EXPECT_EQ(scheduler_.free_ranges(), before - 1);
  EXPECT_EQ(scheduler_.queued_chunks(kJob), 5000U);
}

TEST_F(SchedulerTest, ExhaustionChangesNothingAndHeals) {
  uint32_t admitted = 0;
  while (scheduler_.admit(SessionSlot(0),
                          range(static_cast<uint16_t>(admitted * 61), admitted, 0, 1))) {
    ++admitted;
  }
  EXPECT_GT(admitted, 100U);
  const uint64_t queued = scheduler_.queued_chunks(kJob);
  EXPECT_EQ(queued, admitted);
  uint64_t drained = 0;
  while (next() >= 0) ++drained;
  EXPECT_EQ(drained, admitted);
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
  EXPECT_TRUE(scheduler_.admit(SessionSlot(0), range(1, 1, 0, 1)));
}

TEST_F(SchedulerTest, RemovingASessionDropsWhatItHolds) {
  ASSERT_TRUE(scheduler_.admit(SessionSlot(0), range(1, 1, 0, 10)));
  ASSERT_TRUE(scheduler_.readmit(SessionSlot(0), range(2, 1, 0, 1)));
  ASSERT_TRUE(scheduler_.admit(SessionSlot(1), range(3, 2, 0, 1)));
  scheduler_.remove_session(SessionSlot(0));
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next(), -1);
  EXPECT_TRUE(scheduler_.empty());
  EXPECT_EQ(scheduler_.free_ranges(), 1000U);
}

TEST(SchedulerJobs, SharesBytesByWeightWhateverTheChunkSize) {
  Scheduler scheduler({4, 16, 1000, 16384});
  const uint32_t weights[] = {1, 1, 2}, chunk_bytes[] = {1448, 8948, 8948};
  for (uint16_t j = 0; j < 3; ++j) {
    ASSERT_TRUE(scheduler.add_job(JobSlot(j), weights[j]).ok());
    ASSERT_TRUE(scheduler.add_session(SessionSlot(j), JobSlot(j)).ok());
    ASSERT_TRUE(
        scheduler.admit(SessionSlot(j), range(static_cast<uint16_t>(100 * j), j, 0, 1'000'000)));
  }
  uint64_t bytes[3]{};
  ScheduledChunk out;
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(scheduler.next(out));
    bytes[out.job.value] += chunk_bytes[out.job.value];
    scheduler.charge(out.job, chunk_bytes[out.job.value]);
  }
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 1.0, 0.01);
  EXPECT_NEAR(static_cast<double>(bytes[2]) / static_cast<double>(bytes[0]), 2.0, 0.02);
}

TEST(SchedulerJobs, AJobThatWasIdleHasSavedNothingUp) {
  Scheduler scheduler({4, 16, 1000, 4096});
  for (uint16_t j = 0; j < 2; ++j) {
    ASSERT_TRUE(scheduler.add_job(JobSlot(j)).ok());
    ASSERT_TRUE(scheduler.add_session(SessionSlot(j), JobSlot(j)).ok());
  }
  ASSERT_TRUE(scheduler.admit(SessionSlot(0), range(0, 0, 0, 100'000)));
  ScheduledChunk out;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(scheduler.next(out));
    scheduler.charge(out.job, 1000);
  }
  ASSERT_TRUE(scheduler.admit(SessionSlot(1), range(0, 1, 0, 100'000)));
  int count[2]{};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(scheduler.next(out));
    ++count[out.job.value];
    scheduler.charge(out.job, 1000);
  }
  EXPECT_NEAR(count[0], count[1], 10);
}

// The same rules, written down plainly: one job, per session and priority two queues, rotation.
class Reference {
 public:
  struct Item {
    uint32_t tensor, chunk;
    bool again;
  };
  struct Session {
    std::map<uint16_t, std::deque<Item>> again, fresh;
    bool blocked = false;
    uint64_t turn = 0;  // when it joined the list of its top priority
    int32_t top = -1;
  };
  std::map<uint32_t, Session> sessions;
  uint64_t clock = 0;

  static int32_t top(const Session& s) {
    int32_t best = -1;
    for (const auto* queues : {&s.again, &s.fresh}) {
      for (const auto& [priority, queue] : *queues) {
        if (!queue.empty() && (best < 0 || priority < best)) best = priority;
      }
    }
    return s.blocked ? -1 : best;
  }
  void place(Session& s, bool to_end) {
    const int32_t now = top(s);
    if (now != s.top || to_end) s.turn = ++clock;
    s.top = now;
  }
  bool next(uint32_t& session, Item& item) {
    Session* best = nullptr;
    for (auto& [id, s] : sessions) {
      if (s.top < 0) continue;
      if (!best || s.top < best->top || (s.top == best->top && s.turn < best->turn)) {
        best = &s;
        session = id;
      }
    }
    if (!best) return false;
    const auto priority = static_cast<uint16_t>(best->top);
    auto& queue = best->again[priority].empty() ? best->fresh[priority] : best->again[priority];
    item = queue.front();
    queue.pop_front();
    place(*best, true);
    return true;
  }
};

TEST(SchedulerModel, EqualsThePlainRulesOverManySeeds) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    Scheduler scheduler({1, 8, 4096, 1 << 20});
    Reference reference;
    ASSERT_TRUE(scheduler.add_job(kJob).ok());
    for (uint32_t i = 0; i < 6; ++i) {
      ASSERT_TRUE(scheduler.add_session(SessionSlot(i), kJob).ok());
      reference.sessions[i];
    }
    uint32_t tensor = 0;
    for (int step = 0; step < 600; ++step) {
      const auto id = static_cast<uint32_t>(random() % 6);
      auto& session = reference.sessions[id];
      const auto priority = static_cast<uint16_t>(random() % 3 == 0 ? random() : random() % 5);
      switch (random() % 8) {
        case 0:
        case 1: {
          const auto count = static_cast<uint32_t>(1 + random() % 4);
          ASSERT_TRUE(scheduler.admit(SessionSlot(id), range(priority, ++tensor, 0, count)));
          for (uint32_t c = 0; c < count; ++c)
            session.fresh[priority].push_back({tensor, c, false});
          reference.place(session, false);
          break;
        }
        case 2:
          ASSERT_TRUE(scheduler.readmit(SessionSlot(id), range(priority, ++tensor, 50, 1)));
          session.again[priority].push_back({tensor, 50, true});
          reference.place(session, false);
          break;
        case 3:
          session.blocked = random() % 2 == 0;
          session.blocked ? scheduler.block(SessionSlot(id)) : scheduler.unblock(SessionSlot(id));
          reference.place(session, false);
          break;
        default: {
          ScheduledChunk out;
          uint32_t expected_session = 0;
          Reference::Item expected{};
          const bool any = reference.next(expected_session, expected);
          ASSERT_EQ(scheduler.next(out), any) << "seed " << seed << " step " << step;
          if (!any) break;
          ASSERT_EQ(out.session.value, expected_session) << "seed " << seed << " step " << step;
          ASSERT_EQ(out.tensor, expected.tensor) << "seed " << seed << " step " << step;
          ASSERT_EQ(out.chunk, expected.chunk) << "seed " << seed << " step " << step;
          ASSERT_EQ(out.retransmit, expected.again) << "seed " << seed << " step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mercury
