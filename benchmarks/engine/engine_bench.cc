// What Mercury itself takes for a chunk, on one core: the engines of a job's hosts take turns over
// a wire that hands pointers on (pipe_job.h).
//
//   build/benchmarks/engine/engine_bench
//
//   push_pull/MTU/WORKERS/KiB   WORKERS hosts push and pull two tensors of KiB / 2 each through one
//                               server. Time is that of a round of one tensor; worker_ns and
//                               server_ns are what the engines take of it for each chunk of one
//                               worker: pushed, summed, and its sum received.
//   small/BYTES/WORKERS         the same with 512 tensors of so many bytes, one chunk each, so that
//                               each frame has its program's submission and completion, too.
#include <benchmark/benchmark.h>

#include "benchmarks/engine/pipe_job.h"
#include "shim/host/clock.h"

namespace mercury {
namespace {

// What the engines took of a turn, in real time.
struct Spent {
  uint64_t worker_ns = 0, server_ns = 0;

  void turn(bench::PipeJob& job) {
    const uint64_t before_ns = monotonic_ns();
    job.poll_workers(before_ns);
    const uint64_t between_ns = monotonic_ns();
    worker_ns += between_ns - before_ns;
    job.poll_server(between_ns);
    server_ns += monotonic_ns() - between_ns;
  }
};

void measure(benchmark::State& state, const bench::PipeJob::Size& size) {
  bench::PipeJob job(size);
  if (Status opened = job.open(monotonic_ns); !opened) {
    return state.SkipWithError(opened.error().message.c_str());
  }
  Spent spent;
  const auto turn = [&] { spent.turn(job); };
  bool good = job.begin();
  for (uint32_t warm_up = 0; good && warm_up < 4 * size.tensors; ++warm_up) {
    good = job.one_round(turn);
  }
  spent = {};
  for (auto _ : state) good = good && job.one_round(turn);
  if (!good) return state.SkipWithError("an exchange failed");
  const auto chunks =
      static_cast<double>(state.iterations()) * static_cast<double>(job.chunks()) * size.workers;
  state.counters["worker_ns"] = static_cast<double>(spent.worker_ns) / chunks;
  state.counters["server_ns"] = static_cast<double>(spent.server_ns) / chunks;
  state.counters["sent_again"] = static_cast<double>(job.retransmits());
  state.counters["chunks"] = benchmark::Counter(chunks, benchmark::Counter::kIsRate);
}

void push_pull(benchmark::State& state) {
  measure(state, {.mtu = static_cast<uint32_t>(state.range(0)),
                  .workers = static_cast<uint32_t>(state.range(1)),
                  .bytes = static_cast<uint64_t>(state.range(2)) * 1024});
}
BENCHMARK(push_pull)->ArgsProduct({{1500, 9000}, {1, 2, 8}, {1024}})->Args({1500, 1, 256 * 1024});

void small(benchmark::State& state) {
  constexpr uint32_t kTensors = 512;
  measure(state, {.mtu = 1500,
                  .workers = static_cast<uint32_t>(state.range(1)),
                  .bytes = static_cast<uint64_t>(state.range(0)) * kTensors,
                  .tensors = kTensors});
}
BENCHMARK(small)->ArgsProduct({{64}, {1, 2, 8}});

}  // namespace
}  // namespace mercury

BENCHMARK_MAIN();
