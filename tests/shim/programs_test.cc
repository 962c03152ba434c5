// Many programs on one host: what a pass of the exchange looks at, and that none is overlooked.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "shim/exchange/gradient_exchange.h"
#include "tests/shim/fake_engine.h"

namespace mercury {
namespace {

constexpr uint32_t kPrograms = 200;
constexpr uint32_t kLooks = Programs::Limits().looks_per_pass;

// None has a job, so that each of their operations completes at once, with an error.
class ProgramsTest : public testing::Test {
 protected:
  struct AttachedProgram {
    explicit AttachedProgram(const std::shared_ptr<ChannelMemory>& memory)
        : engine(memory), client(memory) {}
    EngineChannel engine;
    ClientChannel client;
  };
  void attach(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      auto memory = ChannelMemory::create({64, 64}, false);
      ASSERT_TRUE(memory);
      programs_.push_back(std::make_unique<AttachedProgram>(*memory));
      exchange_.on_command(command::AttachChannel{&programs_.back()->engine}, host_);
    }
  }
  void submit(uint32_t program, uint64_t cookie) {
    ASSERT_TRUE(programs_[program]->client.submit({SubmitOp::kPush, 0, 1, 1, cookie}));
  }
  // How many submissions a poll takes after frames have come, or none.
  uint64_t taken(bool frames) {
    if (frames) counters_.add(Counter::kRxFrames);
    const uint64_t before = counters_.get(Counter::kSubmissions);
    exchange_.poll(0);
    return counters_.get(Counter::kSubmissions) - before;
  }
  std::vector<uint64_t> completed(uint32_t program) {
    std::vector<uint64_t> cookies;
    for (Completion done; programs_[program]->client.pop(done);) cookies.push_back(done.cookie);
    return cookies;
  }

  FakeEngine host_;
  Counters counters_;
  std::vector<std::unique_ptr<AttachedProgram>> programs_;
  GradientExchange exchange_{ExchangeConfig(), counters_,
                             PortMemory{[](void*, PayloadPin&) { return false; }}};
};

TEST_F(ProgramsTest, ABusyPassLooksAtSomeByTurns) {
  attach(kPrograms);
  for (uint32_t i = 0; i < kPrograms; ++i) submit(i, i + 1);
  uint64_t all = 0;
  for (uint32_t pass = 0; pass * kLooks < kPrograms; ++pass) {
    const uint64_t now = taken(true);
    EXPECT_LE(now, kLooks);
    all += now;
  }
  EXPECT_EQ(all, kPrograms) << "each had its turn";
  for (uint32_t i = 0; i < kPrograms; ++i) {
    EXPECT_EQ(completed(i), std::vector<uint64_t>{i + 1}) << "of its own, and of no other";
  }
}

TEST_F(ProgramsTest, WhoHasSubmittedLatelyIsLookedAtInEachPass) {
  attach(kPrograms);
  submit(150, 1);
  for (uint32_t pass = 0; counters_.get(Counter::kSubmissions) == 0; ++pass) {
    ASSERT_LE(pass * kLooks, kPrograms);
    (void)taken(true);
  }
  for (uint64_t i = 2; i < 50; ++i) {
    submit(150, i);
    EXPECT_EQ(taken(true), 1U);
  }
  for (int pass = 0; pass < 150; ++pass) EXPECT_EQ(taken(true), 0U);
  submit(150, 50);
  uint32_t passes = 1;
  while (taken(true) == 0) ASSERT_LE(++passes, kPrograms / kLooks + 1) << "by turns again";
  EXPECT_EQ(completed(150).size(), 50U);
}

TEST_F(ProgramsTest, AnIdlePassLooksAtAll) {
  attach(kPrograms);
  for (uint32_t i = 0; i < kPrograms; ++i) submit(i, 1);
  EXPECT_EQ(taken(false), kPrograms) << "else the engine would go to sleep";
}

TEST_F(ProgramsTest, FewAreAllLookedAt) {
  attach(kLooks);
  for (uint32_t i = 0; i < kLooks; ++i) submit(i, 1);
  EXPECT_EQ(taken(true), kLooks);
}

TEST_F(ProgramsTest, WhoIsToldSomethingIsWokenAndNobodyElse) {
  attach(kPrograms);
  for (const auto& program : programs_) ASSERT_TRUE(program->client.park());
  for (const uint32_t i : {3U, 77U}) submit(i, 1);
  EXPECT_EQ(taken(false), 2U);
  EXPECT_EQ(counters_.get(Counter::kWakeups), 2U);
  for (uint32_t i = 0; i < kPrograms; ++i) {
    pollfd doorbell{programs_[i]->client.client_doorbell(), POLLIN, 0};
    EXPECT_EQ(::poll(&doorbell, 1, 0), i == 3 || i == 77 ? 1 : 0) << i;
  }
}

TEST_F(ProgramsTest, OneThatGoesLeavesTheOthersWhereTheyAre) {
  attach(kPrograms);
  for (uint32_t i = 0; i < kPrograms; ++i) submit(i, 1);
  while (taken(true) > 0) {
  }
  exchange_.on_command(command::DetachChannel{&programs_[10]->engine}, host_);
  for (uint32_t i = 0; i < kPrograms; ++i) submit(i, 2);
  for (uint32_t pass = 0; pass <= kPrograms / kLooks; ++pass) (void)taken(true);
  for (uint32_t i = 0; i < kPrograms; ++i) {
    EXPECT_EQ(completed(i).size(), i == 10 ? 1U : 2U) << i;
  }
}

// Programs whose tensors travel, to servers that take nothing: each push is a range that stays.
class ProgramsThatPush : public testing::Test {
 protected:
  static constexpr uint32_t kRanges = 8192;
  static constexpr uint32_t kReserved = 64;
  static constexpr uint16_t kMostShards = 128;
  static constexpr uint32_t kJobs = 8;
  static constexpr uint32_t kOwn = kRanges / 5 / kJobs;
  static constexpr uint32_t kShared = kRanges - kOwn * kJobs - kReserved;

  // One without a job: what it submits is refused.
  void attach() {
    auto memory = ChannelMemory::create({64, 64}, false);
    ASSERT_TRUE(memory);
    programs_.push_back(std::make_unique<AttachedProgram>(*memory));
    run(command::AttachChannel{&programs_.back()->engine});
  }
  // Each tensor has a chunk for each shard, or so many of them.
  void add(uint32_t tensors, uint16_t shards = 1, const std::string& policy = {},
           uint32_t chunks = 1) {
    const auto number = static_cast<uint16_t>(programs_.size());
    attach();
    command::AddWorkerJob job;
    job.terms.policy = policy;
    job.job = JobSlot(number);
    job.workers = 2;
    job.shards = shards;
    job.channel = &programs_.back()->engine;
    run(job);
    for (uint16_t shard = 0; shard < shards; ++shard) {
      run(command::BindShard{JobSlot(number), Shard(shard), Token(sessions_++)});
    }
    programs_.back()->tensors = tensors;
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      command::AddTensor spec;
      spec.job = JobSlot(number);
      spec.tensor = TensorId(tensor);
      spec.numel = uint64_t{16} * shards * chunks;
      spec.chunk_bytes = 64;
      spec.data = reinterpret_cast<std::byte*>(elements_.data());
      run(spec);
    }
  }
  // As many as are taken of it, of tensors that it has not pushed yet.
  void push(uint32_t program, uint32_t most = ~uint32_t{0}) {
    AttachedProgram& one = *programs_[program];
    const uint32_t end = one.pushed + std::min(most, one.tensors - one.pushed);
    for (uint64_t before = ~uint64_t{0}; counters_.get(Counter::kSubmissions) != before;) {
      before = counters_.get(Counter::kSubmissions);
      while (one.pushed < end &&
             one.client.submit({SubmitOp::kPushPull, 0, 0, TensorId(one.pushed), one.pushed + 1})) {
        ++one.pushed;
      }
      exchange_.poll(0);
    }
  }

  struct AttachedProgram {
    explicit AttachedProgram(const std::shared_ptr<ChannelMemory>& memory)
        : engine(memory), client(memory) {}
    EngineChannel engine;
    ClientChannel client;
    uint32_t tensors = 0;
    uint32_t pushed = 0;
  };
  bool submit_next(uint32_t program) {
    AttachedProgram& one = *programs_[program];
    const uint32_t tensor = one.pushed++;
    return one.client.submit({SubmitOp::kPushPull, 0, 0, TensorId(tensor), tensor + 1});
  }
  template <class OneCommand>
  void run(const OneCommand& command) {
    exchange_.on_command(command, host_);
    while (const auto event = exchange_.take_event()) {
      EXPECT_FALSE(std::holds_alternative<event::CommandFailed>(*event));
    }
  }

  FakeEngine host_;
  Counters counters_;
  uint64_t sessions_ = 0;
  std::vector<float> elements_ = std::vector<float>(size_t{16} * 1152);
  std::vector<std::unique_ptr<AttachedProgram>> programs_;
  GradientExchange exchange_{ExchangeConfig{.sends = {.scheduler = {kJobs, 4096, kRanges, 4096},
                                                      .reserved_ranges = kReserved}},
                             counters_, PortMemory{[](void*, PayloadPin&) { return false; }}};
};

TEST_F(ProgramsThatPush, OneWhoseServersTakeNothingLeavesRoomForOthers) {
  add(kRanges);
  push(0);
  const uint32_t taken = exchange_.usage().ranges;
  EXPECT_EQ(taken, kOwn + kShared / 2) << "as much as is left";
  EXPECT_LE(programs_[0]->pushed, taken + 2 * 64) << "what a pass has read, and its ring";
  add(kRanges);
  push(1, 100);
  EXPECT_EQ(exchange_.usage().ranges, taken + 100);
  push(1);
  EXPECT_EQ(exchange_.usage().ranges, taken + kOwn + kShared / 4);
  exchange_.unblock(SessionSlot(0));
  OutgoingDatagram out;
  for (uint32_t sent = 0; sent < taken; ++sent) ASSERT_TRUE(exchange_.next(out));
  push(0);
  EXPECT_GE(programs_[0]->pushed, taken + kShared / 4) << "what it has sent is not held any more";
}

// What a pass has read of it is more ranges than it may have: they wait, and nobody behind them.
TEST_F(ProgramsThatPush, NorDoesOneOfManyShardsStandInTheirWay) {
  add(kRanges / kMostShards, kMostShards);
  push(0);
  const uint32_t taken = exchange_.usage().ranges;
  EXPECT_EQ(taken, kOwn + kShared / 2);
  add(100);
  push(1);
  EXPECT_EQ(exchange_.usage().ranges, taken + 100);
  // In the order in which they were pushed, shard after shard.
  for (uint32_t shard = 0; shard < kMostShards; ++shard) exchange_.unblock(SessionSlot(shard));
  std::vector<uint32_t> last(kMostShards);
  OutgoingDatagram out;
  const auto next = [&] {
    if (exchange_.next(out)) return true;
    push(0);
    exchange_.poll(0);
    return exchange_.next(out);
  };
  uint32_t sent = 0;
  for (; next(); ++sent) {
    EXPECT_GE(out.header.words[1], last[out.session.value]);
    last[out.session.value] = out.header.words[1];
  }
  EXPECT_EQ(sent, kRanges / kMostShards * kMostShards);
}

// A job of many tensors for many servers has all of them wait at once: another program is read
// meanwhile, and what it pushes does not stand behind all of that. After so many polls.
class WhoseRangesWaitAtOnce : public ProgramsThatPush,
                              public testing::WithParamInterface<uint32_t> {
 protected:
  static constexpr SessionSlot kOther{uint32_t{kMostShards}};

  void block_all_but(SessionSlot other) {
    for (uint32_t shard = 0; shard < kMostShards; ++shard) exchange_.block(SessionSlot(shard));
    exchange_.unblock(other);
  }
  void expect_the_other_to_push() {
    for (uint32_t poll = 0; poll < GetParam(); ++poll) exchange_.poll(0);
    ASSERT_TRUE(programs_[1]->client.submit({SubmitOp::kPushPull, 0, 0, TensorId(0), 1}));
    for (int poll = 0; poll < 2; ++poll) exchange_.poll(0);
    OutgoingDatagram out;
    ASSERT_TRUE(exchange_.next(out));
    EXPECT_EQ(out.session, kOther);
  }
};
INSTANTIATE_TEST_SUITE_P(ProgramsThatPush, WhoseRangesWaitAtOnce, testing::Values(0, 1, 2, 10));

TEST_P(WhoseRangesWaitAtOnce, AsAWorkerCameBackHoldsUpNoOther) {
  constexpr uint32_t kTensors = 512;
  add(kTensors, kMostShards);
  add(1);
  for (uint32_t shard = 0; shard < kMostShards; ++shard) exchange_.unblock(SessionSlot(shard));
  uint32_t sent = 0;
  while (programs_[0]->pushed < kTensors) {
    push(0, 8);
    for (OutgoingDatagram out; exchange_.next(out);) ++sent;
  }
  ASSERT_EQ(sent, kTensors * kMostShards) << "it waits for sums alone";
  block_all_but(kOther);
  run(command::Refill{JobSlot(0)});
  expect_the_other_to_push();
}

TEST_P(WhoseRangesWaitAtOnce, AsItsPolicyReleasesThemHoldsUpNoOther) {
  constexpr uint32_t kTensors = 64, kPartitions = 32;  // of one chunk for each shard
  add(kTensors, kMostShards, "byteps:partition=8192B,credit=1000GB,startup=0ns", kPartitions);
  add(1);
  block_all_but(kOther);
  for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    ASSERT_TRUE(programs_[0]->client.submit(
        {SubmitOp::kPushPull, 0, 0, TensorId(tensor), uint64_t{tensor} + 1}));
  }
  expect_the_other_to_push();
}

TEST_P(WhoseRangesWaitAtOnce, AsItFollowsAnotherPolicyHoldsUpNoOther) {
  constexpr uint32_t kTensors = 512;
  add(kTensors, kMostShards, "byteps:partition=8192B,credit=1000GB,startup=10s");
  add(1);
  block_all_but(kOther);
  push(0);
  ASSERT_EQ(exchange_.usage().ranges, 0U) << "none is released";
  run(command::SetPolicy{JobSlot(0), "mercury"});
  expect_the_other_to_push();
}

// Of 1,150 servers, where two more ranges fit: the rest has none, and waits in several polls.
class OneHasNoRoom : public ProgramsThatPush {
 protected:
  static constexpr uint16_t kServers = 1150;
  static constexpr uint32_t kRoom = kOwn + kShared / 2, kFit = kRoom / kServers;
  static_assert(kRoom % kServers < Worker::kMostWaitingRanges);
  static constexpr uint32_t kPart = Worker::kMostWaitingRanges;

  OneHasNoRoom() {
    add(kFit + 2, kServers);
    add(2);
    for (uint32_t tensor = 0; tensor < kFit; ++tensor) EXPECT_TRUE(submit_next(0));
    for (uint32_t polls = 0; polls <= kFit * kServers / kPart; ++polls) EXPECT_LE(poll(), kPart);
    EXPECT_EQ(exchange_.usage().ranges, kFit * kServers);
  }
  // How many more ranges are scheduled then.
  uint32_t poll() {
    const uint32_t before = exchange_.usage().ranges;
    exchange_.poll(0);
    return exchange_.usage().ranges - before;
  }
};

TEST_F(OneHasNoRoom, AndTheOtherIsReadBeforeAnybodySleeps) {
  ASSERT_TRUE(submit_next(0));
  exchange_.poll(0);
  ASSERT_TRUE(submit_next(1));
  const uint64_t before = counters_.get(Counter::kSubmissions);
  for (uint32_t polls = 0; exchange_.next_deadline_ns() == 0; ++polls) {
    ASSERT_LE(polls, kServers / kPart + 1);
    exchange_.poll(0);
  }
  EXPECT_EQ(counters_.get(Counter::kSubmissions), before + 1);
  EXPECT_EQ(exchange_.usage().ranges, kRoom + 1);
}

TEST_F(OneHasNoRoom, APollSchedulesAPartOfWhatWaitsAndOfWhatHadNoRoom) {
  ASSERT_TRUE(submit_next(0));
  while (exchange_.next_deadline_ns() == 0 || exchange_.usage().ranges < kRoom) {
    EXPECT_LE(poll(), kPart);
  }
  for (uint32_t shard = 0; shard < kServers; ++shard) exchange_.unblock(SessionSlot(shard));
  OutgoingDatagram out;
  for (uint32_t sent = 0; sent < kRoom; ++sent) ASSERT_TRUE(exchange_.next(out));
  for (uint32_t shard = 0; shard < kServers; ++shard) exchange_.block(SessionSlot(shard));
  ASSERT_TRUE(submit_next(0));
  uint32_t all = 0;
  for (uint32_t polls = 0; all < (kFit + 2) * kServers - kRoom; ++polls) {
    ASSERT_LE(polls, 2 * kServers / kPart + 2);
    const uint32_t now = poll();
    EXPECT_LE(now, 2 * kPart);
    all += now;
  }
}

// What had no room waits for longer than its session may live; the next one there is another job's.
TEST_F(OneHasNoRoom, NothingOfItGoesToWhoHasItsSessionNext) {
  ASSERT_TRUE(submit_next(0));
  for (uint32_t polls = 0; polls <= kServers / kPart; ++polls) exchange_.poll(0);
  constexpr uint32_t kLast = kServers - 1;
  exchange_.forget(SessionSlot(kLast));
  sessions_ = kLast;
  add(kFit + 2);
  for (uint32_t shard = 0; shard < kLast; ++shard) exchange_.unblock(SessionSlot(shard));
  for (uint32_t polls = 0; polls < 2 * kServers / kPart + 2; ++polls) {
    for (OutgoingDatagram out; exchange_.next(out);) continue;
    exchange_.poll(0);
  }
  EXPECT_EQ(exchange_.usage().ranges, 0U);
}

// What it pushes is sent at once, so that its part is never used up. Where all are looked at in
// each pass, and where some are.
TEST_F(ProgramsThatPush, OneThatFillsEachPassDoesNotKeepOthersFromTheirTurns) {
  add(512, kMostShards);
  for (uint32_t i = 0; i < kMostShards; ++i) exchange_.unblock(SessionSlot(i));
  const auto pass = [this] {
    AttachedProgram& one = *programs_[0];
    while (one.client.submit({SubmitOp::kPushPull, 0, 0, TensorId(one.pushed), one.pushed + 1})) {
      ++one.pushed;
    }
    ASSERT_LT(one.pushed, one.tensors);
    counters_.add(Counter::kRxFrames);
    exchange_.poll(0);
    for (OutgoingDatagram out; exchange_.next(out);) continue;
  };
  for (const uint32_t programs : {2U, kLooks + 10}) {
    SCOPED_TRACE(programs);
    while (programs_.size() < programs) attach();
    for (int i = 0; i < 5; ++i) pass();
    for (uint32_t i = 1; i < programs; ++i) {
      ASSERT_TRUE(programs_[i]->client.submit({SubmitOp::kPushPull, 0, 0, TensorId(0), 1}));
    }
    for (int i = 0; i < 4; ++i) pass();
    for (uint32_t i = 1; i < programs; ++i) {
      Completion done;
      EXPECT_TRUE(programs_[i]->client.pop(done)) << i;
    }
  }
}

// Nor what is pushed again or released of others, for as many servers, whether or not that has room
// beside what the full pass left.
class WhatIsDue : public ProgramsThatPush, public testing::WithParamInterface<uint16_t> {};
INSTANTIATE_TEST_SUITE_P(ProgramsThatPush, WhatIsDue, testing::Values(1, 128, 1000));

TEST_P(WhatIsDue, HasItsTurnBesideOneThatFillsEachPass) {
  constexpr uint16_t kReleased = 1, kRefilled = 2;
  const uint16_t shards = GetParam();
  const uint16_t filling = std::max<uint16_t>(shards, 128);
  add(512, filling);
  add(1, shards, "byteps:partition=65536B,credit=1GB,startup=0ns");
  add(1, shards);
  for (uint32_t i = 0; i < sessions_; ++i) exchange_.unblock(SessionSlot(i));
  push(kRefilled);
  OutgoingDatagram out;
  for (uint16_t i = 0; i < shards; ++i) {
    while (!exchange_.next(out)) ASSERT_GT(exchange_.poll(0), 0U);
  }
  std::vector<uint32_t> sent(sessions_);
  const auto pass = [&] {
    AttachedProgram& one = *programs_[0];
    while (one.client.submit({SubmitOp::kPushPull, 0, 0, TensorId(one.pushed), one.pushed + 1})) {
      ++one.pushed;
    }
    ASSERT_LT(one.pushed, one.tensors);
    exchange_.poll(0);
    while (exchange_.next(out)) ++sent[out.session.value];
  };
  for (int i = 0; i < 5; ++i) pass();
  ASSERT_TRUE(programs_[kReleased]->client.submit({SubmitOp::kPushPull, 0, 0, TensorId(0), 1}));
  run(command::Refill{JobSlot(kRefilled)});
  const std::vector<uint32_t> before = sent;
  constexpr uint32_t kPass = Worker::kMostWaitingRanges;
  const uint32_t passes = shards == 1 ? 6 : 12 * ((shards + kPass - 1) / kPass);
  for (uint32_t i = 0; i < passes; ++i) pass();
  for (uint32_t i = 0; i < shards; ++i) {
    ASSERT_EQ(sent[filling + i], 1U) << "released, shard " << i;
    ASSERT_EQ(sent[filling + shards + i], 1U) << "pushed again, shard " << i;
  }
  for (uint32_t i = 0; i < filling; ++i) {
    const uint32_t most = passes * kPass;
    ASSERT_GE((sent[i] - before[i]) * filling, shards == 1 ? most * 2 / 3 : most / 3)
        << "of what passes hold";
  }
}

// Nor does one that leaves each pass half empty, where what is due needs more than the other half.
TEST_F(ProgramsThatPush, WhatIsDueNeedNotFitBesideWhatEachPassBrings) {
  constexpr uint16_t kHalf = Worker::kMostWaitingRanges / 2, kMore = kHalf + 22;
  add(64, kHalf);
  add(1, kMore);
  for (uint32_t i = 0; i < sessions_; ++i) exchange_.unblock(SessionSlot(i));
  push(1);
  OutgoingDatagram out;
  while (exchange_.next(out)) continue;
  run(command::Refill{JobSlot(1)});
  uint32_t sent = 0;
  for (int pass = 0; pass < 6; ++pass) {
    ASSERT_TRUE(submit_next(0));
    exchange_.poll(0);
    while (exchange_.next(out)) sent += out.session.value >= kHalf;
  }
  EXPECT_EQ(sent, kMore);
}

// A job of many shards that has not declared a tensor yet has nothing due, and takes no turn.
TEST_F(ProgramsThatPush, AJobWithoutTensorsTakesNoTurn) {
  constexpr const char* kPolicy = "byteps:partition=65536B,credit=1GB,startup=0ns";
  add(0, 1000, kPolicy);
  add(2, 1, kPolicy);
  for (uint32_t i = 0; i < sessions_; ++i) exchange_.unblock(SessionSlot(i));
  OutgoingDatagram out;
  for (int tensor = 0; tensor < 2; ++tensor) {
    ASSERT_TRUE(submit_next(1));
    for (int pass = 0; pass < 3; ++pass) exchange_.poll(0);
    EXPECT_TRUE(exchange_.next(out)) << tensor;
    EXPECT_GT(exchange_.next_deadline_ns(), 0U) << "it does not look again at once";
  }
}

// All but one take as much as they may: what they share is gone.
TEST_F(ProgramsThatPush, ManyWhoseServersTakeNothingLeaveRoomForTheOneThatComesLast) {
  for (uint32_t program = 0; program + 1 < kJobs; ++program) {
    add(kRanges, 2);
    push(program);
  }
  const uint32_t taken = exchange_.usage().ranges;
  EXPECT_GT(taken, kOwn * (kJobs - 1) + kShared * 9 / 10);
  add(2 * kOwn);
  push(kJobs - 1);
  EXPECT_GE(exchange_.usage().ranges, taken + kOwn) << "what is kept for it";
}

}  // namespace
}  // namespace mercury
