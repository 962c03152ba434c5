// Errors that pass through several hosts name each of them once.
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

// Whether a part that ends in ": " is there twice in a row.
bool repeats(const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find(": ", begin);
    if (end == std::string::npos) return false;
    const std::string part = text.substr(begin, end - begin);
    if (text.compare(end + 2, part.size(), part) == 0) return true;
    begin = end + 2;
  }
  return false;
}

TEST(JobErrors, NameEachHostOnceWhoeverIsLostOrGoes) {
  ASSERT_TRUE(repeats("a: server 0 of 1 (b): server 0 of 1 (b): nothing heard"));
  ASSERT_FALSE(repeats("server 0 of 1 (b): worker 0 of 1 (b): nothing heard"));
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Hosts hosts(seed);
    for (int host : {1, 2}) hosts.add(host, 1, not_serving());
    const bool embedded = seed % 2 == 0;
    for (int host : {3, 4}) hosts.add(host, 1, embedded ? embedded_server() : serving());
    std::vector<std::unique_ptr<ProgramModel>> programs;
    const auto opens = [&](int host, Role role, int rank) {
      programs.push_back(std::make_unique<ProgramModel>());
      programs.back()->hosts = &hosts;
      programs.back()->host = host;
      programs.back()->client = programs.size();
      programs.back()->open(job(role, rank, 2, 2, {address(3), address(4)}));
    };
    opens(1, Role::kWorker, 0);
    opens(2, Role::kWorker, 1);
    if (embedded) {
      opens(3, Role::kServer, 0);
      opens(4, Role::kServer, 1);
    }
    auto& random = hosts.random();
    if (random() % 3 == 0) {  // while it opens
      for (uint64_t steps = random() % 80; steps > 0; --steps) hosts.step();
    } else {
      hosts.run_for(kSecond);
    }
    const size_t victim = random() % 4;
    if (random() % 2 == 0) {
      hosts.kill(static_cast<int>(victim) + 1);
    } else if (victim < programs.size()) {
      programs[victim]->is_open() ? programs[victim]->close() : programs[victim]->gone();
    }
    hosts.run_for(40 * kSecond);
    for (const auto& program : programs) {
      EXPECT_FALSE(repeats(program->open_text)) << program->open_text;
      if (!program->is_open()) continue;
      const Status status = program->status();
      const std::string text = status ? "" : status.error().message;
      EXPECT_FALSE(repeats(text)) << text;
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace mercury::test
