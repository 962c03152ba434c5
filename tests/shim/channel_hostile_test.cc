// What a program writes into memory A harms nobody but itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "shim/channel/channel.h"
#include "shim/channel/channel_layout.h"

namespace mercury {
namespace {

using Pop = EngineChannel::Pop;

// A program that maps memory A itself and writes what it likes.
class ChannelHostile : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = 16;
  void SetUp() override {
    auto memory = ChannelMemory::create({kSlots, kSlots}, true);
    ASSERT_TRUE(memory.has_value());
    engine_ = std::make_unique<EngineChannel>(*memory);
    void* map = ::mmap(nullptr, area_bytes(kSlots), PROT_READ | PROT_WRITE, MAP_SHARED,
                       (*memory)->program_descriptors()[0], 0);
    ASSERT_NE(map, MAP_FAILED);
    area_ = static_cast<ChannelArea*>(map);
  }
  void TearDown() override { ::munmap(area_, area_bytes(kSlots)); }
  void write(uint64_t position, uint64_t word0, uint64_t word1) {
    ChannelDescriptor& slot = area_->ring()[position % kSlots];
    slot.words[0] = word0;
    slot.words[1] = word1;
    slot.turn = position + 1;
  }
  void expect_broken_for_ever() {
    Submission out;
    EXPECT_EQ(engine_->pop(out), Pop::kBroken);
    write(1, 1, 0);
    EXPECT_EQ(engine_->pop(out), Pop::kBroken);
    for (uint32_t i = 0; i < 4 * kSlots; ++i) EXPECT_TRUE(engine_->complete({}));
    EXPECT_FALSE(engine_->park()) << "the engine must come and see";
  }
  std::unique_ptr<EngineChannel> engine_;
  ChannelArea* area_ = nullptr;
};

TEST_F(ChannelHostile, AnUnknownOperationBreaksTheChannel) {
  write(0, static_cast<uint64_t>(kLastSubmitOp) + 1, 0);
  expect_broken_for_ever();
}
TEST_F(ChannelHostile, OperationZeroBreaksTheChannel) {
  write(0, 0, 0);
  expect_broken_for_ever();
}
TEST_F(ChannelHostile, ReservedBitsBreakTheChannel) {
  write(0, 1 | 0x100, 0);
  expect_broken_for_ever();
}
TEST_F(ChannelHostile, ATensorOutOfRangeBreaksTheChannel) {
  write(0, 1, 0x80000000);
  expect_broken_for_ever();
}
TEST_F(ChannelHostile, AReadPositionAheadOfTheEngineBreaksTheChannel) {
  for (uint32_t i = 0; i < kSlots; ++i) ASSERT_TRUE(engine_->complete({}));
  area_->read_position = kSlots + 1;
  EXPECT_TRUE(engine_->complete({}));
  expect_broken_for_ever();
}
TEST_F(ChannelHostile, AReadPositionThatGoesBackBreaksTheChannel) {
  for (uint32_t i = 0; i < kSlots; ++i) ASSERT_TRUE(engine_->complete({}));
  area_->read_position = 8;
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(engine_->complete({}));
  area_->read_position = 7;
  EXPECT_TRUE(engine_->complete({}));
  expect_broken_for_ever();
}
TEST_F(ChannelHostile, StaleAndFutureTurnsAreNotTaken) {
  Submission out;
  for (const uint64_t turn : {uint64_t{0}, uint64_t{2}, uint64_t{kSlots + 1}, ~uint64_t{0}}) {
    area_->ring()[0].words[0] = 1;
    area_->ring()[0].turn = turn;
    EXPECT_EQ(engine_->pop(out), Pop::kEmpty);
  }
}
TEST_F(ChannelHostile, APunchedHoleIsZeros) {
  auto memory = ChannelMemory::create({kSlots, kSlots}, true);
  ASSERT_TRUE(memory.has_value());
  EngineChannel engine(*memory);
  ASSERT_EQ(
      ::fallocate((*memory)->program_descriptors()[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  0, static_cast<off_t>(area_bytes(kSlots))),
      0);
  Submission out;
  EXPECT_EQ(engine.pop(out), Pop::kEmpty);
  EXPECT_TRUE(engine.complete({}));
}

// Random words over all of A, half of them turns that the engine expects, while it pops, completes,
// rings and parks.
TEST_F(ChannelHostile, RandomBytesGiveOnlyValidSubmissionsOrABrokenChannel) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const size_t words = area_bytes(kSlots) / 8;
  uint64_t broken = 0;
  uint64_t taken = 0;
  for (int round = 0; round < 3000; ++round) {
    auto memory = ChannelMemory::create({kSlots, kSlots}, true);
    ASSERT_TRUE(memory.has_value());
    EngineChannel engine(*memory);
    void* map = ::mmap(nullptr, area_bytes(kSlots), PROT_READ | PROT_WRITE, MAP_SHARED,
                       (*memory)->program_descriptors()[0], 0);
    ASSERT_NE(map, MAP_FAILED);
    auto* raw = static_cast<std::atomic<uint64_t>*>(map);
    auto* area = static_cast<ChannelArea*>(map);
    uint64_t position = 0;
    for (int step = 0; step < 200; ++step) {
      raw[random() % words] = random();
      if (random() % 2 == 0) {
        ChannelDescriptor& slot = area->ring()[position % kSlots];
        if (random() % 8 != 0) slot.words[0] = random() % 8 | random() << 16;
        if (random() % 8 != 0) slot.words[1] = random() >> 33;
        slot.turn = position + 1;
      }
      if (random() % 4 == 0) area->read_position = random() % (position + 2);
      Submission out;
      const Pop pop = engine.pop(out);
      if (pop == Pop::kOne) {
        ASSERT_GE(static_cast<int>(out.op), 1);
        ASSERT_LE(static_cast<int>(out.op), static_cast<int>(SubmitOp::kScatter));
        ASSERT_LE(out.tensor.value, 0x7fffffffU);
        ++position;
        ++taken;
        (void)engine.complete({out.cookie, Errc::kOk, out.job, out.tensor, 1});
      }
      engine.ring();
      if (engine.park()) engine.unpark();
      if (pop == Pop::kBroken) {
        ++broken;
        ASSERT_EQ(engine.pop(out), Pop::kBroken);
        break;
      }
    }
    ::munmap(map, area_bytes(kSlots));
  }
  EXPECT_GT(broken, 1000U);
  EXPECT_GT(taken, 1000U);
}

// The same with the writer on another thread, so that descriptors change under the engine's copy.
TEST_F(ChannelHostile, AWriterThatNeverStopsCannotConfuseTheCopy) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> taken{0};
  std::thread writer([&] {
    std::mt19937_64 random(7);
    while (!stop.load(std::memory_order_relaxed)) {
      // A valid descriptor where the engine looks, changed while it may be copying it.
      const uint64_t position = taken.load(std::memory_order_relaxed);
      write(position, 1 + random() % 3, random() >> 33);
      const bool breaks = position > 1000 && random() % 4096 == 0;
      area_->ring()[position % kSlots].words[0] = breaks ? 9 : 2;
      area_->ring()[position % kSlots].words[1] = random() >> 33;
      area_->parked = static_cast<uint32_t>(random());
    }
  });
  Submission out;
  while (taken < 100'000) {
    const Pop pop = engine_->pop(out);
    if (pop == Pop::kBroken) break;
    if (pop != Pop::kOne) continue;
    taken.fetch_add(1, std::memory_order_relaxed);
    ASSERT_GE(static_cast<int>(out.op), 1);
    ASSERT_LE(static_cast<int>(out.op), 3);
    ASSERT_LE(out.tensor.value, 0x7fffffffU);
  }
  stop = true;
  writer.join();
  EXPECT_GT(taken, 1000U);
}

}  // namespace
}  // namespace mercury
