#include "transport/flow/sent_history.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <vector>

namespace mercury {
namespace {

std::set<uint64_t> numbers_of(const SentHistory& history) {
  std::set<uint64_t> numbers;
  for (auto cursor = history.oldest(); cursor.record() != nullptr; history.next(cursor)) {
    numbers.insert(cursor.record()->number);
  }
  return numbers;
}

TEST(SentHistory, HoldsNoBlockWhenNothingIsInFlight) {
  SentPool pool(4);
  SentHistory history({pool});
  EXPECT_EQ(history.oldest().record(), nullptr);
  EXPECT_EQ(pool.blocks_in_use(), 0U);
  ASSERT_TRUE(history.append(SentKind::kData, 7, {}, 100, 1));
  EXPECT_EQ(pool.blocks_in_use(), 1U);
  auto cursor = history.oldest();
  history.remove(cursor);
  EXPECT_EQ(cursor.record(), nullptr);
  EXPECT_EQ(pool.blocks_in_use(), 0U);
  EXPECT_EQ(history.bytes_in_flight(), 0U);
}

// Appends as long as there is room; how many packets that were.
uint32_t fill(SentHistory& history, SentKind kind) {
  uint32_t count = 0;
  for (static uint64_t number = 1; history.has_room(kind); ++number, ++count) {
    EXPECT_TRUE(history.append(kind, number, {}, 1, number));
  }
  EXPECT_FALSE(history.append(kind, ~uint64_t{0}, {}, 1, 1));
  return count;
}

TEST(SentHistory, OneHasAHalfAndWhoComesLaterFindsSome) {
  SentPool pool(64, 2);
  SentHistory first({pool});
  SentHistory later({pool});
  EXPECT_EQ(fill(first, SentKind::kData), 32 * kSentBlockRecords);
  EXPECT_EQ(fill(later, SentKind::kData), 16 * kSentBlockRecords);
  first.clear();
  EXPECT_EQ(fill(later, SentKind::kData), 16 * kSentBlockRecords) << "a half, with the first 16";
}

TEST(SentHistory, SessionsOfOneJobHaveOnePartAndOthersTheirs) {
  SentPool pool(60, 20);
  SentPart& job = pool.part_of(JobSlot(3));
  EXPECT_EQ(&job, &pool.part_of(JobSlot(3)));
  std::vector<std::unique_ptr<SentHistory>> sessions;
  uint32_t packets = 0;
  for (int i = 0; i < 10; ++i) {
    sessions.push_back(std::make_unique<SentHistory>(SentSource{pool, &job, 6}));
    packets += fill(*sessions.back(), SentKind::kData);
  }
  EXPECT_EQ(job.blocks, 30U) << "a half, whatever its sessions may have";
  EXPECT_EQ(packets, (30 + 5) * kSentBlockRecords) << "and one of its own for each that found none";
  SentHistory other({pool, &pool.part_of(JobSlot(4))});
  EXPECT_EQ(fill(other, SentKind::kData), 15 * kSentBlockRecords);
  sessions.clear();
  EXPECT_EQ(job.blocks, 0U);
  EXPECT_EQ(pool.blocks_in_use(), 15U);
}

// One job after the other takes all that it may: of what they share nothing is left.
TEST(SentHistory, EveryJobHasBlocksOfItsOwn) {
  constexpr uint32_t kJobs = 16;
  SentPool pool(64, kJobs, kJobs);
  std::vector<std::unique_ptr<SentHistory>> jobs;
  for (uint16_t job = 0; job + 1U < kJobs; ++job) {
    jobs.push_back(std::make_unique<SentHistory>(SentSource{pool, &pool.part_of(JobSlot(job))}));
    (void)fill(*jobs.back(), SentKind::kData);
  }
  SentHistory last({pool, &pool.part_of(JobSlot(uint16_t{kJobs - 1}))});
  EXPECT_EQ(fill(last, SentKind::kData), 2 * kSentBlockRecords) << "64 / 2 / 16 for each";
  SentHistory none({pool, &pool.part_of(kNoJob)});
  EXPECT_EQ(fill(none, SentKind::kData), 2 * kSentBlockRecords) << "and for what is of no job";
  jobs.clear();
  EXPECT_EQ(fill(last, SentKind::kData), 32 * kSentBlockRecords) << "half of what is shared";
  last.clear();
  none.clear();
  EXPECT_EQ(pool.blocks_in_use(), 0U);
  EXPECT_EQ(pool.part_of(kNoJob).blocks + pool.part_of(JobSlot(3)).blocks, 0U);
}

// However many others hold, and however full its own window is, a session sends a few packets of
// data, and some of its own beside them.
TEST(SentHistory, EverySessionHasRoomOfItsOwn) {
  SentPool pool(8, 10);
  std::vector<std::unique_ptr<SentHistory>> others;
  for (int i = 0; i < 9; ++i) {
    others.push_back(std::make_unique<SentHistory>(SentSource{pool}));
    (void)fill(*others.back(), SentKind::kData);
    (void)fill(*others.back(), SentKind::kOwn);
  }
  SentHistory last({pool});
  EXPECT_EQ(fill(last, SentKind::kData), uint32_t{kSentBlockRecords});
  ASSERT_TRUE(last.append(SentKind::kOwn, 1'000'000, {}, 1, 1));
  EXPECT_FALSE(last.has_room(SentKind::kData)) << "behind its own packets";
  EXPECT_EQ(fill(last, SentKind::kOwn), kSentBlockRecords - 1U);
  last.clear();
  EXPECT_TRUE(last.has_room(SentKind::kData));
  EXPECT_EQ(fill(last, SentKind::kOwn), uint32_t{kSentBlockRecords});
}

// Of a session that always has some of them under way, as one that takes much of streams, and
// finds none of its part.
TEST(SentHistory, ItsOwnPacketsDoNotHoldUpAllData) {
  SentPool pool(1, 2);
  SentHistory other({pool});
  (void)fill(other, SentKind::kData);
  SentHistory history({pool});
  uint64_t number = 1;
  std::set<uint64_t> own;
  int rounds_with_data = 0;
  for (int round = 0; round < 100; ++round) {
    while (own.size() < 8) {
      ASSERT_TRUE(history.append(SentKind::kOwn, number, {}, 1, number));
      own.insert(number++);
    }
    uint32_t data = 0;
    for (; history.has_room(SentKind::kData); ++data) {
      ASSERT_TRUE(history.append(SentKind::kData, number++, {}, 1, 1));
    }
    rounds_with_data += data > 0;
    for (int i = 0; i < 8; ++i) {  // no fewer of its own while the others are acknowledged
      ASSERT_TRUE(history.append(SentKind::kOwn, number, {}, 1, number));
      own.insert(number++);
    }
    for (auto cursor = history.oldest(); cursor.record() != nullptr;) {
      if (own.size() <= 8 && own.contains(cursor.record()->number)) {
        history.next(cursor);
      } else {
        own.erase(cursor.record()->number);
        history.remove(cursor);
      }
    }
  }
  EXPECT_EQ(rounds_with_data, 50) << "every other time its block is free of own packets";
}

TEST(SentHistory, GivingItsReserveBackMakesRoomForItsOwnPackets) {
  SentPool pool(8);
  SentHistory history({pool, nullptr, 2});
  (void)fill(history, SentKind::kData);
  for (int round = 0; round < 3; ++round) {
    (void)fill(history, SentKind::kOwn);
    uint32_t given_back = 0;
    for (auto cursor = history.own_reserve(); history.in_own_reserve(cursor); ++given_back) {
      history.remove(cursor);
    }
    EXPECT_EQ(given_back, uint32_t{kSentBlockRecords});
    EXPECT_TRUE(history.has_room(SentKind::kOwn));
    EXPECT_EQ(history.packets_in_flight(), 2U * kSentBlockRecords) << "the data";
  }
}

TEST(SentHistory, ASessionIsBoundedByItself) {
  SentPool pool(64);
  SentHistory history({pool, nullptr, 5});
  EXPECT_EQ(fill(history, SentKind::kData), 5 * kSentBlockRecords);
  EXPECT_EQ(fill(history, SentKind::kOwn), uint32_t{kSentBlockRecords});
}

TEST(SentHistory, SeekFindsTheFirstRecordAtOrAfterANumber) {
  SentPool pool;
  SentHistory history({pool});
  for (uint64_t n = 0; n < 1000; n += 10) ASSERT_TRUE(history.append(SentKind::kData, n, {}, 1, n));
  for (uint64_t wanted = 0; wanted <= 990; ++wanted) {
    auto cursor = history.oldest();
    history.seek(cursor, wanted);
    ASSERT_NE(cursor.record(), nullptr);
    EXPECT_EQ(cursor.record()->number, (wanted + 9) / 10 * 10);
  }
  auto cursor = history.oldest();
  history.seek(cursor, 991);
  EXPECT_EQ(cursor.record(), nullptr);
}

// Of both kinds, and with so few blocks that there is no room now and then.
TEST(SentHistory, AgreesWithASetUnderRandomUse) {
  constexpr uint32_t kMostBlocks = 4;
  uint32_t refused_data = 0, refused_own = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    SentPool pool(2 * kMostBlocks);
    SentHistory history({pool, nullptr, kMostBlocks});
    std::set<uint64_t> model;
    uint64_t number = 0;
    for (int step = 0; step < 200; ++step) {
      for (uint64_t i = random() % 40; i > 0; --i) {
        number += 1 + random() % 3;
        const SentKind kind = random() % 4 == 0 ? SentKind::kOwn : SentKind::kData;
        const bool room = history.has_room(kind);
        ASSERT_EQ(history.append(kind, number, {}, 10, number), room);
        ASSERT_TRUE(room || !model.empty()) << "with nothing in flight there is room";
        if (kind == SentKind::kData && room) {
          ASSERT_TRUE(history.has_room(SentKind::kOwn)) << "beside data";
        }
        if (room) {
          model.insert(number);
        } else {
          ++(kind == SentKind::kOwn ? refused_own : refused_data);
        }
      }
      ASSERT_LE(pool.blocks_in_use(), kMostBlocks + kReservedBlocks);
      auto cursor = history.oldest();
      const uint64_t from = number - std::min<uint64_t>(number, random() % 300);
      history.seek(cursor, from);
      auto at = model.lower_bound(from);
      for (uint64_t i = random() % 50; i > 0 && cursor.record() != nullptr; --i) {
        ASSERT_EQ(cursor.record()->number, *at);
        if (random() % 4 == 0) {
          history.next(cursor);
          ++at;
        } else {
          history.remove(cursor);
          at = model.erase(at);
        }
      }
      ASSERT_EQ(history.bytes_in_flight(), 10 * model.size());
    }
    EXPECT_EQ(numbers_of(history), model);
    history.clear();
    EXPECT_EQ(pool.blocks_in_use(), 0U);
  }
  EXPECT_GT(refused_data, 0U);
  EXPECT_GT(refused_own, 0U);
}

}  // namespace
}  // namespace mercury
