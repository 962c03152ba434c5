// Programs that do not read their completions, among many that do: whom a pass looks at for them.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "shim/exchange/programs.h"

namespace mercury {
namespace {

// None has a job, so that each of their operations has failed at once.
class ProgramBacklogs : public testing::Test {
 protected:
  static constexpr uint32_t kPrograms = 200;
  static constexpr uint32_t kLooks = Programs::Limits().looks_per_pass;
  static constexpr uint32_t kTurns = (kPrograms + kLooks - 1) / kLooks;
  static constexpr uint32_t kRing = 4;   // completions that a program's ring holds
  static constexpr uint32_t kEnded = 6;  // of each program that does not read

  struct Ends {
    explicit Ends(const std::shared_ptr<ChannelMemory>& memory) : engine(memory), client(memory) {}
    EngineChannel engine;
    ClientChannel client;
  };
  void SetUp() override {
    for (uint32_t i = 0; i < kPrograms; ++i) {
      auto memory = ChannelMemory::create({64, kRing}, false);
      ASSERT_TRUE(memory);
      ends_.push_back(std::make_unique<Ends>(*memory));
      programs_.attach(&ends_.back()->engine);
    }
  }
  // More operations of this program end than its ring holds.
  void overfill(uint32_t program) {
    for (uint64_t cookie = 1; cookie <= kEnded; ++cookie) {
      worker_.submit(&ends_[program]->engine, {SubmitOp::kPush, 0, 1, 1, cookie});
    }
    EXPECT_EQ(pass(), kEnded);
  }
  uint32_t pass() { return programs_.deliver_completions(worker_); }
  // Programs that a pass looks at because they have a backlog.
  uint64_t looks() {
    const uint64_t before = programs_.backlog_looks();
    pass();
    return programs_.backlog_looks() - before;
  }
  void read(uint32_t program) {
    for (Completion done; ends_[program]->client.pop(done);)
      cookies_[program].push_back(done.cookie);
  }
  uint32_t waiting() const { return programs_.waiting_completions(); }

  Counters counters_;
  std::deque<Event> events_;
  std::vector<std::unique_ptr<Ends>> ends_;
  Worker worker_{counters_};
  Programs programs_{Programs::Limits(), counters_, events_};
  std::vector<std::vector<uint64_t>> cookies_{kPrograms};
};

TEST_F(ProgramBacklogs, OneThatDoesNotReadIsLookedAtAlone) {
  overfill(150);
  EXPECT_EQ(waiting(), kEnded - kRing);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(looks(), 1U);
  read(150);
  EXPECT_EQ(looks(), 1U);
  EXPECT_EQ(looks(), 0U) << "nothing waits any more";
  read(150);
  EXPECT_EQ(cookies_[150], (std::vector<uint64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(ProgramBacklogs, OfManyAPassLooksAtSomeByTurns) {
  for (uint32_t i = 0; i < kPrograms; ++i) overfill(i);
  for (uint32_t i = 0; i < 2 * kTurns; ++i) EXPECT_EQ(looks(), kLooks);
  for (const uint32_t one : {3U, 77U, 199U}) {
    const uint32_t before = waiting();
    read(one);
    uint32_t passes = 0;
    while (waiting() == before) {
      ASSERT_LT(passes++, kTurns) << "none is overlooked";
      EXPECT_LE(looks(), kLooks);
    }
    EXPECT_EQ(before - waiting(), kEnded - kRing) << "of whom there is room for, and of no other";
  }
  for (uint32_t i = 0; i < kPrograms; ++i) read(i);
  uint32_t passes = 0;
  for (; waiting() > 0; ++passes) ASSERT_LE(pass(), kLooks * (kEnded - kRing));
  EXPECT_LE(passes, kTurns);
  for (uint32_t i = 0; i < kPrograms; ++i) {
    read(i);
    EXPECT_EQ(cookies_[i], (std::vector<uint64_t>{1, 2, 3, 4, 5, 6})) << i;
  }
}

// A channel says only once that there is room.
TEST_F(ProgramBacklogs, NoEngineSleepsWhileThereIsRoomForOne) {
  for (uint32_t i = 0; i < kPrograms; ++i) overfill(i);
  for (uint32_t i = 0; i < kTurns; ++i) pass();
  for (const uint32_t one : {0U, 3U, 77U, 199U}) {
    ASSERT_TRUE(programs_.park()) << "there is room for none";
    programs_.unpark();
    read(one);
    uint32_t passes = 0;
    for (; !programs_.park(); ++passes) {
      pass();
      ASSERT_LE(passes, 2 * kTurns);
    }
    programs_.unpark();
    EXPECT_GT(passes, 0U);
    read(one);
    EXPECT_EQ(cookies_[one].size(), kEnded) << one;
  }
}

// Those that leave the list change its order.
TEST_F(ProgramBacklogs, NoEngineSleepsWhileThereIsRoomForSomeOfMany) {
  constexpr uint32_t kTogether = 50;
  for (uint32_t i = 0; i < kPrograms; ++i) overfill(i);
  for (uint32_t first = 0; first < kPrograms; first += kTogether) {
    do {
      pass();
    } while (!programs_.park());
    programs_.unpark();
    for (uint32_t i = 0; i < first / kTogether; ++i) pass();  // another's turn each time
    for (uint32_t i = 0; i < kTogether; ++i) read(first + i);
    for (uint32_t passes = 0; !programs_.park(); ++passes) {
      pass();
      ASSERT_LE(passes, 4 * kTurns);
    }
    programs_.unpark();
    EXPECT_EQ(waiting(), (kPrograms - first - kTogether) * (kEnded - kRing));
  }
}

TEST_F(ProgramBacklogs, OneThatGoesLeavesThoseOfOthers) {
  for (const uint32_t one : {10U, 20U, 30U}) overfill(one);
  programs_.detach(&ends_[20]->engine);
  EXPECT_EQ(waiting(), 2 * (kEnded - kRing));
  EXPECT_EQ(looks(), 2U);
  for (const uint32_t one : {10U, 30U}) read(one);
  EXPECT_EQ(pass(), 2 * (kEnded - kRing));
  for (const uint32_t one : {10U, 30U}) {
    read(one);
    EXPECT_EQ(cookies_[one].size(), kEnded) << one;
  }
  EXPECT_EQ(looks(), 0U);
}

}  // namespace
}  // namespace mercury
