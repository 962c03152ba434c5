// Which shard has a tensor's first chunks: all members have it from the coordinator, or all from
// the tensor's number.
#include <vector>

#include "scheduler/plan/plan.h"
#include "shim/job/messages.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

// Two workers, on hosts 1 and 2, and two servers of two engines each, on hosts 3 and 4.
class FirstShardsTest : public RunningTest {
 protected:
  static constexpr uint16_t kShards = 4;
  FirstShardsTest() : RunningTest(kMinute) {}

  // Of the first `count` tensors, as every engine of the host was told.
  std::vector<Shard> told_on(int host, uint32_t count) {
    std::vector<Shard> shards;
    for (const HostModel::Lane& lane : hosts.host(host).lanes) {
      std::vector<Shard> of_lane;
      for (const auto& [slot, job] : lane.jobs) {
        for (uint32_t tensor = 0; tensor < count; ++tensor) {
          of_lane.push_back(job.tensors.at(tensor).first_shard);
        }
      }
      if (shards.empty()) shards = of_lane;
      EXPECT_EQ(of_lane, shards) << "host " << host;
    }
    return shards;
  }
  std::vector<Shard> by_number(uint32_t count) {
    std::vector<Shard> shards;
    for (uint32_t i = 0; i < count; ++i)
      shards.push_back(ShardTurn::of_number(TensorId(i), kShards));
    return shards;
  }
  void expect_everywhere(const std::vector<Shard>& shards) {
    for (int host : {1, 2, 3, 4}) {
      EXPECT_EQ(told_on(host, static_cast<uint32_t>(shards.size())), shards) << "host " << host;
    }
  }
  // What members of host `of` say of the version before.
  void make_old(int of) {
    hosts.translate = [of](std::vector<std::byte>& bytes) {
      const Result<Message> message = decode_message(bytes);
      const auto* join = message ? std::get_if<message::Join>(&*message) : nullptr;
      if (join == nullptr || join->lanes.front() != address(of)) return;
      message::Join theirs = *join;
      theirs.features &= ~kKnowsFirstShards;
      bytes = encode(theirs);
    };
  }
};

// In whatever order workers declare them, and in batches.
TEST_F(FirstShardsTest, ATensorBeginsWhereTheOneThatWasDeclaredBeforeEnds) {
  start(2);
  a->declare(tensors(4, 3, 100'000));
  hosts.run_for(kSecond);
  b->declare(tensors(0, 7, 100'000));
  hosts.run_for(kSecond);
  a->declare(tensors(0, 4, 100'000));
  hosts.run_for(kSecond);
  ASSERT_TRUE(a->declared.ok() && b->declared.ok());
  const uint32_t chunks = chunk_count(100'000, chunk_elems(a->opened.chunk_bytes, 4));
  ASSERT_NE(chunks % kShards, 0U);
  ShardTurn turn(kShards);
  std::vector<Shard> expected(7);
  for (const uint32_t tensor : {4, 5, 6, 0, 1, 2, 3}) expected[tensor] = turn.take(chunks);
  ASSERT_NE(expected, by_number(7));
  expect_everywhere(expected);
  end();
}

TEST_F(FirstShardsTest, ANextLifeIsToldTheSame) {
  start(2);
  for (ProgramModel* program : {a, b}) program->declare(tensors(0, 5, 100'000));
  hosts.run_for(kSecond);
  const std::vector<Shard> told = told_on(1, 5);
  b->gone();
  hosts.run_for(kSecond);
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  ASSERT_TRUE(b->is_open()) << b->open_text;
  b->declare(tensors(0, 5, 100'000));
  hosts.run_for(kSecond);
  ASSERT_TRUE(b->declared.ok());
  expect_everywhere(told);
  end();
}

TEST_F(FirstShardsTest, WhereSomeMemberDoesNotKnowThemNumbersSay) {
  for (const int old : {1, 4}) {
    hosts = Hosts();
    make_old(old);
    start(2);
    for (ProgramModel* program : {b, a}) program->declare(tensors(0, 5, 100'000));
    hosts.run_for(kSecond);
    ASSERT_TRUE(a->declared.ok() && b->declared.ok());
    expect_everywhere(by_number(5));
    end();
    if (HasFatalFailure()) return;
  }
}

TEST_F(FirstShardsTest, ANextLifeThatDoesNotKnowThemIsRefused) {
  start(2);
  for (ProgramModel* program : {a, b}) program->declare(tensors(0, 5, 100'000));
  hosts.run_for(kSecond);
  b->gone();
  hosts.run_for(kSecond);
  make_old(2);
  ProgramModel& old = opens(2, request(1));
  hosts.run_for(kSecond);
  EXPECT_EQ(old.open_code, Errc::kVersionMismatch);
  EXPECT_NE(old.open_text.find("how tensors"), std::string::npos) << old.open_text;
  EXPECT_TRUE(a->status().ok());
  hosts.translate = nullptr;
  b = &opens(2, request(1));
  hosts.run_for(kSecond);
  ASSERT_TRUE(b->is_open()) << b->open_text;
  end();
}

}  // namespace
}  // namespace mercury::test
