#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <set>

#include "shim/client/memory_map.h"
#include "tests/resident_pages.h"

namespace mercury::client {
namespace {

// Records what the daemon would map.
class Recorder final : public Backend {
 public:
  std::span<const std::unique_ptr<ClientChannel>> channels() const override { return {}; }
  bool sees_program_memory() const override { return sees_; }
  Result<std::unique_ptr<Region>> add_region(uint32_t id, uint64_t bytes) override {
    bytes = Region::whole_pages(bytes);
    if (bytes_ + bytes > limit_) return Error(Errc::kLimit, "no more");
    bytes_ += bytes;
    regions_[id] = bytes;
    Result<std::unique_ptr<Region>> region = Region::create(bytes);
    if (!region || !keeps_) return region;
    if (Status sealed = Region::seal((*region)->fd()); !sealed) return sealed.error();
    return region;
  }
  Status remove_region(uint32_t id) override {
    bytes_ -= regions_[id];
    regions_.erase(id);
    return {};
  }
  Result<attach::JobOpened> open_job(const attach::JobOpen&) override {
    return attach::JobOpened{};
  }
  Status declare(HostJob, std::span<const TensorSpec>, std::vector<Round>&) override { return {}; }
  void close_job(HostJob) override {}
  Status wait_job(HostJob, int) override { return {}; }
  Status job_status(HostJob) override { return {}; }
  Status set_policy(HostJob, const std::string&) override { return {}; }
  void leave() override {}
  bool lost() const noexcept override { return false; }
  int lost_fd() const noexcept override { return -1; }

  bool sees_ = false;
  bool keeps_ = false;  // as a daemon does: no page goes out of it any more
  uint64_t limit_ = uint64_t{1} << 40;
  uint64_t bytes_ = 0;
  std::map<uint32_t, uint64_t> regions_;
};

TEST(MemoryMap, GivesZeroedPagesAndTakesThemBack) {
  Recorder backend;
  MemoryMap memory(backend);
  const auto first = memory.allocate(5000);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*first) % 4096, 0U);
  std::memset(*first, 1, 8192);
  const auto second = memory.allocate(1);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(backend.regions_.size(), 1U) << "small tensors share a region";
  ASSERT_TRUE(memory.free(*first).ok());
  const auto third = memory.allocate(8192);
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(*third, *first);
  for (int i = 0; i < 8192; ++i) ASSERT_EQ((*third)[i], std::byte{0});
  ASSERT_TRUE(memory.free(*second).ok());
  ASSERT_TRUE(memory.free(*third).ok());
  EXPECT_TRUE(backend.regions_.empty()) << "an unused region goes back";
  EXPECT_EQ(memory.free(*third).error().code, Errc::kNotFound);
}

// Its pages stay, and what nobody touches costs nothing.
TEST(MemoryMap, WhatADaemonKeepsReadsAsZerosAgainToo) {
  constexpr size_t kBytes = size_t{1} << 20;
  Recorder backend;
  backend.keeps_ = true;
  MemoryMap memory(backend);
  std::byte* const first = *memory.allocate(kBytes);
  ASSERT_TRUE(memory.allocate(1)) << "the region stays";
  std::memset(first, 1, kBytes);
  ASSERT_TRUE(memory.free(first).ok());
  EXPECT_EQ(resident_pages(first, kBytes), kBytes / kPage);
  std::byte* const large = *memory.allocate(2 * kBytes);
  EXPECT_EQ(large, first + kBytes + kPage);
  EXPECT_EQ(resident_pages(large, 2 * kBytes), 0U) << "it was never given out";
  std::byte* const half = *memory.allocate(kBytes / 2);
  ASSERT_EQ(half, first);
  std::byte* const other = *memory.allocate(kBytes / 2);
  ASSERT_EQ(other, first + kBytes / 2);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(first[i], std::byte{0}) << i;
}

TEST(MemoryMap, PassesOnTheDaemonsLimit) {
  Recorder backend;
  backend.limit_ = 8U << 20;
  MemoryMap memory(backend);
  EXPECT_EQ(memory.allocate(9U << 20).error().code, Errc::kLimit);
  EXPECT_EQ(memory.allocate(0).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(memory.allocate(~uint64_t{0}).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(memory.allocate(8U << 20).has_value());
}

TEST(MemoryMap, FindsWhereATensorLies) {
  Recorder backend;
  MemoryMap memory(backend);
  (void)memory.allocate(4096);
  const auto data = memory.allocate(8192);
  ASSERT_TRUE(data.has_value());
  bool foreign = true;
  const auto place = memory.pin(*data + 100, 8092, foreign);
  ASSERT_TRUE(place.has_value());
  EXPECT_FALSE(foreign);
  EXPECT_EQ(place->offset_bytes, 4196U);
  EXPECT_FALSE(memory.pin(*data + 101, 8092, foreign).has_value());
  EXPECT_FALSE(memory.pin(*data - 1, 2, foreign).has_value()) << "not across two blocks";
  EXPECT_EQ(memory.free(*data).error().code, Errc::kBusy);
  memory.unpin(*data + 100);
  EXPECT_TRUE(memory.free(*data).ok());
}

TEST(MemoryMap, KnowsRegisteredMemory) {
  Recorder backend;
  MemoryMap memory(backend);
  std::vector<std::byte> mine(1000);
  EXPECT_EQ(memory.add_foreign(nullptr, 10).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(memory.add_foreign(mine.data(), 0).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(memory.add_foreign(mine.data(), ~size_t{0}).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(memory.add_foreign(mine.data() + 100, 500).ok());
  EXPECT_EQ(memory.add_foreign(mine.data(), 101).error().code, Errc::kExists);
  EXPECT_EQ(memory.add_foreign(mine.data() + 599, 10).error().code, Errc::kExists);
  EXPECT_TRUE(memory.add_foreign(mine.data(), 100).ok());
  bool foreign = false;
  EXPECT_TRUE(memory.pin(mine.data() + 100, 500, foreign).has_value());
  EXPECT_TRUE(foreign);
  EXPECT_EQ(memory.remove_foreign(mine.data() + 100).error().code, Errc::kBusy);
  memory.unpin(mine.data() + 100);
  EXPECT_EQ(memory.free(mine.data() + 100).error().code, Errc::kNotFound);
  EXPECT_TRUE(memory.remove_foreign(mine.data() + 100).ok());
  backend.sees_ = true;  // an engine in this process
  ASSERT_TRUE(memory.add_foreign(mine.data() + 100, 500).ok());
  EXPECT_TRUE(memory.pin(mine.data() + 100, 500, foreign).has_value());
  EXPECT_FALSE(foreign);
}

TEST(MemoryMap, RandomAllocationsNeverOverlapAndAllComeBack) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Recorder backend;
  MemoryMap memory(backend);
  std::map<std::byte*, uint64_t> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.empty() || random() % 2 == 0) {
      const uint64_t bytes = 1 + random() % (random() % 50 == 0 ? 6'000'000 : 40'000);
      const auto data = memory.allocate(bytes);
      ASSERT_TRUE(data.has_value());
      const auto next = live.lower_bound(*data);
      if (next != live.end()) {
        ASSERT_LE(*data + bytes, next->first);
      }
      if (next != live.begin()) {
        ASSERT_GE(*data, std::prev(next)->first + std::prev(next)->second);
      }
      ASSERT_EQ((*data)[0], std::byte{0});
      ASSERT_EQ((*data)[bytes - 1], std::byte{0});
      (*data)[0] = (*data)[bytes - 1] = std::byte{1};
      live[*data] = bytes;
    } else {
      auto victim = live.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(random() % live.size()));
      ASSERT_TRUE(memory.free(victim->first).ok());
      live.erase(victim);
    }
  }
  for (const auto& [data, bytes] : live) ASSERT_TRUE(memory.free(data).ok());
  EXPECT_TRUE(backend.regions_.empty());
}

}  // namespace
}  // namespace mercury::client
