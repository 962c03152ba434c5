// Whose contributions are missing in the sums of a worker's round.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "shim/exchange/worker/worker.h"
#include "tests/shim/chunk_frame.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

// 70 workers, one shard: what sums say of who is in them.
class QuorumWorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    command::AddWorkerJob job;
    job.job = JobSlot(1);
    job.workers = 70;
    job.shards = 1;
    job.channel = reinterpret_cast<EngineChannel*>(0x1000);  // never dereferenced
    job.client_job = 3;
    job.terms.quorum = 1;
    ASSERT_TRUE(worker_.add_job(job).ok());
    ASSERT_TRUE(worker_.bind_shard(JobSlot(1), 0, SessionSlot(10)).ok());
    command::AddTensor tensor;
    tensor.job = JobSlot(1);
    tensor.tensor = 5;
    tensor.numel = 32;
    tensor.chunk_bytes = 64;  // two chunks of 16 floats
    tensor.data = reinterpret_cast<std::byte*>(memory_.data());
    ASSERT_TRUE(worker_.add_tensor(tensor).ok());
    worker_.submit(job.channel, {SubmitOp::kPushPull, 0, 3, 5, 99});
  }
  // A sum of `contributors`, whose bitmap is the two words.
  bool deliver(uint32_t chunk, uint16_t contributors, uint64_t low, uint64_t high,
               bool corrupt = false) {
    std::vector<std::byte> payload(16 + 64, std::byte{0x11});
    for (size_t i = 0; i < 8; ++i) {
      payload[i] = static_cast<std::byte>(low >> (56 - 8 * i));
      payload[8 + i] = static_cast<std::byte>(high >> (56 - 8 * i));
    }
    test::ChunkFrame header;
    header.type = kResultFrame;
    header.flags = kFlagPartial;
    header.round = 1;
    header.tensor = 5;
    header.chunk = ChunkIndex(chunk);
    header.sender = contributors;
    header.payload_crc = wire::crc32c(payload) ^ (corrupt ? 1 : 0);
    return worker_.on_result(JobSlot(1), share_, header, payload);
  }
  std::vector<float> memory_ = std::vector<float>(32, 1.0F);
  Counters counters_;
  Worker worker_{counters_};
  Worker::Share share_{0};
};

TEST_F(QuorumWorkerTest, TheLastChunkSaysWhoIsMissingInSomeAndInAll) {
  EXPECT_TRUE(deliver(0, 3, 0x8000000000000001, 0x20));  // 0, 63 and 69
  EXPECT_TRUE(deliver(1, 2, 0x1, 0x20));
  WorkerCompletion ended;
  ASSERT_TRUE(worker_.take_completion(ended));
  const Completion& done = ended.told;
  EXPECT_EQ(done.cookie, 99U);
  EXPECT_EQ(done.status, Errc::kOk);
  EXPECT_EQ(done.absent_words, 2);
  // Of the job's words alone.
  EXPECT_EQ(done.absent.in_some, (WorkerSet{~uint64_t{1}, 0x1f}));
  EXPECT_EQ(done.absent.in_all[0], 0x7ffffffffffffffeU);
  EXPECT_EQ(done.absent.in_all[1], 0x1fU);
  uint32_t element = 0;
  std::memcpy(&element, &memory_[17], 4);
  EXPECT_EQ(element, 0x11111111U);
}

TEST_F(QuorumWorkerTest, ImpossibleContributorsAndDamageChangeNothing) {
  EXPECT_TRUE(deliver(0, 2, 0x1, 0));         // one, not two
  EXPECT_TRUE(deliver(0, 2, 0x1, 0x40));      // worker 70
  EXPECT_FALSE(deliver(0, 1, 0x1, 0, true));  // to be sent again
  EXPECT_EQ(memory_, std::vector<float>(32, 1.0F));
  EXPECT_EQ(counters_.get(Counter::kDropResultUnexpected), 2U);
  EXPECT_EQ(counters_.get(Counter::kDropPayloadCrc), 1U);
  EXPECT_TRUE(deliver(0, 1, 0x1, 0));
  EXPECT_NE(memory_[0], 1.0F);
}

}  // namespace
}  // namespace mercury
