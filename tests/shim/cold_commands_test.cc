// Commands that concern a whole job are carried out in steps: whatever the job's size, no poll of
// the exchange looks at more than its part, as no frame is received meanwhile.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "shim/exchange/gradient_exchange.h"
#include "tests/shim/chunk_frame.h"
#include "tests/shim/fake_engine.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

constexpr uint32_t kPart = 1024;  // chunks that one poll looks at

class ColdCommands : public testing::Test {
 protected:
  template <class OneCommand>
  void run(const OneCommand& command) {
    exchange_->on_command(command, host_);
    EXPECT_FALSE(event<event::CommandFailed>());
  }
  // The next event, if it is such a one.
  template <class OneEvent>
  std::optional<OneEvent> event() {
    if (auto next = exchange_->take_event()) {
      if (auto* one = std::get_if<OneEvent>(&*next)) return std::move(*one);
      ADD_FAILURE() << "another event, of kind " << next->index();
    }
    return std::nullopt;
  }
  // Until it comes: how many polls that took.
  template <class OneEvent>
  uint32_t polls_until(std::optional<OneEvent>& found, uint32_t most = 100'000) {
    uint32_t polls = 0;
    for (; polls < most && !found; ++polls) {
      EXPECT_TRUE(polls == 0 || exchange_->next_deadline_ns() == 0) << "it would sleep over it";
      exchange_->poll(0);
      found = event<OneEvent>();
    }
    EXPECT_TRUE(found);
    return polls;
  }

  // A server's job, whose one tensor has so many chunks of 16 elements. Its sessions are `first`
  // and those behind it.
  void serve(uint32_t chunks, JobSlot slot = JobSlot(0), uint32_t first = 0, uint16_t workers = 2) {
    command::AddServerJob job;
    job.job = slot;
    job.workers = workers;
    job.shards = 1;
    run(job);
    command::AddTensor tensor;
    tensor.job = slot;
    tensor.numel = uint64_t{chunks} * 16;
    tensor.chunk_bytes = 64;
    run(tensor);
    for (uint16_t rank = 0; rank < workers; ++rank) {
      run(command::BindWorker{slot, Rank(rank), 7, Token(uint64_t{first} + rank)});
    }
  }
  Taken push(uint16_t rank, uint32_t chunk, uint32_t incarnation = 7, uint32_t round = 1) {
    test::ChunkFrame header;
    header.round = Round(round);
    header.chunk = ChunkIndex(chunk);
    header.sender = rank;
    header.incarnation = incarnation;
    header.payload_crc = wire::crc32c(elements_);
    return exchange_->on_datagram(SessionSlot(uint32_t{rank}), header, elements_, 0);
  }

  void both_take(uint32_t chunk, uint32_t round = 1) {
    ASSERT_EQ(push(0, chunk, 7, round), Taken::kYes);
    ASSERT_EQ(push(1, chunk, 7, round), Taken::kLast);
  }

  uint32_t answers() {
    uint32_t count = 0;
    for (OutgoingDatagram out; exchange_->next(out);) ++count;
    return count;
  }

  const std::vector<std::byte> elements_ = std::vector<std::byte>(64);
  FakeEngine host_;
  Counters counters_;
  std::unique_ptr<GradientExchange> exchange_ = std::make_unique<GradientExchange>(
      ExchangeConfig(), counters_, PortMemory{[](void*, PayloadPin&) { return false; }});
};

TEST_F(ColdCommands, AWorkerIsReplaced) {
  constexpr uint32_t kChunks = 100 * kPart;
  serve(kChunks);
  ASSERT_EQ(push(0, 5), Taken::kYes);
  run(command::ReplaceWorker{JobSlot(0), 0, 8});
  EXPECT_EQ(exchange_->next_deadline_ns(), 0U) << "the engine would sleep over it";
  exchange_->forget(SessionSlot(0));
  run(command::BindWorker{JobSlot(0), 0, 8, Token(uint64_t{0})});
  EXPECT_EQ(push(0, 5, 8), Taken::kLater) << "its last life is not taken out yet";
  std::optional<event::WorkerReplaced> replaced;
  EXPECT_GE(polls_until(replaced), kChunks / kPart);
  EXPECT_EQ(replaced->rank, Rank(0));
  EXPECT_EQ(replaced->incarnation, 8U);
  ASSERT_EQ(replaced->rounds.size(), 1U);
  EXPECT_EQ(replaced->rounds[0].round, Round(1));
  EXPECT_EQ(push(0, 5, 8), Taken::kYes);
  EXPECT_EQ(counters_.get(Counter::kPushChunks), 2U);
  EXPECT_GT(exchange_->next_deadline_ns(), 0U) << "and goes to sleep";
}

// Sessions close in any order, and each closes once; whoever ends a job closes what is left of it.
TEST_F(ColdCommands, AJobThatEndsForgetsItsOwnSessionsAlone) {
  constexpr uint16_t kWorkers = 5;
  for (const std::vector<uint32_t>& closed :
       {std::vector<uint32_t>{}, {2}, {0, 4}, {4, 3}, {1, 0}, {0, 1, 2, 3, 4}}) {
    serve(1, JobSlot(0), 0, kWorkers);
    serve(1, JobSlot(1), 10, kWorkers);
    for (const uint32_t session : closed) {
      exchange_->forget(SessionSlot(session));
      exchange_->forget(SessionSlot(session));
    }
    EXPECT_EQ(exchange_->usage().sessions, 2 * kWorkers - closed.size());
    std::optional<event::JobRemoved> removed;
    for (uint16_t job = 0; job < 2; ++job) {
      run(command::RemoveJob{JobSlot(job)});
      EXPECT_EQ(exchange_->usage().sessions, job == 0 ? kWorkers : 0U);
      removed.reset();
      polls_until(removed);
      EXPECT_EQ(removed->job, JobSlot(job));
    }
  }
}

class PolicyChanges : public ColdCommands {
 protected:
  static constexpr uint32_t kChunks = 5 * kPart;
  void SetUp() override {
    serve(kChunks);
    for (uint32_t rank = 0; rank < 2; ++rank) exchange_->unblock(SessionSlot(rank));
  }
  void both_push(uint32_t first, uint32_t last, uint32_t round = 1) {
    for (uint32_t chunk = first; chunk <= last; ++chunk) both_take(chunk, round);
  }
  uint32_t polls_until_it_is_done() {
    uint32_t polls = 0;
    for (; exchange_->next_deadline_ns() == 0 && polls < kChunks; ++polls) exchange_->poll(0);
    return polls;
  }
};

TEST_F(PolicyChanges, OfAJobThatEndsMeanwhileLeaveNothingToDo) {
  both_push(0, kChunks / 2);
  run(command::SetPolicy{JobSlot(0), "wfbp"});
  EXPECT_GT(polls_until_it_is_done(), 0U) << "a gate that knows all chunks";
  run(command::SetPolicy{JobSlot(0), "mercury"});
  run(command::SetPolicy{JobSlot(0), "wfbp"});
  exchange_->poll(0);  // one is drained, and one is taught
  run(command::RemoveJob{JobSlot(0)});
  std::optional<event::JobRemoved> removed;
  polls_until(removed);
  polls_until_it_is_done();
  EXPECT_GT(exchange_->next_deadline_ns(), 0U);
  serve(kChunks);  // in its place
  both_push(0, 3);
  EXPECT_EQ(exchange_->usage().ranges, 1U);
}

TEST_F(PolicyChanges, ToOneThatHoldsSumsBackWhileSomeAreComplete) {
  both_push(0, 9);
  EXPECT_EQ(answers(), 20U);
  run(command::SetPolicy{JobSlot(0), "wfbp"});  // whole tensors
  exchange_->poll(0);
  both_push(500, 500);    // which it has come to
  both_push(4000, 4000);  // and not
  EXPECT_EQ(answers(), 4U) << "as before, so far";
  EXPECT_GE(polls_until_it_is_done(), kChunks / kPart - 1);
  both_push(10, 499);
  both_push(501, 3999);
  both_push(4001, kChunks - 2);
  EXPECT_EQ(answers(), 0U) << "one is missing";
  both_push(kChunks - 1, kChunks - 1);
  EXPECT_EQ(answers(), 2 * (kChunks - 12));
  both_push(1, kChunks - 1, 2);
  EXPECT_EQ(answers(), 0U);
  both_push(0, 0, 2);
  EXPECT_EQ(answers(), 2 * kChunks);
}

TEST_F(PolicyChanges, ToOneThatDoesNotWhileSomeAreHeldBack) {
  run(command::SetPolicy{JobSlot(0), "wfbp"});
  (void)polls_until_it_is_done();
  for (uint32_t chunk = 0; chunk < kChunks - 1; chunk += 2) both_push(chunk, chunk);
  EXPECT_EQ(answers(), 0U);
  run(command::SetPolicy{JobSlot(0), "mercury"});
  uint32_t all = 0;
  for (uint32_t polls = 0; exchange_->next_deadline_ns() == 0; ++polls) {
    ASSERT_LT(polls, kChunks);
    exchange_->poll(0);
    const uint32_t now = answers();
    EXPECT_LE(now, 2 * (kPart / 16 + 1))
        << "in one poll: a sum is sixteen looks, however few workers";
    all += now;
  }
  EXPECT_EQ(all, kChunks) << "of two workers, half of the chunks";
  both_push(1, 1);
  EXPECT_EQ(answers(), 2U);
}

// Each sum goes to all of them, and is as many looks as that.
TEST_F(ColdCommands, WhatIsHeldBackForManyWorkersIsSentAPartAPoll) {
  constexpr uint16_t kWorkers = 256;
  constexpr uint32_t kChunks = 64;
  serve(kChunks, JobSlot(0), 0, kWorkers);
  for (uint32_t rank = 0; rank < kWorkers; ++rank) exchange_->unblock(SessionSlot(rank));
  run(command::SetPolicy{JobSlot(0), "wfbp"});
  exchange_->poll(0);
  for (uint32_t chunk = 0; chunk < kChunks; chunk += 2) {
    for (uint16_t rank = 0; rank < kWorkers; ++rank) {
      ASSERT_EQ(push(rank, chunk), rank + 1 < kWorkers ? Taken::kYes : Taken::kLast);
    }
  }
  ASSERT_EQ(answers(), 0U);
  run(command::SetPolicy{JobSlot(0), "mercury"});
  uint32_t all = 0;
  uint32_t polls = 0;
  for (; exchange_->next_deadline_ns() == 0; ++polls) {
    ASSERT_LT(polls, kChunks);
    exchange_->poll(0);
    const uint32_t now = answers();
    EXPECT_LE(now, kPart) << "in one poll";
    all += now;
  }
  EXPECT_EQ(all, kChunks / 2 * kWorkers);
  EXPECT_GE(polls, all / kPart);
}

TEST_F(PolicyChanges, AgainBeforeTheLastChangeIsDone) {
  both_push(0, 9);
  (void)answers();
  run(command::SetPolicy{JobSlot(0), "wfbp"});
  exchange_->poll(0);
  run(command::SetPolicy{JobSlot(0), "mercury"});
  run(command::SetPolicy{JobSlot(0), "wfbp"});
  (void)polls_until_it_is_done();
  both_push(10, kChunks - 2);
  EXPECT_EQ(answers(), 0U);
  both_push(kChunks - 1, kChunks - 1);
  EXPECT_EQ(answers(), 2 * (kChunks - 10));
}

TEST_F(ColdCommands, AJobsChunksAreLookedAtWhenItIsRemoved) {
  constexpr uint32_t kChunks = 100 * kPart;
  serve(kChunks);
  run(command::RemoveJob{JobSlot(0)});
  EXPECT_TRUE(exchange_->awaits_nic());
  std::optional<event::JobRemoved> removed;
  EXPECT_GE(polls_until(removed), kChunks / kPart);
  EXPECT_EQ(exchange_->usage().aggregator_bytes, 0U);
  EXPECT_FALSE(exchange_->awaits_nic());
}

TEST_F(ColdCommands, AJobsTensorsAreGivenBackOneByOne) {
  constexpr uint32_t kTensors = 3000;
  serve(1);
  for (uint32_t i = 1; i < kTensors; ++i) {
    command::AddTensor tensor;
    tensor.tensor = TensorId(i);
    tensor.numel = 16;
    tensor.chunk_bytes = 64;
    run(tensor);
  }
  run(command::RemoveJob{JobSlot(0)});
  uint64_t held = exchange_->usage().aggregator_bytes;
  const uint64_t each = held / kTensors;
  uint32_t polls = 0;
  for (; exchange_->awaits_nic() && polls < 10 * kTensors; ++polls) {
    exchange_->poll(0);
    const uint64_t left = exchange_->usage().aggregator_bytes;
    ASSERT_LE(held - left, 16 * each) << "in one poll";
    held = left;
  }
  EXPECT_EQ(held, 0U);
  EXPECT_TRUE(event<event::JobRemoved>());
}

TEST_F(ColdCommands, WhatAJobHasQueuedIsDroppedInSteps) {
  constexpr uint32_t kChunks = 20 * kPart;
  serve(2 * kChunks);
  // Each sum is a range, which waits for both workers.
  for (uint32_t chunk = 0; chunk < 2 * kChunks; chunk += 2) both_take(chunk);
  uint32_t held = exchange_->usage().ranges;
  ASSERT_EQ(held, kChunks);
  run(command::RemoveJob{JobSlot(0)});
  for (uint32_t polls = 0; held > 0; ++polls) {
    ASSERT_LT(polls, kChunks);
    exchange_->poll(0);
    const uint32_t left = exchange_->usage().ranges;
    ASSERT_LE(held - left, kPart) << "in one poll";
    held = left;
  }
}

// A replaced worker has its part of each poll first, and takes all of it.
TEST_F(ColdCommands, ShareAPollAndNoneWaitsForAnother) {
  constexpr uint32_t kChunks = 20 * kPart;
  serve(2 * kChunks);
  for (uint32_t chunk = 0; chunk < 2 * kChunks; chunk += 2) both_take(chunk);
  serve(kChunks, JobSlot(1), 2);
  uint32_t held = exchange_->usage().ranges;
  ASSERT_EQ(held, kChunks);
  run(command::RemoveJob{JobSlot(0)});
  run(command::ReplaceWorker{JobSlot(1), 0, 8});
  std::optional<event::WorkerReplaced> replaced;
  uint32_t polls = 0;
  for (; !replaced; ++polls) {
    ASSERT_LT(polls, kChunks / kPart + 2);
    exchange_->poll(0);
    replaced = event<event::WorkerReplaced>();
    const uint32_t left = exchange_->usage().ranges;
    if (!replaced) {
      EXPECT_NEAR(held - left, ColdSteps::kLeast, 1) << "a step may free none";
    }
    held = left;
  }
  exchange_->poll(0);
  EXPECT_EQ(held - exchange_->usage().ranges, kPart) << "nobody else takes any";
}

TEST_F(ColdCommands, AWorkersJobIsRemovedTensorByTensor) {
  constexpr uint32_t kTensors = 5000;
  auto memory = ChannelMemory::create({8192, 8192}, false);
  ASSERT_TRUE(memory);
  EngineChannel engine(*memory);
  ClientChannel program(*memory);
  run(command::AttachChannel{&engine});
  command::AddWorkerJob job;
  job.workers = job.shards = 1;
  job.channel = &engine;
  run(job);
  run(command::BindShard{JobSlot(0), 0, 0});
  std::vector<std::byte> data(64);
  for (uint32_t i = 0; i < kTensors; ++i) {
    command::AddTensor tensor;
    tensor.tensor = TensorId(i);
    tensor.numel = 16;
    tensor.chunk_bytes = 64;
    tensor.data = data.data();
    run(tensor);
    ASSERT_TRUE(program.submit({SubmitOp::kPushPull, 1, 0, TensorId(i), i + 1}));
  }
  while (exchange_->poll(0) > 0) {
  }
  run(command::RemoveJob{JobSlot(0)});
  uint32_t completed = 0, polls = 0;
  for (; !event<event::JobRemoved>(); ++polls) {
    ASSERT_LT(polls, kTensors);
    EXPECT_EQ(exchange_->next_deadline_ns(), 0U) << "it would sleep over it";
    exchange_->poll(0);
    uint32_t now = 0;
    for (Completion done; program.pop(done); ++now) EXPECT_EQ(done.status, Errc::kClosed);
    EXPECT_LE(now, kPart) << "in one poll";
    completed += now;
  }
  EXPECT_EQ(completed, kTensors) << "each before the job is gone";
  EXPECT_GE(polls, kTensors / kPart + kTensors / (kPart / 16));
  EXPECT_EQ(counters_.get(Gauge::kJobs), 0U);
}

}  // namespace
}  // namespace mercury
