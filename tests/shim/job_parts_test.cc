// What jobs have of an engine's ranges and leaves while their sums wait.
#include <algorithm>
#include <map>
#include <vector>

#include "tests/shim/chunk_frame.h"
#include "tests/shim/exchange_fixture.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

// Every second chunk, and members acknowledge none of their sums: each is a range of its own.
class SumsThatNobodyTakes : public GradientExchangeTest {
 protected:
  static constexpr Scheduler::Limits kLimits{};
  static constexpr uint32_t kOwn = kLimits.max_ranges / 5 / kLimits.max_jobs;
  // Of what jobs share.
  static constexpr uint32_t kShared =
      kLimits.max_ranges - kOwn * kLimits.max_jobs - SendQueue::Limits().reserved_ranges;

  // A job of one worker with room for so many sums.
  void join(uint16_t slot, uint32_t sums) {
    serve(1, uint64_t{16} * 2 * sums, JobSlot(slot));
    ASSERT_TRUE(bind_worker(JobSlot(slot), 0, 7, Token(uint64_t{slot})));
  }
  // Until one is refused, or `most`. How many.
  uint32_t push(uint16_t slot, uint32_t most) {
    test::ChunkFrame header;
    header.incarnation = 7;
    header.round = 1;
    header.payload_crc = wire::crc32c(elements_);
    header.chunk = ChunkIndex(next_[slot]);
    const uint32_t first = header.chunk.value / 2;
    while (header.chunk.value / 2 - first < most &&
           exchange_.on_datagram(SessionSlot(uint32_t{slot}), header, elements_, 0) ==
               Taken::kYes) {
      header.chunk.value += 2;
    }
    next_[slot] = header.chunk.value;
    return header.chunk.value / 2 - first;
  }

  const std::vector<std::byte> elements_ = std::vector<std::byte>(64);
  std::map<uint16_t, uint32_t> next_;  // chunk, by slot
};

TEST_F(SumsThatNobodyTakes, LeaveRoomForOtherJobs) {
  join(0, kLimits.max_ranges);
  join(1, kOwn);
  EXPECT_EQ(push(0, kLimits.max_ranges), kOwn + kShared / 2) << "as much as is left";
  EXPECT_EQ(push(1, 1), 1U);
  command::RemoveJob end;
  end.job = JobSlot(1);
  ASSERT_TRUE(does(end));
  EXPECT_EQ(push(0, 1), 0U) << "alone it has no more: others may come";
}

// Each takes all that it may, and the next one comes; what they share is gone then.
TEST_F(SumsThatNobodyTakes, OfManyJobsLeaveRoomForTheOneThatComesLast) {
  uint32_t before = kLimits.max_ranges;
  for (uint16_t slot = 0; slot + 1U < kLimits.max_jobs; ++slot) {
    const uint32_t most = 2 * kOwn + static_cast<uint32_t>(uint64_t{kShared} >> (slot + 1));
    join(slot, most);
    const uint32_t taken = push(slot, most);
    EXPECT_GE(taken, kOwn);
    EXPECT_LE(taken, before) << "of what those before have left";
    before = taken;
  }
  const auto last = static_cast<uint16_t>(kLimits.max_jobs - 1);
  join(last, 2 * kOwn);
  EXPECT_GE(push(last, 2 * kOwn), kOwn) << "what is kept for it";
  exchange_.unblock(SessionSlot(uint32_t{last}));
  OutgoingDatagram out;
  for (uint32_t sum = 0; sum < kOwn; ++sum) ASSERT_TRUE(exchange_.next(out));
  EXPECT_GE(push(last, 2 * kOwn), kOwn) << "again, as its sums are taken";
}

// Nor do they take it by losing what was sent: each lost chunk is a range of its own.
TEST_F(SumsThatNobodyTakes, NorDoTheirLossesTakeWhatIsKeptForOthers) {
  constexpr uint16_t kHostile = 12;
  constexpr uint32_t kSums = 40 * kOwn;
  for (uint16_t slot = 0; slot < kHostile; ++slot) {
    join(slot, kSums);
    exchange_.unblock(SessionSlot(uint32_t{slot}));
    std::vector<SentTag> lost;
    while (lost.size() < kSums) {
      ASSERT_EQ(push(slot, kOwn), kOwn);
      OutgoingDatagram out;
      for (uint32_t sum = 0; sum < kOwn; ++sum) {
        ASSERT_TRUE(exchange_.next(out));
        lost.push_back(out.tag);
      }
    }
    exchange_.block(SessionSlot(uint32_t{slot}));
    for (const SentTag& tag : lost) exchange_.on_lost(SessionSlot(uint32_t{slot}), tag);
  }
  EXPECT_GT(exchange_.usage().lost_chunks, kLimits.max_ranges / 4) << "which wait";
  join(kHostile, 2 * kOwn);
  EXPECT_GE(push(kHostile, 2 * kOwn), kOwn);
}

// Every second chunk is complete, for all workers, and none of them is sent: the members of a large
// job push in other orders than each other.
class SumsOutOfOrder : public GradientExchangeTest {
 protected:
  using GradientExchangeTest::GradientExchangeTest;
  void join(uint16_t workers, uint32_t priorities = 1) {
    priorities_ = priorities;
    header_.incarnation = 7;
    header_.round = 1;
    header_.payload_crc = wire::crc32c(elements_);
    join_job(JobSlot(0), workers);
  }
  // Whose sums come next.
  void join_job(JobSlot slot, uint16_t workers, const JobTerms& terms = {}) {
    serve(workers, uint64_t{16} * 2 * kMost, slot, terms);
    first_session_ += workers_;
    workers_ = workers;
    for (uint16_t rank = 0; rank < workers; ++rank) {
      ASSERT_TRUE(bind_worker(slot, Rank(rank), 7, Token(uint64_t{session_of(rank).value})));
    }
    header_.chunk = 0;
  }
  SessionSlot session_of(uint16_t rank) const { return SessionSlot(first_session_ + rank); }
  // Job after job takes all leaves that it may.
  void take_leaves(uint16_t first_job, uint16_t jobs, uint16_t workers) {
    priorities_ = kPriorities / 64;
    priority_step_ = 64;
    for (uint16_t job = first_job; job < first_job + jobs; ++job) {
      join_job(JobSlot(job), workers);
      sums(kMost);
    }
  }
  // Until one is refused, or `most` are there, less urgent ones first. How many.
  uint32_t sums(uint32_t most) {
    for (uint32_t complete = 0; complete < most; header_.chunk.value += 2, ++complete) {
      const uint32_t urgency = priorities_ - 1 - (header_.chunk.value / 2) % priorities_;
      header_.priority = static_cast<uint16_t>(urgency * priority_step_);
      for (header_.sender = 0; header_.sender < workers_; ++header_.sender) {
        const SessionSlot session = session_of(header_.sender);
        if (exchange_.on_datagram(session, header_, elements_, 0) > Taken::kLast) return complete;
      }
    }
    return most;
  }
  static constexpr uint32_t kMost = 8192;
  static constexpr Scheduler::Limits kLimits{};
  static constexpr uint32_t kOwn = kLimits.max_ranges / 5 / kLimits.max_jobs;
  static constexpr uint32_t kLeavesOfOne =
      kOwn +
      (kLimits.max_ranges - kOwn * kLimits.max_jobs - SendQueue::Limits().reserved_ranges) / 2;
  const std::vector<std::byte> elements_ = std::vector<std::byte>(64);
  test::ChunkFrame header_;
  uint16_t workers_ = 0;
  uint32_t first_session_ = 0;
  uint32_t priorities_ = 1, priority_step_ = 1;
};

TEST_F(SumsOutOfOrder, ThousandsMayWaitFor64Workers) {
  join(64);
  EXPECT_EQ(sums(kMost), kMost);
  EXPECT_EQ(exchange_.usage().ranges, kMost) << "each is one range";
}

TEST_F(SumsOutOfOrder, NoFewerMayWaitForTheMostWorkers) {
  join(kMaxWorkers);
  EXPECT_EQ(sums(kMost), kMost);
  EXPECT_EQ(exchange_.usage().ranges, kMost) << "each is one range";
}

// As many layers as large models have, the last of them first.
TEST_F(SumsOutOfOrder, OfThousandsOfPrioritiesToo) {
  join(kMaxWorkers, 4096);
  EXPECT_EQ(sums(kMost), kMost);
}

// Priorities so far apart that each worker needs a leaf for each sum: of these one job gets about
// two fifths, whether another is served or will be.
TEST_F(SumsOutOfOrder, FarApartTheyLeaveRoomForOtherJobs) {
  constexpr uint16_t kWorkers = 512;
  join(kWorkers, kPriorities / 64);
  priority_step_ = 64;
  command::AddServerJob other;
  other.job = JobSlot(1);
  other.workers = 2;
  other.shards = 1;
  ASSERT_TRUE(does(other));
  const uint32_t waiting = sums(kMost);
  EXPECT_EQ(waiting, kLeavesOfOne / kWorkers + 1) << "and one for which its sessions have leaves";
  command::AddTensor tensor;
  tensor.job = JobSlot(1);
  tensor.numel = 16;
  tensor.chunk_bytes = 64;
  ASSERT_TRUE(does(tensor));
  test::ChunkFrame innocent = header_;
  innocent.chunk = 0;
  for (const uint16_t rank : {uint16_t{0}, uint16_t{1}}) {
    ASSERT_TRUE(bind_worker(JobSlot(1), Rank(rank), 7, Token(uint64_t{kWorkers} + rank)));
    innocent.sender = rank;
    EXPECT_EQ(exchange_.on_datagram(SessionSlot(uint32_t{kWorkers} + rank), innocent, elements_, 0),
              rank == 0 ? Taken::kYes : Taken::kLast);
  }
  command::RemoveJob end;
  end.job = JobSlot(1);
  ASSERT_TRUE(does(end));
  exchange_.poll(0);
  EXPECT_EQ(sums(kMost), 0U) << "alone it has no more";
  for (uint32_t session = 0; session < kWorkers; ++session) exchange_.unblock(SessionSlot(session));
  OutgoingDatagram out;
  for (uint32_t i = 0; i < waiting * kWorkers; ++i) ASSERT_TRUE(exchange_.next(out)) << i;
  EXPECT_FALSE(exchange_.next(out));
  EXPECT_EQ(exchange_.usage().ranges, 0U);
  header_.sender = 0;
  EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), header_, elements_, 0), Taken::kYes)
      << "what was refused is taken now";
}

// What they share is gone; of its own a job of one worker has as many as it can need.
TEST_F(SumsOutOfOrder, WhateverOthersTakeEachJobHasLeavesOfItsOwn) {
  constexpr uint16_t kLarge = 6;
  join(512);
  take_leaves(1, kLarge, 512);
  for (uint16_t job = kLarge + 1; job <= kLarge + 10; ++job) {
    join_job(JobSlot(job), 1);
    header_.sender = 0;
    for (uint32_t sum = 0; sum < kPriorities / 64; ++sum, header_.chunk.value += 2) {
      header_.priority = static_cast<uint16_t>(64 * sum);
      ASSERT_EQ(exchange_.on_datagram(session_of(0), header_, elements_, 0), Taken::kYes) << sum;
    }
  }
  EXPECT_EQ(exchange_.usage().lost_chunks, 0U);
}

// As many jobs as there may be: a job's part is less than a sum of all of its workers takes.
class SumsOfWideJobs : public SumsOutOfOrder {
 protected:
  static constexpr uint32_t kJobs = 1024;
  static constexpr uint16_t kHostile = 9;

  SumsOfWideJobs() : SumsOutOfOrder(of(kJobs)) {}
  static ExchangeConfig of(uint32_t jobs) {
    ExchangeConfig config;
    config.sends.scheduler.max_jobs = jobs;
    return config;
  }
  // Their members take nothing: what jobs share is gone.
  void hostile_jobs() {
    join(256);
    take_leaves(1, kHostile, 256);
    first_of_wide_ = first_session_ + workers_;
  }
  // A sum of the wide job; the one after it is of a priority far away.
  void push_sum(uint16_t workers) {
    for (header_.sender = 0; header_.sender < workers; ++header_.sender) {
      ASSERT_LE(exchange_.on_datagram(session_of(header_.sender), header_, elements_, 0),
                Taken::kLast)
          << header_.chunk.value << " of " << header_.sender;
    }
    header_.chunk.value += 2;
    header_.priority = static_cast<uint16_t>(header_.priority + 64);
  }
  // Twenty sums, to those `workers` that are there.
  void expect_sums_answered(uint16_t workers) {
    for (uint32_t i = 0; i < workers; ++i) exchange_.unblock(SessionSlot(first_of_wide_ + i));
    OutgoingDatagram out;
    for (uint32_t sum = 0; sum < 20 && !HasFatalFailure(); ++sum) {
      push_sum(workers);
      for (uint32_t sent = 0; sent < workers; ++sent) ASSERT_TRUE(exchange_.next(out));
      EXPECT_FALSE(exchange_.next(out));
    }
  }
  uint32_t first_of_wide_ = 0;
};

TEST_F(SumsOfWideJobs, AreAnsweredWhateverOthersHold) {
  hostile_jobs();
  join_job(JobSlot(kHostile + 1), kMaxWorkers);
  expect_sums_answered(kMaxWorkers);
  EXPECT_EQ(exchange_.usage().lost_chunks, 0U);
}

// Nor does one that goes on without some of its workers wait for room for these.
TEST_F(SumsOfWideJobs, AreAnsweredToThoseThatAreThere) {
  constexpr uint16_t kThere = 700;
  hostile_jobs();
  JobTerms terms;
  terms.quorum = kThere;
  terms.patience_ms = 1;
  join_job(JobSlot(kHostile + 1), kMaxWorkers, terms);
  for (uint16_t rank = kThere; rank < kMaxWorkers; ++rank) {
    exchange_.forget(session_of(rank));
    ASSERT_TRUE(does(command::WithdrawWorker{.job = JobSlot(kHostile + 1), .rank = Rank(rank)}));
  }
  expect_sums_answered(kThere);
}

// Sums of rounds that all have passed: frames that have come are read between looks at them.
TEST_F(SumsOutOfOrder, ThoseThatNobodyNeedsAreLeftInSteps) {
  constexpr uint32_t kRounds = 2000;
  constexpr uint16_t kWorkers = 64;
  join(kWorkers);
  for (uint32_t round = 1; round <= kRounds; ++round) {
    header_.round = Round(round);
    for (header_.sender = 0; header_.sender < workers_; ++header_.sender) {
      const SessionSlot session(uint32_t{header_.sender});
      ASSERT_LE(exchange_.on_datagram(session, header_, elements_, 0), Taken::kLast) << round;
    }
  }
  for (uint32_t session = 0; session < kWorkers; ++session) exchange_.unblock(SessionSlot(session));
  OutgoingDatagram out;
  uint32_t steps = 0;
  while (!exchange_.next(out)) {
    ASSERT_EQ(exchange_.next_deadline_ns(), 0U) << "there is more to look at";
    ASSERT_LT(++steps, kRounds * kWorkers);
  }
  EXPECT_GT(steps, 10U);
}

// All are sent, to each worker the most urgent first, and nothing is held any more.
TEST_F(SumsOutOfOrder, EachWorkerIsSentAllOfThem) {
  constexpr uint16_t kWorkers = 100;
  join(kWorkers, 7);
  ASSERT_EQ(sums(700), 700U);
  std::vector<uint32_t> sent(kWorkers);
  std::vector<uint16_t> before(kWorkers);
  OutgoingDatagram out;
  for (uint32_t slow : {0U, 1U}) {  // the first worker's window is full until all others have them
    for (uint32_t session = slow == 0 ? 1 : 0; session < kWorkers; ++session) {
      exchange_.unblock(SessionSlot(session));
    }
    while (exchange_.next(out)) {
      const uint32_t session = out.session.value;
      ++sent[session];
      EXPECT_GE(out.header.priority, before[session]);
      before[session] = out.header.priority;
    }
    for (uint32_t session = 1; session < kWorkers; ++session) ASSERT_EQ(sent[session], 700U);
    EXPECT_EQ(sent[0], 700 * slow);
    EXPECT_EQ(exchange_.usage().ranges, slow == 0 ? 700U : 0U);
  }
}

// Its sums have been waiting for one worker alone: when it is gone they do no more.
TEST_F(SumsOutOfOrder, WhatWaitedForAWorkerThatIsGoneWaitsNoMore) {
  constexpr uint16_t kWorkers = 3;
  join(kWorkers);
  ASSERT_EQ(sums(3000), 3000U);
  OutgoingDatagram out;
  for (uint32_t session : {1U, 2U}) exchange_.unblock(SessionSlot(session));
  while (exchange_.next(out)) {
  }
  EXPECT_EQ(exchange_.usage().ranges, 3000U);
  exchange_.forget(SessionSlot(0));
  for (uint32_t before = 3000; before > 0;) {
    exchange_.poll(0);
    const uint32_t now = exchange_.usage().ranges;
    ASSERT_LT(now, before);
    ASSERT_LE(before - now, 1024U) << "in steps";
    before = now;
  }
  EXPECT_FALSE(exchange_.next(out));
}

}  // namespace
}  // namespace mercury
