// For instructions_test.py, which counts what the engines execute in here for a chunk: pushed by a
// worker, summed by a server, and its sum received. One thread, virtual time, no system calls.
//
//   chunk_cost MTU WORKERS [BYTES]
//
// prints how many chunks were counted, and what compiled all this. Gradients are of two tensors, or
// of many of BYTES each, a chunk, so that each frame has its program's submission and completion.
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
constexpr uint32_t kSmallTensors = 512;
// Of each tensor.
constexpr uint32_t kWarmUpRounds = 4;  // windows grow, and tables get their size
constexpr uint32_t kRounds = 32, kSmallRounds = 16;

int run(uint32_t mtu, uint32_t workers, uint32_t tensor_bytes) {
  const bool small = tensor_bytes > 0;
  const uint32_t tensors = small ? kSmallTensors : 2;
  const uint32_t rounds = tensors * (small ? kSmallRounds : kRounds);
  // Kernels are left out: which ones run, and so how many instructions, is the CPU's.
  const simulator::PayloadElision elision;
  bench::PipeJob job({.mtu = mtu,
                      .workers = workers,
                      .bytes = small ? uint64_t{tensor_bytes} * tensors : kGradientBytes,
                      .tensors = tensors,
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
  for (uint32_t i = 0; i < kWarmUpRounds * tensors; ++i) good = good && job.one_round(warm);
  for (uint32_t i = 0; i < rounds; ++i) good = good && job.one_round(counted);
  if (!good || job.retransmits() != 0) {
    std::fprintf(stderr, "chunk_cost: %s\n", good ? "chunks were lost" : "an exchange failed");
    return 1;
  }
  std::printf("%llu chunks, compiled with %s\n",
              static_cast<unsigned long long>(job.chunks() * rounds * workers), COMPILED_WITH);
  return 0;
}

}  // namespace
}  // namespace mercury

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: chunk_cost MTU WORKERS [BYTES]\n");
    return 2;
  }
  return mercury::run(static_cast<uint32_t>(std::atoi(argv[1])),
                      static_cast<uint32_t>(std::atoi(argv[2])),
                      argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 0);
}
