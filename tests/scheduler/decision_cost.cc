// What decision_cost_test.py counts the instructions of: a queue with ARGUMENT priorities, or
// admissions of ranges of ARGUMENT chunks.
//
//   decision_cost cut N     4,096 decisions while N priorities hold long ranges
//   decision_cost turns N   the same, and two sessions take turns in each priority
//   decision_cost empty N   65,536 decisions, each of which empties one of N priorities
//   decision_cost admit N   4,096 admissions of N chunks each
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "scheduler/scheduler.h"

namespace {

constexpr uint32_t kRanges = 131072, kSessions = 4, kDecisions = 4096, kEmptied = 65536;
using namespace mercury;

// `ranges` ranges spread over `priorities` priorities, which lie as far apart as they can.
bool fill(Scheduler& scheduler, uint32_t priorities, uint32_t ranges, uint32_t chunks) {
  for (uint32_t i = 0; i < ranges; ++i) {
    const auto priority = static_cast<uint16_t>(i % priorities * (kPriorities / priorities));
    if (!scheduler.admit(SessionSlot(i / priorities % kSessions),
                         {TensorIndex(i), 1, {0, chunks}, priority})) {
      return false;
    }
  }
  return true;
}

bool decide(Scheduler& scheduler, uint32_t count) {
  ScheduledChunk out;
  for (uint32_t i = 0; i < count; ++i) {
    if (!scheduler.next(out)) return false;
    scheduler.charge(out.job, 1448);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string_view what = argv[1];
  const auto number = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  if (number == 0) return 2;
  Scheduler scheduler({1, kSessions, kRanges, 65536});
  if (!scheduler.add_job(JobSlot(0)).ok()) return 1;
  for (uint32_t s = 0; s < kSessions; ++s) {
    if (!scheduler.add_session(SessionSlot(s), JobSlot(0)).ok()) return 1;
  }
  bool done = false;
  if (what == "cut") {
    done = fill(scheduler, number, number, 1'000'000) && decide(scheduler, kDecisions);
  } else if (what == "turns") {
    done = fill(scheduler, number, 2 * number, 1'000'000) && decide(scheduler, kDecisions);
  } else if (what == "empty") {
    done = true;
    for (uint32_t i = 0; done && i < kEmptied / number; ++i) {
      done = fill(scheduler, number, number, 1) && decide(scheduler, number);
    }
  } else if (what == "admit") {
    done = fill(scheduler, 64, kDecisions, number);
  }
  if (!done) std::fputs("decision_cost: the scheduler refused\n", stderr);
  return done ? 0 : 1;
}
