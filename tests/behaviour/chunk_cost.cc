// For instructions_test.py, which counts what the engines execute in here for a chunk: pushed by a
// worker, summed by a server, and its sum received. One thread, virtual time, no system calls.
//
//   chunk_cost MTU WORKERS     prints how many chunks were counted, and what compiled all this
#include <cstdio>
#include <cstdlib>

#include "apps/sim/elision.h"
#include "benchmarks/engine/pipe_job.h"

namespace mercury {

// By these names callgrind knows what to count.
[[gnu::noinline]] void counted_workers(bench::PipeJob& job, uint64_t now_ns) {
  job.poll_workers(now_ns);
}
[[gnu::noinline]] void counted_server(bench::PipeJob& job, uint64_t now_ns) {
  job.poll_server(now_ns);
}

namespace {

constexpr uint64_t kTurnNs = 10'000;  // about what a turn of both engines takes
constexpr uint64_t kGradientBytes = 1024 * 1024;
constexpr int kWarmUpRounds = 8;  // windows grow, and tables get their size
constexpr int kRounds = 64;

int run(uint32_t mtu, uint32_t workers) {
  // Kernels are left out: which ones run, and so how many instructions, is the CPU's.
  const simulator::PayloadElision elision;
  bench::PipeJob job({.mtu = mtu,
                      .workers = workers,
                      .bytes = kGradientBytes,
                      .frames = 4096,
                      .elide_payload = true});
  uint64_t now_ns = 1'000'000;
  if (Status opened = job.open([&] { return now_ns += kTurnNs; }); !opened) {
    std::fprintf(stderr, "chunk_cost: %s\n", opened.error().message.c_str());
    return 1;
  }
  const auto warm = [&] {
    now_ns += kTurnNs;
    job.poll_workers(now_ns);
    job.poll_server(now_ns);
  };
  const auto counted = [&] {
    now_ns += kTurnNs;
    counted_workers(job, now_ns);
    counted_server(job, now_ns);
  };
  bool good = job.begin();
  for (int round = 0; round < kWarmUpRounds; ++round) good = good && job.one_round(warm);
  for (int round = 0; round < kRounds; ++round) good = good && job.one_round(counted);
  if (!good || job.retransmits() != 0) {
    std::fprintf(stderr, "chunk_cost: %s\n", good ? "chunks were lost" : "an exchange failed");
    return 1;
  }
  std::printf("%llu chunks, compiled with %s\n",
              static_cast<unsigned long long>(job.chunks() * kRounds * workers), COMPILED_WITH);
  return 0;
}

}  // namespace
}  // namespace mercury

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: chunk_cost MTU WORKERS\n");
    return 2;
  }
  return mercury::run(static_cast<uint32_t>(std::atoi(argv[1])),
                      static_cast<uint32_t>(std::atoi(argv[2])));
}
