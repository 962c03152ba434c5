#include "shim/runtime/gradient_exchange.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <vector>

#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

// One program whose rings are small. It has no job, so that each of its operations completes at
// once, with an error.
class GradientExchangeTest : public testing::Test {
 protected:
  static constexpr uint32_t kCompletions = 4;

  void SetUp() override {
    auto memory = ChannelMemory::create({64, kCompletions}, false);
    ASSERT_TRUE(memory) << memory.error().message;
    engine_ = std::make_unique<EngineChannel>(*memory);
    program_ = std::make_unique<ClientChannel>(*memory);
    ASSERT_TRUE(exchange_.on_command(command::AttachChannel{engine_.get()}).ok());
  }
  void submit(uint64_t first_cookie, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(program_->submit({SubmitOp::kPushPull, 0, 1, 1, first_cookie + i}));
    }
  }
  std::vector<uint64_t> completed() {
    std::vector<uint64_t> cookies;
    Completion completion;
    while (program_->pop(completion)) cookies.push_back(completion.cookie);
    return cookies;
  }

  Counters counters_;
  GradientExchange exchange_{ExchangeConfig(), counters_, [](void*, PayloadPin&) { return false; },
                             nullptr};
  std::unique_ptr<EngineChannel> engine_;
  std::unique_ptr<ClientChannel> program_;
};

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

// A thousand chunks whose patience ends at once, none of them with enough contributions: frames are
// received and sent between them.
TEST_F(GradientExchangeTest, OnePassLooksAtFewOfTheChunksWhoseTimeIsUp) {
  constexpr uint32_t kChunks = 1000;
  constexpr uint64_t kPatienceNs = 1'000'000;
  command::AddServerJob job;
  job.workers = 3;
  job.shards = 1;
  job.quorum = 2;
  job.patience_ns = kPatienceNs;
  ASSERT_TRUE(exchange_.on_command(job));
  command::AddTensor tensor;
  tensor.numel = kChunks * 16;
  tensor.chunk_bytes = 64;
  ASSERT_TRUE(exchange_.on_command(tensor));
  ASSERT_TRUE(exchange_.bind_worker(JobSlot(0), 0, 7, SessionSlot(0)));
  const std::vector<std::byte> elements(64);
  wire::Header header;
  header.type = wire::FrameType::kPush;
  header.round = 1;
  header.incarnation = 7;
  header.payload_crc = wire::crc32c(elements);
  for (header.chunk = 0; header.chunk < kChunks; ++header.chunk) {
    ASSERT_EQ(exchange_.on_chunk(SessionSlot(0), header, elements, 0), Taken::kYes);
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

}  // namespace
}  // namespace mercury
