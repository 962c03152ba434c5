// One worker's half of an engine, without a network: what it releases, and what arrives for it.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "scheduler/terms/chunk.h"
#include "shim/exchange/worker/worker.h"
#include "tests/shim/chunk_frame.h"
#include "transport/wire/crc32c.h"

namespace mercury {

// One job of two workers and two shards, one tensor of 1,000 floats in chunks of 64.
class WorkerTest : public testing::Test {
 protected:
  static constexpr uint32_t kChunkBytes = 256;
  static constexpr uint32_t kChunks = 16;

  void SetUp() override {
    command::AddWorkerJob job;
    job.job = kJob;
    job.rank = 1;
    job.workers = 2;
    job.incarnation = 7;
    job.shards = 2;
    job.channel = channel_;
    job.client_job = 3;
    ASSERT_TRUE(worker_.add_job(job).ok());
    ASSERT_TRUE(worker_.bind_shard(kJob, 0, SessionSlot(10)).ok());
    ASSERT_TRUE(worker_.bind_shard(kJob, 1, SessionSlot(11)).ok());
    ASSERT_TRUE(worker_.add_tensor(tensor(5)).ok());
  }
  command::AddTensor tensor(TensorId number) {
    command::AddTensor spec;
    spec.job = kJob;
    spec.tensor = number;
    spec.numel = 1000;
    spec.chunk_bytes = kChunkBytes;
    spec.data = reinterpret_cast<std::byte*>(memory_.data());
    return spec;
  }
  void submit(SubmitOp op, uint64_t cookie, TensorId number = 5, uint32_t client_job = 3) {
    worker_.submit(channel_, {op, 4, client_job, number, cookie});
  }
  // What was begun is done, as by the polls that follow.
  void take_step() {
    JobSlot gone;
    uint32_t looks = 10'000;
    worker_.begin_turns();
    (void)worker_.take_removed(looks, gone);
  }
  void take_steps() {
    while (worker_.has_steps()) take_step();
  }
  std::vector<WorkerRange> ranges() {
    std::vector<WorkerRange> all;
    WorkerRange range;
    do {
      take_step();
      while (worker_.take_range(range)) all.push_back(range);
    } while (worker_.has_steps());
    return all;
  }
  // Under a policy that releases partitions.
  uint32_t chunks_released() {
    uint32_t chunks = 0;
    while (worker_.release_due_ns() == 0) {
      worker_.begin_turns();
      worker_.release(1);
      for (const WorkerRange& range : ranges()) chunks += range.range.chunks.count;
    }
    return chunks;
  }
  std::vector<Completion> completions() {
    take_steps();
    std::vector<Completion> all;
    WorkerCompletion done;
    while (worker_.take_completion(done)) all.push_back(done.told);
    return all;
  }
  static Shard shard_of(uint32_t chunk) {
    const ChunkSpan first = ShardPlan(0, kChunks, 2).span(0);
    return first.contains(ChunkIndex(chunk)) ? Shard(0) : Shard(1);
  }
  static ScheduledChunk scheduled(Round round, ChunkIndex chunk) {
    return {SessionSlot(10), kJob, {0, round, chunk}, 4, false};
  }
  // The sum of `chunk`: every element `value`.
  bool deliver(uint32_t chunk, uint32_t round, float value, int32_t corrupt_byte = -1,
               TensorId number = 5) {
    const uint32_t elems = chunk == kChunks - 1 ? 1000 - 64 * (kChunks - 1) : 64;
    std::vector<float> sum(elems, value);
    auto bytes = std::as_writable_bytes(std::span(sum));
    test::ChunkFrame header;
    header.type = kResultFrame;
    header.round = Round(round);
    header.tensor = number;
    header.chunk = ChunkIndex(chunk);
    header.sender = 2;
    header.payload_crc = wire::crc32c(bytes);
    if (corrupt_byte >= 0) bytes[static_cast<size_t>(corrupt_byte)] ^= std::byte{1};
    Worker::Share share{shard_of(chunk)};
    return worker_.on_result(kJob, share, header, bytes);
  }

  // A sum without elements.
  bool deliver_nothing(uint32_t chunk, uint16_t flags = 0) {
    test::ChunkFrame header;
    header.type = kResultFrame;
    header.flags = flags;
    header.round = Round(1);
    header.tensor = 5;
    header.chunk = ChunkIndex(chunk);
    header.sender = 2;
    Worker::Share share{shard_of(chunk)};
    return worker_.on_result(kJob, share, header, {});
  }

  static constexpr JobSlot kJob{2};
  EngineChannel* channel_ = reinterpret_cast<EngineChannel*>(0x1000);  // never dereferenced
  Counters counters_;
  Worker worker_{counters_};
  std::vector<float> memory_ = std::vector<float>(1000, 1.0F);
};

}  // namespace mercury
