// The exchange allocates nothing while frames and submissions pass, not even where they are
// refused, lost, late or not read.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "shim/exchange/gradient_exchange.h"
#include "tests/allocations.h"
#include "tests/shim/chunk_frame.h"
#include "tests/shim/fake_engine.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

class ExchangeAllocation : public testing::Test {
 protected:
  static constexpr uint32_t kRanges = 1024;
  static constexpr uint32_t kOwn = kRanges / 5 / 8;  // each job's
  static constexpr uint32_t kPart = kOwn + (kRanges - 8 * kOwn) / 2;
  static constexpr uint32_t kReserved = 256;
  static constexpr uint32_t kCompletions = 4;  // room in a program's ring

  struct AttachedProgram {
    explicit AttachedProgram(const std::shared_ptr<ChannelMemory>& memory)
        : engine(memory), client(memory) {}
    EngineChannel engine;
    ClientChannel client;
  };
  AttachedProgram& add_program(uint32_t submissions, uint32_t completions) {
    auto memory = ChannelMemory::create({submissions, completions}, false);
    EXPECT_TRUE(memory);
    programs_.push_back(std::make_unique<AttachedProgram>(*memory));
    run(command::AttachChannel{&programs_.back()->engine});
    return *programs_.back();
  }
  template <class OneCommand>
  void run(const OneCommand& command) {
    exchange_->on_command(command, host_);
    while (const auto event = exchange_->take_event()) {
      EXPECT_FALSE(std::holds_alternative<event::CommandFailed>(*event));
    }
  }
  // A server's job of `workers` whose tensor 0 has `chunks` of 16 elements; worker r is session r.
  void serve(uint16_t workers, uint32_t chunks, uint16_t quorum = 0) {
    command::AddServerJob job;
    job.workers = workers;
    job.shards = 1;
    job.terms.quorum = quorum;
    job.terms.patience_ms = quorum > 0 ? 1 : 0;
    run(job);
    command::AddTensor tensor;
    tensor.numel = uint64_t{chunks} * 16;
    tensor.chunk_bytes = 64;
    run(tensor);
    for (uint16_t rank = 0; rank < workers; ++rank) {
      run(command::BindWorker{JobSlot(0), Rank(rank), 7, Token(uint64_t{rank})});
    }
  }
  // Of the worker's job, of a chunk each.
  void declare(uint32_t tensors) {
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      command::AddTensor spec;
      spec.tensor = TensorId(tensor);
      spec.numel = gradient_.size();
      spec.chunk_bytes = 64;
      spec.data = reinterpret_cast<std::byte*>(gradient_.data());
      run(spec);
    }
  }
  Taken push(uint16_t rank, uint32_t chunk, uint64_t now_ns) {
    test::ChunkFrame header;
    header.round = 1;
    header.chunk = ChunkIndex(chunk);
    header.sender = rank;
    header.incarnation = 7;
    header.payload_crc = wire::crc32c(elements_);
    return exchange_->on_datagram(SessionSlot(uint32_t{rank}), header, elements_, now_ns);
  }
  template <class F>
  static uint64_t allocations_of(F what) {
    const uint64_t before = allocations();
    what();
    return allocations() - before;
  }

  std::vector<float> gradient_ = std::vector<float>(16);
  const std::vector<std::byte> elements_ = std::vector<std::byte>(64);
  FakeEngine host_;
  Counters counters_;
  std::vector<std::unique_ptr<AttachedProgram>> programs_;
  std::unique_ptr<GradientExchange> exchange_ = std::make_unique<GradientExchange>(
      ExchangeConfig{.sends = {.scheduler = {8, 64, kRanges, 4096}, .reserved_ranges = kReserved}},
      counters_, PortMemory{[](void*, PayloadPin&) { return false; }});
};

TEST_F(ExchangeAllocation, NotWhereManyProgramsAreRefused) {
  constexpr uint32_t kPrograms = 60;  // together they are refused more often than a pass may be
  constexpr uint32_t kEach = 48;
  for (uint32_t i = 0; i < kPrograms; ++i) add_program(64, 64);
  for (const auto& program : programs_) {
    for (uint64_t i = 0; i < kEach; ++i) {
      ASSERT_TRUE(program->client.submit({SubmitOp::kPush, 0, 1, 1, i + 1}));
    }
  }
  uint32_t passes = 0;
  const uint64_t allocations = allocations_of([&] {
    for (; counters_.get(Counter::kSubmissions) < kPrograms * kEach; ++passes) exchange_->poll(0);
  });
  EXPECT_EQ(allocations, 0U);
  EXPECT_GE(passes, kPrograms * kEach / Worker::kRefusalsPerPass);
  for (const auto& program : programs_) {
    Completion done;
    uint32_t completed = 0;
    while (program->client.pop(done)) ++completed;
    EXPECT_EQ(completed, kEach) << "none is left out";
  }
}

TEST_F(ExchangeAllocation, NotForCompletionsThatNobodyReads) {
  constexpr uint32_t kTensors = 300;
  AttachedProgram& program = add_program(512, kCompletions);
  command::AddWorkerJob job;
  job.workers = 2;
  job.shards = 1;
  job.channel = &program.engine;
  job.terms.quorum = 1;
  run(job);
  run(command::BindShard{JobSlot(0), 0, 0});
  declare(kTensors);
  for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    ASSERT_TRUE(program.client.submit({SubmitOp::kPushPull, 1, 0, TensorId(tensor), tensor + 1}));
  }
  const uint64_t allocations = allocations_of([&] {
    while (exchange_->poll(0) > 0) {
    }
    exchange_->on_command(command::FailJob{JobSlot(0), Errc::kPeerLost}, host_);
    exchange_->poll(0);
  });
  EXPECT_EQ(allocations, 0U);
  EXPECT_EQ(exchange_->usage().completions, kTensors - kCompletions);
}

// But for tensors that are pushed before they have followed their job: none here.
TEST_F(ExchangeAllocation, NotForPushesOnceTensorsHaveFollowedAnotherPolicy) {
  constexpr uint32_t kTensors = 100;
  AttachedProgram& program = add_program(128, 128);
  command::AddWorkerJob job;
  job.workers = job.shards = 1;
  job.channel = &program.engine;
  run(job);
  run(command::BindShard{JobSlot(0), 0, 0});
  declare(kTensors);
  run(command::SetPolicy{JobSlot(0), "bytescheduler:partition=1KB,credit=1KB,startup=0ns"});
  while (exchange_->next_deadline_ns() == 0) exchange_->poll(0);
  for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    ASSERT_TRUE(program.client.submit({SubmitOp::kPushPull, 0, 0, TensorId(tensor), tensor + 1}));
  }
  const uint64_t allocations = allocations_of([&] {
    while (exchange_->poll(0) > 0) {
    }
  });
  EXPECT_EQ(allocations, 0U);
  EXPECT_EQ(counters_.get(Counter::kSubmissions), kTensors);
}

TEST_F(ExchangeAllocation, NotForLostChunksThatFindNoRoomInTheScheduler) {
  constexpr uint32_t kChunks = 4 * kRanges;
  serve(1, kChunks);
  exchange_->unblock(SessionSlot(0));
  std::vector<SentTag> sent_tags(kChunks);
  uint32_t lost = 0;
  const uint64_t allocations = allocations_of([&] {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {  // in order: one range
      ASSERT_EQ(push(0, chunk, 0), Taken::kYes);
      OutgoingDatagram out;
      ASSERT_TRUE(exchange_->next(out));
      sent_tags[chunk] = out.tag;
    }
    for (uint32_t chunk = 0; chunk < kChunks; chunk += 2, ++lost) {  // each a range of its own
      exchange_->on_lost(SessionSlot(0), sent_tags[chunk]);
    }
  });
  EXPECT_EQ(allocations, 0U);
  EXPECT_EQ(exchange_->usage().lost_chunks, lost - kPart) << "of a job that is alone";
  uint32_t sent = 0;
  const uint64_t later = allocations_of([&] {
    OutgoingDatagram out;
    for (bool more = true; more; exchange_->poll(0)) {
      for (more = false; exchange_->next(out); ++sent) more = true;
    }
  });
  EXPECT_EQ(later, 0U);
  EXPECT_EQ(sent, lost);
}

TEST_F(ExchangeAllocation, NotWhereTimeCompletesSums) {
  constexpr uint32_t kChunks = 500;
  serve(3, kChunks, 2);
  const uint64_t allocations = allocations_of([&] {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      ASSERT_EQ(push(0, chunk, 0), Taken::kYes);
      ASSERT_EQ(push(1, chunk, 0), Taken::kYes);
    }
    while (exchange_->next_deadline_ns() <= 1'000'000) exchange_->poll(2'000'000);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) push(2, chunk, 3'000'000);  // late
  });
  EXPECT_EQ(allocations, 0U);
  EXPECT_EQ(counters_.get(Counter::kQuorumResults), kChunks);
}

}  // namespace
}  // namespace mercury
