#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "aggregator/frame/chunk_header.h"
#include "tests/milliseconds.h"
#include "tests/resident_pages.h"
#include "tests/shim/chunk_frame.h"
#include "tests/shim/exchange_fixture.h"
#include "transport/base/memory_thread.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

TEST_F(GradientExchangeTest, CompletionsThatFoundNoRoomWakeTheProgramWhenTheyCome) {
  submit(1, kCompletions + 2);
  EXPECT_GT(exchange_.poll(0), 0U);
  EXPECT_EQ(completed(), (std::vector<uint64_t>{1, 2, 3, 4}));
  ASSERT_TRUE(program_->park());
  EXPECT_FALSE(readable(program_->client_doorbell()));
  EXPECT_GT(exchange_.poll(0), 0U) << "to deliver is work: the engine does not sleep over it";
  EXPECT_TRUE(readable(program_->client_doorbell()));
  program_->unpark();
  EXPECT_EQ(completed(), (std::vector<uint64_t>{5, 6}));
  EXPECT_EQ(exchange_.usage().completions, 0U);
}

TEST_F(GradientExchangeTest, GrantsAreByUrgencyUnlessTheJobsPolicyDiffers) {
  command::AddServerJob server;
  server.workers = server.shards = 1;
  server.terms.policy = "mercury:grants=even";
  ASSERT_TRUE(does(server));
  command::AddWorkerJob worker;
  worker.job = JobSlot(1);
  worker.shards = 1;
  worker.terms.policy = "mercury:grants=even";
  ASSERT_TRUE(does(worker));
  for (uint16_t job = 0; job < 2; ++job) {
    EXPECT_FALSE(host_.heeds.at(job));
    ASSERT_TRUE(does(command::SetPolicy{JobSlot(job), "mercury:answers=fifo"}));
    EXPECT_TRUE(host_.heeds.at(job));
  }
}

TEST_F(GradientExchangeTest, NothingIsTakenFromAProgramThatDoesNotReadItsCompletions) {
  submit(1, kCompletions + 1);
  exchange_.poll(0);
  submit(100, 1);
  EXPECT_EQ(exchange_.poll(0), 0U);
  EXPECT_EQ(counters_.get(Counter::kSubmissions), kCompletions + 1);
  EXPECT_EQ(completed(), (std::vector<uint64_t>{1, 2, 3, 4}));
  exchange_.poll(0);  // makes room
  exchange_.poll(0);  // and takes the next
  EXPECT_EQ(completed(), (std::vector<uint64_t>{5, 100}));
}

TEST_F(GradientExchangeTest, OnePassTakesFewSubmissionsThatAreRefused) {
  auto memory = ChannelMemory::create({64, 64}, false);
  ASSERT_TRUE(memory) << memory.error().message;
  EngineChannel engine(*memory);
  program_ = std::make_unique<ClientChannel>(*memory);
  ASSERT_TRUE(does(command::AttachChannel{&engine}));
  submit(1, 60);
  for (uint64_t taken = 0; taken < 60;) {
    EXPECT_GT(exchange_.poll(0), 0U);
    const uint64_t now = counters_.get(Counter::kSubmissions);
    ASSERT_GT(now, taken);
    ASSERT_LE(now, taken + 8);
    taken = now;
  }
  EXPECT_EQ(completed().size(), 60U);
}

// The memory that a tensor's sums lie in, as its port hears of it.
class DeclaredSums : public testing::Test {
 protected:
  void declare(MemoryThread* thread) {
    static constexpr uint32_t kElements = 1 << 21;
    ExchangeConfig config;
    config.sums_thread = thread;
    const PortMemory port{[](void*, PayloadPin&) { return false; }, this,
                          [](void* self, std::span<std::byte> memory) -> Result<MemoryKey> {
                            static_cast<DeclaredSums*>(self)->sums_ = memory;
                            return MemoryKey(1);
                          },
                          [](void*, MemoryKey) {}};
    exchange_ = std::make_unique<GradientExchange>(config, counters_, port);
    FakeEngine host;
    command::AddServerJob job;
    job.workers = 2;
    job.shards = 1;
    exchange_->on_command(job, host);
    command::AddTensor tensor;
    tensor.numel = kElements;
    tensor.chunk_bytes = 1024;
    exchange_->on_command(tensor, host);
    ASSERT_GE(sums_.size(), 2 * kElements * sizeof(float));
  }
  size_t pages() const { return sums_.size() / kPage; }
  size_t resident() const { return resident_pages(sums_.data(), sums_.size()); }

  Counters counters_;
  std::span<std::byte> sums_;
  std::unique_ptr<GradientExchange> exchange_;
};

// To touch a GiB takes the kernel a quarter of a second.
TEST_F(DeclaredSums, AreNotTouchedByTheEngine) {
  declare(nullptr);
  EXPECT_EQ(resident(), 0U);
}

TEST_F(DeclaredSums, AreTouchedByTheThreadBesideIt) {
  MemoryThread thread;
  declare(&thread);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (resident() < pages() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(resident(), pages());
  exchange_.reset();  // the thread lives longer
}

// A thousand chunks whose patience ends at once, none of them with enough contributions: frames are
// received and sent between them.
TEST_F(GradientExchangeTest, OnePassLooksAtFewOfTheChunksWhoseTimeIsUp) {
  constexpr uint32_t kChunks = 1000;
  constexpr uint64_t kPatienceNs = 1'000'000;
  command::AddServerJob job;
  job.workers = 3;
  job.shards = 1;
  job.terms.quorum = 2;
  job.terms.patience_ms = to_ms(kPatienceNs);
  ASSERT_TRUE(does(job));
  command::AddTensor tensor;
  tensor.numel = kChunks * 16;
  tensor.chunk_bytes = 64;
  ASSERT_TRUE(does(tensor));
  ASSERT_TRUE(bind_worker(JobSlot(0), 0, 7, 0));
  const std::vector<std::byte> elements(64);
  test::ChunkFrame header;
  header.round = 1;
  header.incarnation = 7;
  header.payload_crc = wire::crc32c(elements);
  for (header.chunk = 0; header.chunk.value < kChunks; ++header.chunk.value) {
    ASSERT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
  }
  uint32_t looked = 0;
  while (exchange_.next_deadline_ns() <= kPatienceNs) {
    const uint32_t work = exchange_.poll(kPatienceNs);
    ASSERT_GT(work, 0U);
    ASSERT_LE(work, 64U);
    looked += work;
  }
  EXPECT_EQ(looked, kChunks);
  EXPECT_EQ(exchange_.next_deadline_ns(), kNever);
}

struct Refused {
  const char* what;
  void (*change)(test::ChunkFrame&);
  Counter counter;
  Taken taken;  // kYes: sending it again would not help
};

const Refused kRefused[] = {
    {"the round that has just ended", [](test::ChunkFrame& h) { h.round = 1; },
     Counter::kDropRoundOld, Taken::kYes},
    {"a round long gone", [](test::ChunkFrame& h) { h.round.value -= 1000; },
     Counter::kDropRoundOld, Taken::kYes},
    {"the round after the next", [](test::ChunkFrame& h) { h.round.value += 1; },
     Counter::kDropRoundNew, Taken::kLater},
    {"a chunk that it has added to", [](test::ChunkFrame& h) { h.chunk = 0; },
     Counter::kDropContributedTwice, Taken::kYes},
    {"a tensor that nobody declared", [](test::ChunkFrame& h) { h.tensor = 1; },
     Counter::kDropUnknownTensor, Taken::kLater},
    {"a chunk behind the last", [](test::ChunkFrame& h) { h.chunk = 2; }, Counter::kDropChunkRange,
     Taken::kYes},
    {"another worker's", [](test::ChunkFrame& h) { h.sender = 1; }, Counter::kDropWorkerRank,
     Taken::kYes},
    {"its last life's", [](test::ChunkFrame& h) { h.incarnation -= 1; }, Counter::kDropIncarnation,
     Taken::kYes},
    {"a damaged one", [](test::ChunkFrame& h) { h.payload_crc ^= 1; }, Counter::kDropPayloadCrc,
     Taken::kNo},
    {"a result", [](test::ChunkFrame& h) { h.type = kResultFrame; }, Counter::kDropNotOpen,
     Taken::kLater},
};

// Round 1 is complete, and in round 2 the worker has sent one of two chunks.
TEST_F(GradientExchangeTest, EachPushThatIsRefusedIsCountedUnderItsReasonAndChangesNothing) {
  serve(2, 32);
  const std::vector<std::byte> elements(64);
  test::ChunkFrame header;
  header.payload_crc = wire::crc32c(elements);
  const auto push = [&](test::ChunkFrame sent) {
    return exchange_.on_datagram(SessionSlot(uint32_t{sent.sender}), sent, elements, 0);
  };
  for (header.sender = 0; header.sender < 2; ++header.sender) {
    header.incarnation = 7 + header.sender;
    ASSERT_TRUE(bind_worker(JobSlot(0), Rank(header.sender), header.incarnation,
                            Token(uint64_t{header.sender})));
    for (header.chunk = 0; header.chunk.value < 2; ++header.chunk.value) {
      header.round = 1;
      // The second worker's is what the first's waited for.
      ASSERT_EQ(push(header), header.sender == 0 ? Taken::kYes : Taken::kLast);
    }
  }
  header.sender = 0;
  header.incarnation = 7;
  header.round = 2;
  header.chunk = 0;
  ASSERT_EQ(push(header), Taken::kYes);
  header.chunk = 1;
  for (const Refused& row : kRefused) {
    test::ChunkFrame wrong = header;
    row.change(wrong);
    const uint64_t before = counters_.get(row.counter);
    EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), wrong, elements, 0), row.taken) << row.what;
    EXPECT_EQ(counters_.get(row.counter), before + 1) << row.what;
    EXPECT_EQ(counters_.get(Counter::kPushChunks), 5U) << row.what;
    if (row.taken == Taken::kNo) continue;
    // Nobody reads its payload: if it is not the sender's, it has not arrived.
    wrong.payload_crc ^= 1;
    const uint64_t damaged = counters_.get(Counter::kDropPayloadCrc);
    EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), wrong, elements, 0), Taken::kNo) << row.what;
    EXPECT_EQ(counters_.get(row.counter), before + 1) << row.what;
    EXPECT_EQ(counters_.get(Counter::kDropPayloadCrc), damaged + 1) << row.what;
  }
  EXPECT_EQ(push(header), Taken::kYes) << "what was right with it is still awaited";
  EXPECT_EQ(counters_.get(Counter::kPushChunks), 6U);
}

TEST_F(GradientExchangeTest, ASumThatTheNicStillReadsIsNotOverwrittenAndItsPushComesAgain) {
  serve(1, 16);
  ASSERT_TRUE(bind_worker(JobSlot(0), 0, 7, 0));
  const std::vector<std::byte> elements(64);
  test::ChunkFrame header;
  header.incarnation = 7;
  header.payload_crc = wire::crc32c(elements);
  for (header.round = 1; header.round.value < 3; ++header.round.value) {
    ASSERT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
  }
  port_.reads = true;
  EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kLater);
  EXPECT_EQ(counters_.get(Counter::kDropSlotBusy), 1U);
  port_.reads = false;
  EXPECT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
  EXPECT_EQ(counters_.get(Counter::kPushChunks), 3U);
}

TEST_F(GradientExchangeTest, SumsStayMappedUntilTheNicHasReadTheLastOfThem) {
  serve(1, 16);
  EXPECT_EQ(port_.mapped, 1);
  EXPECT_GT(counters_.get(Gauge::kSumBytes), 0U);
  EXPECT_EQ(counters_.get(Gauge::kUnmappedSumBytes), 0U);
  port_.reads = true;
  ASSERT_TRUE(does(command::RemoveJob{JobSlot(0)}));
  exchange_.poll(0);
  EXPECT_TRUE(exchange_.awaits_nic());
  EXPECT_EQ(port_.mapped, 1);
  port_.reads = false;
  exchange_.poll(0);
  EXPECT_FALSE(exchange_.awaits_nic());
  EXPECT_EQ(port_.mapped, 0);
}

TEST_F(GradientExchangeTest, SumsThatThePortCannotMapAreSentByCopy) {
  for (const bool maps : {true, false}) {
    port_.maps = maps;
    serve(1, 16);
    EXPECT_EQ(counters_.get(Gauge::kUnmappedSumBytes), maps ? 0U : counters_.get(Gauge::kSumBytes));
    ASSERT_TRUE(bind_worker(JobSlot(0), 0, 7, 0));
    exchange_.unblock(SessionSlot(0));
    const std::vector<std::byte> elements(64, std::byte{0x3f});
    test::ChunkFrame header;
    header.round = 1;
    header.incarnation = 7;
    header.payload_crc = wire::crc32c(elements);
    ASSERT_EQ(exchange_.on_datagram(SessionSlot(0), header, elements, 0), Taken::kYes);
    OutgoingDatagram out;
    ASSERT_TRUE(exchange_.next(out));
    EXPECT_EQ(out.pin != nullptr, maps);
    EXPECT_TRUE(std::ranges::equal(out.payload, elements));
    ASSERT_TRUE(does(command::RemoveJob{JobSlot(0)}));
    exchange_.poll(0);
    EXPECT_EQ(counters_.get(Gauge::kUnmappedSumBytes), 0U);
  }
}

// A worker with 32 servers: tensor 0 has three chunks for each, tensor 1 one.
class RowsOfChunks : public GradientExchangeTest {
 protected:
  static constexpr uint16_t kServers = 32;

  void SetUp() override {
    GradientExchangeTest::SetUp();
    command::AddWorkerJob job;
    job.workers = 1;
    job.shards = kServers;
    job.channel = engine_.get();
    ASSERT_TRUE(does(job));
    for (uint16_t shard = 0; shard < kServers; ++shard) {
      ASSERT_TRUE(does(command::BindShard{JobSlot(0), Shard(shard), Token(uint64_t{shard})}));
      exchange_.unblock(SessionSlot(uint32_t{shard}));
    }
    for (const uint32_t number : {0U, 1U}) {
      command::AddTensor tensor;
      tensor.tensor = TensorId(number);
      tensor.numel = size_t{number == 0 ? 3U : 1U} * kServers * 16;
      tensor.chunk_bytes = 64;
      tensor.data = reinterpret_cast<std::byte*>(memory_.data());
      ASSERT_TRUE(does(tensor));
    }
  }
  void push(uint32_t number, uint16_t priority) {
    ASSERT_TRUE(program_->submit({SubmitOp::kPushPull, priority, 0, TensorId(number), 1}));
    exchange_.poll(0);
  }
  // Of the next `count` frames the sessions, all of a tensor.
  std::vector<uint32_t> next_of(uint32_t number, uint32_t count) {
    std::vector<uint32_t> sessions;
    OutgoingDatagram out;
    while (sessions.size() < count && exchange_.next(out)) {
      EXPECT_EQ(ChunkHeader::of(out.header).tensor, TensorId(number)) << sessions.size();
      sessions.push_back(out.session.value);
    }
    return sessions;
  }
  static std::vector<uint32_t> from(uint32_t first, uint32_t end) {
    std::vector<uint32_t> sessions;
    for (uint32_t i = first; i < end; ++i) sessions.push_back(i);
    return sessions;
  }
  std::vector<float> memory_ = std::vector<float>(size_t{3} * kServers * 16);
};

TEST_F(RowsOfChunks, OneThatIsHalfSentIsFinishedBeforeWhatIsMoreUrgent) {
  push(0, 9);
  EXPECT_EQ(next_of(0, 20), from(0, 20));
  push(1, 2);
  EXPECT_EQ(next_of(0, 12), from(20, 32));
  EXPECT_EQ(next_of(1, 32).size(), 32U);
  EXPECT_EQ(next_of(0, 100).size(), 64U);
}

TEST_F(RowsOfChunks, OneThatIsHardlyBegunIsLeft) {
  push(0, 9);
  EXPECT_EQ(next_of(0, 15), from(0, 15));
  push(1, 2);
  EXPECT_EQ(next_of(1, 32).size(), 32U);
  EXPECT_EQ(next_of(0, 100).size(), 81U);
}

// Those that wait for credit go on later; the others do not send one more in their place.
TEST_F(RowsOfChunks, NobodySendsMoreThanHisPartOfOne) {
  for (const uint32_t session : from(28, 32)) exchange_.block(SessionSlot(session));
  push(0, 9);
  EXPECT_EQ(next_of(0, 20), from(0, 20));
  push(1, 2);
  EXPECT_EQ(next_of(0, 8), from(20, 28));
  EXPECT_EQ(next_of(1, 28).size(), 28U);
  for (const uint32_t session : from(28, 32)) exchange_.unblock(SessionSlot(session));
  EXPECT_EQ(next_of(1, 4), from(28, 32));
  EXPECT_EQ(next_of(0, 100).size(), 68U);
}

}  // namespace
}  // namespace mercury
