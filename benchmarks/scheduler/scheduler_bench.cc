// What a decision and an admission cost, in ns, at 1 to 65,536 priorities.
//
//   build/benchmarks/scheduler/scheduler_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "scheduler/scheduler.h"

namespace mercury {
namespace {

constexpr uint32_t kRanges = 131072, kStanding = 32768, kSessions = 16, kFrameBytes = 1448;
constexpr uint32_t kLong = 1U << 31;  // chunks: more than a benchmark sends

// One job whose sessions take turns, with `priorities` priorities as far apart as they can be.
class Queue {
 public:
  explicit Queue(uint32_t priorities) : priorities_(priorities) {
    bool added = scheduler.add_job(JobSlot(0)).ok();
    for (uint32_t s = 0; s < kSessions; ++s) {
      added = added && scheduler.add_session(SessionSlot(s), JobSlot(0)).ok();
    }
    if (!added) std::abort();
  }
  uint16_t priority(uint32_t i) const {
    return static_cast<uint16_t>(i % priorities_ * (kPriorities / priorities_));
  }
  bool admit(SessionSlot session, uint32_t i, uint32_t chunks) {
    return scheduler.admit(session, {TensorIndex(i), 1, {0, chunks}, priority(i)});
  }
  bool admit(uint32_t i, uint32_t chunks) { return admit(SessionSlot(i % kSessions), i, chunks); }

  Scheduler scheduler{{1, kSessions, kRanges, 65536}};

 private:
  const uint32_t priorities_;
};

// The next frame of ranges that are longer than the benchmark: one session, or two that take turns.
void cut_from(benchmark::State& state, uint32_t sessions) {
  const auto priorities = static_cast<uint32_t>(state.range(0));
  Queue queue(priorities);
  for (uint32_t i = 0; i < priorities * sessions; ++i) {
    if (!queue.admit(SessionSlot(i / priorities), i, kLong)) {
      return state.SkipWithError("refused");
    }
  }
  ScheduledChunk out;
  for (auto _ : state) {
    benchmark::DoNotOptimize(queue.scheduler.next(out));
    queue.scheduler.charge(out.job, kFrameBytes);
  }
}
void cut(benchmark::State& state) { cut_from(state, 1); }
BENCHMARK(cut)->Arg(1)->Arg(64)->Arg(4096)->Arg(65536);
void cut_in_turns(benchmark::State& state) { cut_from(state, 2); }
BENCHMARK(cut_in_turns)->Arg(1)->Arg(64)->Arg(4096)->Arg(65536);

// The worst case: each decision empties a priority of its session and moves it to the next, and
// each admission opens one.
void admit_and_empty(benchmark::State& state) {
  Queue queue(static_cast<uint32_t>(state.range(0)));
  uint32_t i = 0;
  for (; i < kStanding; ++i) {
    if (!queue.admit(i, 1)) return state.SkipWithError("refused");
  }
  ScheduledChunk out;
  for (auto _ : state) {
    benchmark::DoNotOptimize(queue.admit(i++, 1));
    benchmark::DoNotOptimize(queue.scheduler.next(out));
    queue.scheduler.charge(out.job, kFrameBytes);
  }
}
BENCHMARK(admit_and_empty)->Arg(1)->Arg(64)->Arg(4096)->Arg(65536);

// Admission by the length of the range: 4 KB to 400 MB in chunks of a frame.
void admit(benchmark::State& state) {
  const auto chunks = static_cast<uint32_t>(state.range(0));
  Queue queue(64);
  uint32_t i = 0;
  for (auto _ : state) {
    if (queue.scheduler.free_ranges() == 0) {
      state.PauseTiming();
      for (uint32_t s = 0; s < kSessions; ++s) {
        queue.scheduler.remove_session(SessionSlot(s));
        queue.scheduler.drop_removed(Scheduler::Limits().max_ranges);
        if (!queue.scheduler.add_session(SessionSlot(s), JobSlot(0)).ok()) {
          return state.SkipWithError("refused");
        }
      }
      state.ResumeTiming();
    }
    benchmark::DoNotOptimize(queue.admit(i++, chunks));
  }
}
BENCHMARK(admit)->Arg(3)->Arg(300'000);

// Setting a session aside and taking it back, as a full window does.
void block_and_unblock(benchmark::State& state) {
  Queue queue(64);
  for (uint32_t i = 0; i < 1024; ++i) {
    if (!queue.admit(i, kLong)) return state.SkipWithError("refused");
  }
  uint32_t i = 0;
  for (auto _ : state) {
    const SessionSlot session(i++ % kSessions);
    queue.scheduler.block(session);
    queue.scheduler.unblock(session);
  }
}
BENCHMARK(block_and_unblock);

}  // namespace
}  // namespace mercury

BENCHMARK_MAIN();
