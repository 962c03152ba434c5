// What the control plane does at the start of a job of many members.
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

class StartTest : public testing::Test {
 protected:
  // HELLOs of workers' lanes that the second server looks at, while the job begins.
  static uint64_t tried(uint16_t workers, int lanes, uint64_t seed) {
    Hosts hosts(seed);
    for (int host : {1, 2}) hosts.add(host, lanes, serving());
    std::vector<std::unique_ptr<ProgramModel>> programs;
    for (int i = 0; i < workers; ++i) {
      hosts.add(3 + i, lanes, not_serving());
      programs.push_back(std::make_unique<ProgramModel>());
      ProgramModel& program = *programs.back();
      program.hosts = &hosts;
      program.host = 3 + i;
      program.client = static_cast<ClientId>(i) + 1;
      program.open(job(Role::kWorker, i, workers, 2, {address(1), address(2)}));
    }
    hosts.run(hosts.now_ns() + kSecond);
    for (const auto& program : programs) EXPECT_TRUE(program->is_open()) << program->open_text;
    return hosts.manager(2).hellos_tried();
  }
};

// The roster may come to a server later than to workers: their HELLOs wait for it there.
TEST_F(StartTest, AHelloThatWaitsIsLookedAtWhenWhatItWaitsForMayBeThere) {
  constexpr uint16_t kWorkers = 40;
  constexpr int kLanes = 4;
  uint64_t held = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const uint64_t looked = tried(kWorkers, kLanes, seed);
    EXPECT_GE(looked, uint64_t{kWorkers * kLanes});
    EXPECT_LE(looked, 2U * kWorkers * kLanes + 2) << "seed " << seed;
    held += looked - std::min<uint64_t>(looked, kWorkers * kLanes + 1);
  }
  EXPECT_GT(held, 0U) << "the test tests nothing";
}

}  // namespace
}  // namespace mercury::test
