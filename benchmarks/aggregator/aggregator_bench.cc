// How fast gradients are summed, in bytes of the wire type per second.
//
//   build/benchmarks/aggregator/aggregator_bench --benchmark_filter=push
//
//   add/TYPE/KERNEL/KiB   one kernel, KiB of wire elements onto as many accumulators
//   plain/TYPE/KiB        the plain loop over the same memory: what to compare add with
//   memcpy/KiB            the same bytes, only moved
//   push/TYPE/MODE/CHUNK/TENSOR_KiB
//                         Aggregator::push of whole chunks by 4 workers, CRC checks included; every
//                         fourth push completes a chunk. MODE: "arrival" (added as they come),
//                         "in-rank-order" and "reverse" (deterministic, least and most kept apart).
//   limit/CHUNK/TENSOR_KiB  crc32c and plain add of the same f32 chunks: push without its
//   bookkeeping
//
// Payloads of push and limit lie in 64 KiB, as frames that a NIC has just written to the cache.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "aggregator/aggregator.h"
#include "aggregator/kernels/kernels.h"
#include "benchmarks/aggregator/plain_add.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

using aggregation::KernelSet;

struct alignas(64) Line {
  std::byte at[64];
};
// Aligned memory of zeros, each page written to.
std::vector<Line> lines(size_t bytes) { return std::vector<Line>(bytes / sizeof(Line) + 1); }

void bytes_per_second(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes));
}

void add(benchmark::State& state, const KernelSet* set, Dtype type) {
  const size_t bytes = static_cast<size_t>(state.range(0)) * 1024;
  const size_t elems = bytes / size_of(type);
  std::vector<Line> sum = lines(elems * aggregation::accumulator_bytes(type));
  const std::vector<Line> wire = lines(bytes);
  for (auto _ : state) {
    set->types[static_cast<size_t>(type)].add(sum.data()->at, wire.data()->at, elems);
    benchmark::ClobberMemory();
  }
  bytes_per_second(state, bytes);
}

template <class Sum, class Wire>
void plain(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0)) * 1024;
  std::vector<Sum> sum(bytes / sizeof(Wire));
  const std::vector<Wire> wire(bytes / sizeof(Wire));
  for (auto _ : state) {
    bench::plain_add(sum.data(), wire.data(), wire.size());
    benchmark::ClobberMemory();
  }
  bytes_per_second(state, bytes);
}

void move(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0)) * 1024;
  std::vector<Line> to = lines(bytes);
  const std::vector<Line> from = lines(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  bytes_per_second(state, bytes);
}

enum class Mode { kArrival, kInRankOrder, kReverse };
constexpr const char* kModeNames[] = {"arrival", "in-rank-order", "reverse"};
constexpr uint16_t kWorkers = 4;

// What a NIC has just written: frames' payloads, used in turn.
struct Frames {
  explicit Frames(size_t payload_bytes)
      : stride((payload_bytes + 63) / 64 * 64), count(65536 / stride), memory(lines(65536)) {
    crc = wire::crc32c(memory.data()->at, payload_bytes);
  }
  const std::byte* next() {
    if (++turn == count) turn = 0;
    return memory.data()->at + turn * stride;
  }
  size_t stride;
  size_t count;
  size_t turn = 0;
  std::vector<Line> memory;
  uint32_t crc = 0;
};

void push(benchmark::State& state, Dtype type, Mode mode) {
  const size_t chunk_bytes = static_cast<size_t>(state.range(0));
  const uint32_t chunk_elems = static_cast<uint32_t>(chunk_bytes / size_of(type));
  const uint32_t chunks = static_cast<uint32_t>(
      std::max<size_t>(1, static_cast<size_t>(state.range(1)) * 1024 / chunk_bytes));
  Aggregator aggregator({[](void*, PayloadPin&) { return false; }});
  const JobSlot job{0};
  bool ready =
      aggregator
          .add_job(job, {.workers = kWorkers, .terms = {.deterministic = mode != Mode::kArrival}})
          .ok() &&
      aggregator
          .add_tensor(job, {.numel = uint64_t{chunks} * chunk_elems,
                            .dtype = type,
                            .chunk_elems = chunk_elems,
                            .chunk_count = chunks})
          .ok();
  for (uint16_t w = 0; w < kWorkers; ++w) ready = ready && aggregator.admit(job, Rank(w), 1).ok();

  Frames frames(chunk_bytes);
  const auto all_push = [&](uint32_t round) {
    uint32_t completed = 0;
    for (uint16_t i = 0; i < kWorkers; ++i) {
      const uint16_t worker = mode == Mode::kReverse ? static_cast<uint16_t>(kWorkers - 1 - i) : i;
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
        const Pushed pushed = aggregator.push({.job = job,
                                               .worker = Rank(worker),
                                               .incarnation = 1,
                                               .round = Round(round),
                                               .chunk = ChunkIndex(chunk),
                                               .payload_crc = frames.crc,
                                               .elements = {frames.next(), chunk_bytes}});
        completed += pushed.verdict == PushVerdict::kCompleted ? 1 : 0;
      }
    }
    return completed == chunks;
  };
  uint32_t round = 0;
  // Both generations are touched before the clock starts.
  for (int warm = 0; warm < 2; ++warm) ready = ready && all_push(++round);
  if (!ready) {
    state.SkipWithError("the aggregator refused");
    return;
  }
  for (auto _ : state) {
    if (!all_push(++round)) state.SkipWithError("a chunk did not complete");
  }
  const int64_t pushes = static_cast<int64_t>(state.iterations()) * chunks * kWorkers;
  state.SetItemsProcessed(pushes);
  state.SetBytesProcessed(pushes * static_cast<int64_t>(chunk_bytes));
}

void limit(benchmark::State& state) {
  const size_t chunk_bytes = static_cast<size_t>(state.range(0));
  const size_t chunks =
      std::max<size_t>(1, static_cast<size_t>(state.range(1)) * 1024 / chunk_bytes);
  Frames frames(chunk_bytes);
  std::vector<Line> sums = lines(chunks * frames.stride);
  uint32_t wrong = 0;
  for (auto _ : state) {
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      const std::byte* payload = frames.next();
      wrong += wire::crc32c(payload, chunk_bytes) == frames.crc ? 0 : 1;
      bench::plain_add(reinterpret_cast<float*>(sums.data()->at + chunk * frames.stride),
                       reinterpret_cast<const float*>(payload), chunk_bytes / sizeof(float));
    }
  }
  benchmark::DoNotOptimize(wrong);
  const int64_t items = static_cast<int64_t>(state.iterations() * chunks);
  state.SetItemsProcessed(items);
  state.SetBytesProcessed(items * static_cast<int64_t>(chunk_bytes));
}

// In a 48 KiB L1, in a 1 MiB L2, and in no cache.
constexpr int64_t kSizesKib[] = {8, 192, 131072};

template <class F>
void for_sizes(const std::string& name, F f) {
  auto* added = benchmark::RegisterBenchmark(name.c_str(), f);
  for (const int64_t kib : kSizesKib) added->Arg(kib);
}

void register_all() {
  for (const Dtype type :
       {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBf16, Dtype::kI32, Dtype::kI64}) {
    for (const KernelSet* set : {aggregation::avx512_kernels(), aggregation::avx2_kernels(),
                                 aggregation::scalar_kernels()}) {
      if (set == nullptr) continue;
      for_sizes(std::string("add/") + name_of(type) + "/" + set->name,
                [=](benchmark::State& state) { add(state, set, type); });
    }
  }
  for_sizes("plain/f32", plain<float, float>);
  for_sizes("plain/f64", plain<double, double>);
  for_sizes("plain/f16", plain<float, bench::Half>);
  for_sizes("plain/bf16", plain<float, uint16_t>);
  for_sizes("plain/i32", plain<uint32_t, uint32_t>);
  for_sizes("plain/i64", plain<uint64_t, uint64_t>);
  for_sizes("memcpy", move);
  for (const Dtype type : {Dtype::kF32, Dtype::kBf16}) {
    for (const Mode mode : {Mode::kArrival, Mode::kInRankOrder, Mode::kReverse}) {
      benchmark::RegisterBenchmark(
          (std::string("push/") + name_of(type) + "/" + kModeNames[static_cast<size_t>(mode)])
              .c_str(),
          [=](benchmark::State& state) { push(state, type, mode); })
          ->ArgsProduct({{1424, 8900}, {64, 65536}});
    }
  }
  benchmark::RegisterBenchmark("limit", limit)->ArgsProduct({{1424, 8900}, {64, 65536}});
}

}  // namespace
}  // namespace mercury

int main(int argc, char** argv) {
  mercury::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("kernel", mercury::aggregation_kernel());
  benchmark::AddCustomContext("crc32c", mercury::wire::crc32c_kernel());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
