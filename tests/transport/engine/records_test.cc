// What sessions of no job hold of the records of packets in flight, however many they are.
#include "tests/transport/engine/echo_lab.h"

namespace mercury::echo {
namespace {

constexpr uint32_t kSessions = 40;
constexpr uint32_t kBlocks = 64;

EngineConfig few_records() {
  EngineConfig config;
  config.max_in_flight_packets = kBlocks * kSentBlockRecords;
  return config;
}

// They are strangers', say: each takes all it is sent until its window is large, and then nothing.
TEST(Records, ManySessionsOfNoJobLeaveAJobItsPart) {
  Lab lab(1, {}, 1500, few_records());
  for (uint32_t i = 0; i < kSessions; ++i) ASSERT_TRUE(lab.connect(Token(uint64_t{1} + i)));
  for (uint32_t i = 0; i < kSessions; ++i)
    lab.a().send(StartEcho{Token(uint64_t{1} + i), 4, 10'000'000});
  lab.run_for(100 * kMs);
  const SentPool& records = lab.b().engine.sent_pool();
  uint32_t most = 0;
  for (uint64_t pass = 0; pass < 1000; ++pass) {  // b alone: a does not run any more
    lab.network.advance_to(lab.network.now_ns() + 10'000);
    while (lab.b().poll(lab.network.now_ns()) > 0) most = std::max(most, records.blocks_in_use());
  }
  EXPECT_GE(most, kBlocks / 3) << "they take what they may";
  SentPart job;
  job.blocks = kBlocks / 2 - 1;
  EXPECT_TRUE(records.may_grow(job)) << "a half is left";
}

}  // namespace
}  // namespace mercury::echo
