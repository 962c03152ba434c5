// Jobs whose chunks time may complete: who is in a sum, and that no sum is gone before everybody
// who needs it has it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "aggregator/frame/contributors.h"
#include "tests/aggregator/harness.h"

namespace mercury {
namespace {

constexpr uint64_t kPatienceNs = 1'000'000'000;

class QuorumTest : public testing::Test {
 protected:
  void make(uint16_t workers, uint16_t quorum, Dtype dtype = Dtype::kF32,
            ReduceOp op = ReduceOp::kSum) {
    workers_ = workers;
    ASSERT_TRUE(aggregator_.add_job(
        kJob,
        {.workers = workers, .terms = {.quorum = quorum, .patience_ms = to_ms(kPatienceNs)}}));
    for (uint16_t w = 0; w < workers; ++w) {
      ASSERT_TRUE(aggregator_.admit(kJob, Rank(w), incarnation_of(w)));
    }
    ASSERT_TRUE(aggregator_.add_tensor(
        kJob,
        {.tensor = 1, .numel = 4, .dtype = dtype, .op = op, .chunk_elems = 1, .chunk_count = 4}));
  }
  PushVerdict push(uint32_t worker, uint32_t round, uint32_t chunk, float value,
                   uint32_t life = 0) {
    const Bytes elements = floats({value});
    Contribution c = Bench::contribution(worker, round, chunk, elements);
    c.incarnation += life;
    c.now_ns = now_ns_;
    c.priority = 7;
    return aggregator_.push(c).verdict;
  }
  bool overdue(OverdueChunk& out) {
    uint32_t looks = 100;
    return aggregator_.take_overdue(now_ns_, looks, out);
  }
  // The workers in a result, and its value; empty: none.
  std::vector<uint32_t> members(uint32_t round, uint32_t chunk, float* value = nullptr) {
    ChunkResult out;
    if (!aggregator_.result(kJob, {0, Round(round), ChunkIndex(chunk)}, out)) return {};
    EXPECT_EQ(out.crc, wire::crc32c(out.elements));
    const size_t set_bytes = out.partial ? contributor_bytes(workers_, out.contributors) : 0;
    EXPECT_EQ(out.elements.size(), set_bytes + 4);
    if (value) std::memcpy(value, out.elements.data() + set_bytes, sizeof *value);
    const auto set = decode_contributors(out.elements.first(set_bytes), workers_, out.contributors);
    EXPECT_TRUE(!out.partial || set.has_value());
    std::vector<uint32_t> in;
    for (uint16_t w = 0; w < workers_; ++w) {
      if (!out.partial || contains(*set, Rank(w))) in.push_back(w);
    }
    EXPECT_EQ(in.size(), out.contributors);
    return in;
  }

  uint16_t workers_ = 0;
  uint64_t now_ns_ = 5 * kPatienceNs;
  bool nic_reads_ = false;  // everything
  PayloadPin* nic_reads_this_ = nullptr;
  Aggregator aggregator_{PortMemory{[](void* context, PayloadPin& pin) {
                                      const auto& test = *static_cast<const QuorumTest*>(context);
                                      return test.nic_reads_ || test.nic_reads_this_ == &pin;
                                    },
                                    this}};
};

using Ranks = std::vector<uint32_t>;

TEST_F(QuorumTest, EverybodyInTimeIsACompleteSum) {
  make(3, 2);
  OverdueChunk due;
  for (uint32_t w = 0; w < 2; ++w) EXPECT_EQ(push(w, 1, 0, 1), PushVerdict::kAdded);
  EXPECT_FALSE(overdue(due));
  EXPECT_EQ(push(2, 1, 0, 1), PushVerdict::kCompleted);
  float sum = 0;
  EXPECT_EQ(members(1, 0, &sum), (Ranks{0, 1, 2}));
  EXPECT_EQ(sum, 3);
  now_ns_ += 10 * kPatienceNs;
  EXPECT_FALSE(overdue(due));
}

TEST_F(QuorumTest, TimeCompletesWhatHasEnough) {
  make(70, 2, Dtype::kF32, ReduceOp::kAverage);
  push(69, 1, 2, 10);
  now_ns_ += kPatienceNs / 2;
  push(3, 1, 2, 20);
  push(3, 1, 1, 5);  // alone
  OverdueChunk due;
  EXPECT_FALSE(overdue(due));
  now_ns_ += kPatienceNs / 2;
  ASSERT_TRUE(overdue(due));
  EXPECT_EQ(due.key.tensor.value, 0U);
  EXPECT_EQ(due.key.chunk.value, 2U);
  EXPECT_EQ(due.key.round.value, 1U);
  EXPECT_EQ(due.priority, 7U);
  EXPECT_FALSE(overdue(due));
  float average = 0;
  EXPECT_EQ(members(1, 2, &average), (Ranks{3, 69}));
  EXPECT_EQ(average, 15);
  EXPECT_EQ(push(0, 1, 2, 100), PushVerdict::kOldRound) << "too late";

  now_ns_ += kPatienceNs;  // chunk 1's time is up too, but one is not enough
  EXPECT_FALSE(overdue(due));
  EXPECT_EQ(push(4, 1, 1, 7), PushVerdict::kCompleted) << "the one that was missing";
  EXPECT_EQ(members(1, 1), (Ranks{3, 4}));
}

// With so many workers a sum lists who is missing where they are few, and else has a bitmap.
TEST_F(QuorumTest, OfAThousandWorkersNamesWhoeverIsIn) {
  make(1000, 500);
  OverdueChunk due;
  uint32_t chunk = 0;
  for (const uint32_t missing : {2U, 5U, 300U}) {
    Ranks in;
    for (uint32_t w = 0; w < 1000; ++w) {
      if (w % 3 == 1 && w / 3 < missing) continue;
      in.push_back(w);
      push(w, 1, chunk, static_cast<float>(w));
      if (w % 100 == 0) {
        EXPECT_EQ(push(w, 1, chunk, 1), PushVerdict::kDuplicate);
      }
    }
    ASSERT_EQ(in.size(), 1000 - missing);
    now_ns_ += kPatienceNs;
    ASSERT_TRUE(overdue(due));
    float sum = 0;
    EXPECT_EQ(members(1, chunk, &sum), in);
    EXPECT_EQ(sum, static_cast<float>(std::accumulate(in.begin(), in.end(), 0U)));
    EXPECT_EQ(push(1, 1, chunk, 1), PushVerdict::kOldRound) << "it was missing";
    ++chunk;
  }
}

TEST_F(QuorumTest, SaysWhenTimeCompletesTheNextChunkOfAnyTensor) {
  make(3, 2);
  ASSERT_TRUE(
      aggregator_.add_tensor(kJob, {.tensor = 2, .numel = 1, .chunk_elems = 1, .chunk_count = 1}));
  const auto push_second = [this](uint32_t worker) {
    const Bytes elements = floats({1});
    Contribution c = Bench::contribution(worker, 1, 0, elements);
    c.tensor = 2;
    c.now_ns = now_ns_;
    return aggregator_.push(c).verdict;
  };
  EXPECT_EQ(aggregator_.next_overdue_ns(), kNever);
  const uint64_t begin_ns = now_ns_;
  push(0, 1, 3, 1);
  now_ns_ += 100;
  ASSERT_EQ(push_second(0), PushVerdict::kAdded);
  now_ns_ += 100;
  push(0, 1, 1, 1);
  EXPECT_EQ(aggregator_.next_overdue_ns(), begin_ns + kPatienceNs);
  for (uint32_t w = 1; w < 3; ++w) push(w, 1, 3, 1);
  EXPECT_EQ(aggregator_.next_overdue_ns(), begin_ns + 100 + kPatienceNs) << "the other tensor's";
  push_second(1);
  now_ns_ = begin_ns + 99 + kPatienceNs;
  OverdueChunk due;
  EXPECT_FALSE(overdue(due));
  ++now_ns_;
  ASSERT_TRUE(overdue(due));
  EXPECT_EQ(due.key.tensor.value, 1U);
  EXPECT_EQ(aggregator_.next_overdue_ns(), begin_ns + 200 + kPatienceNs);
  now_ns_ += kPatienceNs;
  EXPECT_FALSE(overdue(due)) << "one is not enough";
  EXPECT_EQ(aggregator_.next_overdue_ns(), kNever) << "nor does time change that";
}

TEST_F(QuorumTest, WhoIsWithdrawnIsNotWaitedFor) {
  make(3, 2);
  withdraw(aggregator_, 1);
  EXPECT_EQ(push(0, 1, 0, 1), PushVerdict::kAdded);
  EXPECT_EQ(push(2, 1, 0, 1), PushVerdict::kCompleted);
  EXPECT_EQ(members(1, 0), (Ranks{0, 2}));
}

TEST_F(QuorumTest, NoSumIsOverwrittenBeforeASlowWorkerHasIt) {
  make(3, 2);
  OverdueChunk due;
  const auto round_of_two = [&](uint32_t round) {
    if (push(0, round, 0, 1) != PushVerdict::kAdded) return false;
    push(1, round, 0, 1);
    now_ns_ += kPatienceNs;
    return overdue(due);
  };
  ASSERT_TRUE(round_of_two(1));
  ASSERT_TRUE(round_of_two(2));
  EXPECT_FALSE(round_of_two(3)) << "worker 2 may need round 1's sum";
  EXPECT_EQ(aggregator_.next_overdue_ns(), kNever) << "time does not change that";
  EXPECT_EQ(push(0, 3, 0, 5), PushVerdict::kDuplicate);
  EXPECT_EQ(push(2, 1, 0, 1), PushVerdict::kOldRound);
  EXPECT_EQ(members(1, 0), (Ranks{0, 1}));
  EXPECT_FALSE(overdue(due)) << "it has not got it yet";
  EXPECT_EQ(push(2, 2, 0, 1), PushVerdict::kOldRound) << "now it has, and wants round 2's";
  EXPECT_LE(aggregator_.next_overdue_ns(), now_ns_);
  ASSERT_TRUE(overdue(due));
  EXPECT_EQ(due.key.round.value, 3U);
  EXPECT_TRUE(due.partial);
  EXPECT_EQ(members(1, 0), (Ranks{}));
  EXPECT_EQ(members(2, 0), (Ranks{0, 1}));
  float sum = 0;
  EXPECT_EQ(members(3, 0, &sum), (Ranks{0, 1}));
  EXPECT_EQ(sum, 2);

  EXPECT_EQ(push(0, 4, 0, 1), PushVerdict::kAdded);
  EXPECT_EQ(push(2, 3, 0, 1), PushVerdict::kOldRound);
  EXPECT_EQ(push(2, 4, 0, 1), PushVerdict::kAdded) << "it has caught up";
  EXPECT_FALSE(overdue(due));
  EXPECT_EQ(push(1, 4, 0, 1), PushVerdict::kCompleted);
  EXPECT_EQ(members(4, 0, &sum), (Ranks{0, 1, 2}));
  EXPECT_EQ(sum, 3);
}

TEST_F(QuorumTest, ARoundThatWaitsEndsWhenAllHaveCaughtUp) {
  make(3, 2);
  OverdueChunk due;
  for (uint32_t round = 1; round <= 3; ++round) {
    push(0, round, 0, 1);
    push(1, round, 0, 1);
    now_ns_ += kPatienceNs / 2;
    EXPECT_FALSE(overdue(due));
    if (round == 3) break;
    now_ns_ += kPatienceNs / 2;
    EXPECT_TRUE(overdue(due));
  }
  push(2, 1, 0, 1);
  push(2, 2, 0, 1);
  EXPECT_FALSE(overdue(due)) << "it is not waited for, but its patience has not ended";
  EXPECT_EQ(push(2, 3, 0, 4), PushVerdict::kCompleted);
  float sum = 0;
  EXPECT_EQ(members(3, 0, &sum), (Ranks{0, 1, 2}));
  EXPECT_EQ(sum, 6);
}

TEST_F(QuorumTest, ARoundThatWaitsForALostWorkerEndsWithoutIt) {
  make(3, 2);
  OverdueChunk due;
  for (uint32_t round = 1; round <= 3; ++round) {
    push(0, round, 0, 1);
    push(1, round, 0, 1);
    if (round < 3) now_ns_ += kPatienceNs;
    EXPECT_EQ(overdue(due), round < 3) << round;
  }
  withdraw(aggregator_, 2);
  ASSERT_TRUE(overdue(due)) << "nobody else is there: no need for patience";
  EXPECT_EQ(due.key.round.value, 3U);
  EXPECT_EQ(members(3, 0), (Ranks{0, 1}));
  EXPECT_EQ(push(0, 4, 0, 1), PushVerdict::kAdded) << "nobody else needs round 2's";
  EXPECT_EQ(push(1, 4, 0, 1), PushVerdict::kCompleted);
}

TEST_F(QuorumTest, ARoundThatWaitsIsBegunAnewByANextLife) {
  make(3, 2);
  OverdueChunk due;
  for (uint32_t round = 1; round <= 3; ++round) {
    push(0, round, 0, 1);
    push(1, round, 0, 1);
    now_ns_ += kPatienceNs;
    EXPECT_EQ(overdue(due), round < 3) << round;
  }
  replace(aggregator_, 1, incarnation_of(1) + 1);
  EXPECT_EQ(push(2, 2, 0, 1), PushVerdict::kOldRound);
  EXPECT_FALSE(overdue(due)) << "nobody is in it";
  EXPECT_EQ(push(0, 3, 0, 1), PushVerdict::kAdded);
  EXPECT_EQ(push(2, 3, 0, 1), PushVerdict::kAdded);
  now_ns_ += kPatienceNs;
  EXPECT_FALSE(overdue(due)) << "the next life may need round 1's";
  EXPECT_EQ(push(1, 2, 0, 1, 1), PushVerdict::kOldRound);
  ASSERT_TRUE(overdue(due));
  float sum = 0;
  EXPECT_EQ(members(3, 0, &sum), (Ranks{0, 2}));
  EXPECT_EQ(sum, 2);
}

TEST_F(QuorumTest, ARoundThatWaitsDoesNotOverwriteWhatTheNicReads) {
  make(3, 2);
  OverdueChunk due;
  for (uint32_t round = 1; round <= 3; ++round) {
    push(0, round, 0, 1);
    push(1, round, 0, 1);
    now_ns_ += kPatienceNs;
    EXPECT_EQ(overdue(due), round < 3) << round;
  }
  nic_reads_ = true;
  push(2, 2, 0, 1);
  EXPECT_FALSE(overdue(due));
  EXPECT_EQ(members(1, 0), (Ranks{0, 1}));
  EXPECT_GT(aggregator_.next_overdue_ns(), now_ns_);
  nic_reads_ = false;
  now_ns_ = aggregator_.next_overdue_ns();
  ASSERT_TRUE(overdue(due));
  EXPECT_EQ(members(3, 0), (Ranks{0, 1}));
  EXPECT_EQ(aggregator_.next_overdue_ns(), kNever);
}

// Three rounds without worker 2: the third of each chunk waits for it.
TEST_F(QuorumTest, AChunkThatTheNicReadsHoldsBackNoOther) {
  make(3, 2);
  OverdueChunk due;
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint32_t chunk = 0; chunk < 4; ++chunk) {
      push(0, round, chunk, 1);
      push(1, round, chunk, 1);
    }
    now_ns_ += kPatienceNs;
    for (uint32_t chunk = 0; round < 3 && chunk < 4; ++chunk) ASSERT_TRUE(overdue(due));
    ASSERT_FALSE(overdue(due));
  }
  for (uint32_t busy = 0; busy < 2; ++busy) {
    ChunkResult first;
    ASSERT_TRUE(aggregator_.result(kJob, {0, 1, ChunkIndex(busy)}, first));
    nic_reads_this_ = first.pin;
    push(2, 2, busy, 1);
    EXPECT_FALSE(overdue(due)) << "worker 2 has it, the NIC still reads it";
    push(2, 2, busy + 2, 1);
    ASSERT_TRUE(overdue(due)) << "chunk " << busy << " held it back";
    EXPECT_EQ(due.key.chunk.value, busy + 2);
    EXPECT_FALSE(overdue(due));
    nic_reads_this_ = nullptr;
    EXPECT_FALSE(overdue(due)) << "it is not looked at all the time";
    EXPECT_GT(aggregator_.next_overdue_ns(), now_ns_);
    now_ns_ = aggregator_.next_overdue_ns();
    ASSERT_TRUE(overdue(due));
    EXPECT_EQ(due.key.chunk.value, busy);
  }
  EXPECT_EQ(aggregator_.next_overdue_ns(), kNever);
}

TEST_F(QuorumTest, OneCallLooksAtNoMoreChunksThanItIsTold) {
  make(3, 3);
  for (uint32_t chunk = 0; chunk < 4; ++chunk) push(0, 1, chunk, 1);
  OverdueChunk due;
  // Woken by a withdrawal, and then by time: none has enough.
  withdraw(aggregator_, 2);
  for (int pass = 0; pass < 2; ++pass) {
    for (uint32_t looked = 0; looked < 4; ++looked) {
      EXPECT_LE(aggregator_.next_overdue_ns(), now_ns_) << "the engine would sleep over the rest";
      uint32_t looks = 1;
      EXPECT_FALSE(aggregator_.take_overdue(now_ns_, looks, due));
      EXPECT_EQ(looks, 0U);
    }
    uint32_t looks = 5;
    EXPECT_FALSE(aggregator_.take_overdue(now_ns_, looks, due));
    EXPECT_EQ(looks, 5U) << "there was nothing left to look at";
    now_ns_ += kPatienceNs;
  }
  EXPECT_EQ(aggregator_.next_overdue_ns(), kNever);
}

TEST_F(QuorumTest, OneJobsChunksDoNotKeepAnothersWaiting) {
  constexpr JobSlot kOther{1};
  make(2, 1);
  ASSERT_TRUE(aggregator_.add_job(
      kOther, {.workers = 2, .terms = {.quorum = 1, .patience_ms = to_ms(kPatienceNs)}}));
  ASSERT_TRUE(aggregator_.admit(kOther, 0, incarnation_of(0)));
  ASSERT_TRUE(aggregator_.admit(kOther, 1, incarnation_of(1)));
  ASSERT_TRUE(aggregator_.add_tensor(
      kOther, {.tensor = 1, .numel = 1, .chunk_elems = 1, .chunk_count = 1}));
  for (uint32_t chunk = 0; chunk < 4; ++chunk) push(0, 1, chunk, 1);
  const Bytes elements = floats({1});
  Contribution other = Bench::contribution(0, 1, 0, elements);
  other.job = kOther;
  other.now_ns = now_ns_;
  ASSERT_EQ(aggregator_.push(other).verdict, PushVerdict::kAdded);
  now_ns_ += kPatienceNs;
  OverdueChunk first;
  OverdueChunk second;
  ASSERT_TRUE(overdue(first));
  ASSERT_TRUE(overdue(second));
  EXPECT_NE(first.job, second.job);
}

TEST_F(QuorumTest, ANextLifeIsWaitedForUntilItHasPushed) {
  make(3, 2);
  for (uint32_t round = 1; round <= 2; ++round) {
    for (uint32_t w = 0; w < 3; ++w) push(w, round, 0, 1);
  }
  withdraw(aggregator_, 2);
  EXPECT_EQ(replace(aggregator_, 2, incarnation_of(2) + 1).front().round, Round(1))
      << "of the other chunks";
  OverdueChunk due;
  push(0, 3, 0, 1);
  push(1, 3, 0, 1);
  now_ns_ += kPatienceNs;
  EXPECT_FALSE(overdue(due)) << "it may need round 1's";
  EXPECT_EQ(members(1, 0), (Ranks{0, 1, 2}));
  EXPECT_EQ(push(2, 2, 0, 1, 1), PushVerdict::kOldRound);
  EXPECT_EQ(members(2, 0), (Ranks{0, 1, 2}));
  EXPECT_TRUE(overdue(due));
}

TEST_F(QuorumTest, ARestartInAnOpenRoundBeginsItAnew) {
  make(3, 2);
  OverdueChunk due;
  push(2, 1, 0, 100);
  push(0, 1, 0, 1);
  replace(aggregator_, 2, incarnation_of(2) + 1);
  now_ns_ += 2 * kPatienceNs;
  EXPECT_FALSE(overdue(due)) << "nothing is in it";
  EXPECT_EQ(push(0, 1, 0, 1), PushVerdict::kAdded);
  EXPECT_EQ(push(1, 1, 0, 2), PushVerdict::kAdded) << "its patience begins anew";
  now_ns_ += kPatienceNs;
  ASSERT_TRUE(overdue(due));
  float sum = 0;
  EXPECT_EQ(members(1, 0, &sum), (Ranks{0, 1}));
  EXPECT_EQ(sum, 3);
}

TEST_F(QuorumTest, ImpossibleQuorumsAreRefused) {
  EXPECT_EQ(aggregator_.add_job(kJob, {.workers = 2, .terms = {.quorum = 3, .patience_ms = 1}})
                .error()
                .code,
            Errc::kInvalidArgument);
  EXPECT_EQ(aggregator_
                .add_job(kJob, {.workers = 3,
                                .terms = {.deterministic = true, .quorum = 2, .patience_ms = 1}})
                .error()
                .code,
            Errc::kInvalidArgument);
}

// Workers of different speeds, some lost and brought back, in random order: whoever pushes a round
// gets its sum, the same as all others, of the values of those whom it names.
class RandomQuorum {
 public:
  explicit RandomQuorum(uint64_t seed) : random_(seed) {}

  void make() {
    ASSERT_TRUE(aggregator_.add_job(
        kJob, {.workers = static_cast<uint16_t>(workers_),
               .terms = {.quorum = quorum_, .patience_ms = to_ms(kPatienceNs)}}));
    ASSERT_TRUE(aggregator_.add_tensor(
        kJob, {.tensor = 1, .numel = 1, .dtype = Dtype::kI64, .chunk_elems = 1, .chunk_count = 1}));
    for (uint16_t w = 0; w < workers_; ++w) {
      ASSERT_TRUE(aggregator_.admit(kJob, Rank(w), incarnation_of(w)));
    }
    slow_ = static_cast<uint32_t>(pick(workers_));
  }
  uint32_t slowest_round() const { return *std::min_element(round_.begin(), round_.end()); }
  void step() {
    const auto w = static_cast<uint32_t>(pick(workers_));
    if (w == slow_ && pick(8) != 0) return;
    now_ns_ += pick(kPatienceNs / 4);
    if (pick(60) == 0) lose_and_replace(w);
    const PushVerdict verdict = push(w);
    ASSERT_NE(verdict, PushVerdict::kNewRound);
    complete_what_is_overdue();
    ChunkResult out;
    if (!aggregator_.result(kJob, {0, Round(round_[w]), 0}, out)) {
      ASSERT_NE(verdict, PushVerdict::kOldRound) << "its sum is gone";
      return;
    }
    check(round_[w], out);
    ++round_[w];
  }

 private:
  uint64_t pick(uint64_t below) { return random_() % below; }
  static int64_t value_of(uint32_t worker) { return int64_t{1} << (8 * worker); }
  uint32_t incarnation(uint32_t w) const { return incarnation_of(w) + 1000 * life_[w]; }
  // Back at once, or later: when it pushes next.
  void lose_and_replace(uint32_t w) {
    const Rank lost(static_cast<uint16_t>(w));
    withdraw(aggregator_, lost);
    ++life_[w];
    round_[w] = replace(aggregator_, lost, incarnation(w)).front().round.value;
  }
  PushVerdict push(uint32_t w) {
    const Bytes elements = bytes_of(std::vector<int64_t>{value_of(w)});
    Contribution c = Bench::contribution(w, round_[w], 0, elements);
    c.incarnation = incarnation(w);
    c.now_ns = now_ns_;
    return aggregator_.push(c).verdict;
  }
  void complete_what_is_overdue() {
    OverdueChunk due;
    uint32_t looks = 100;
    while (aggregator_.take_overdue(now_ns_, looks, due)) {
    }
  }
  void check(uint32_t round, const ChunkResult& out) {
    const Bytes payload(out.elements.begin(), out.elements.end());
    const auto [known, fresh] = results_.emplace(round, payload);
    ASSERT_EQ(known->second, payload);
    ASSERT_GE(out.contributors, std::min<uint32_t>(quorum_, workers_));
    int64_t sum = 0;
    std::memcpy(&sum, payload.data() + payload.size() - 8, 8);
    int64_t named = 0;
    for (uint32_t v = 0; v < workers_; ++v) {
      if (!out.partial || (static_cast<uint8_t>(payload[7]) >> v & 1) != 0) named += value_of(v);
    }
    ASSERT_EQ(sum, named);
  }

  std::mt19937_64 random_;
  const uint32_t workers_ = static_cast<uint32_t>(2 + pick(4));
  const uint16_t quorum_ = static_cast<uint16_t>(1 + pick(workers_));
  Aggregator aggregator_{PortMemory{[](void* context, PayloadPin&) {
                                      return (*static_cast<std::mt19937_64*>(context))() % 8 == 0;
                                    },
                                    &random_}};
  std::vector<uint32_t> life_ = std::vector<uint32_t>(workers_, 0);
  std::vector<uint32_t> round_ = std::vector<uint32_t>(workers_, 1);  // that it is in
  std::map<uint32_t, Bytes> results_;                                 // by round
  uint64_t now_ns_ = 0;
  uint32_t slow_ = 0;
};

TEST(QuorumSeeds, EveryWorkerGetsEveryRoundItPushes) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomQuorum quorum(seed);
    ASSERT_NO_FATAL_FAILURE(quorum.make());
    for (uint64_t steps = 1; quorum.slowest_round() < 12; ++steps) {
      ASSERT_LT(steps, 20000U) << "stuck";
      ASSERT_NO_FATAL_FAILURE(quorum.step());
    }
  }
}

}  // namespace
}  // namespace mercury
