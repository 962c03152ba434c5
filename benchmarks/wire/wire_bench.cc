// What a frame costs besides moving its bytes: headers, acknowledgements, CRC-32C and seals, beside
// a plain memcpy of the same bytes. 1424 and 8924 bytes are the elements of a chunk where frames
// are 1500 and 9000 bytes long; "memory" copies from 64 MiB, "cache" from one warm buffer.
//
//   build/benchmarks/wire/wire_bench --benchmark_enable_random_interleaving
//   --benchmark_repetitions=9
#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "transport/wire/ack.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/header.h"
#include "transport/wire/seal.h"

namespace mercury::wire {
namespace {

constexpr const char* kKernels[] = {"avx512-vpclmul", "sse4.2", "table"};
constexpr size_t kMemoryBytes = 64 << 20;

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 2654435761 >> 11);
  return data;
}

void set_rate(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
}

void encode_and_decode(benchmark::State& state, FrameType type, size_t payload_bytes) {
  Header header;
  header.type = type;
  header.payload_bytes = static_cast<uint16_t>(payload_bytes);
  std::vector<std::byte> frame(header_bytes(type) + payload_bytes);
  for (auto _ : state) {
    ++header.packet_number;
    encode(header, frame.data());
    Header out;
    std::span<const std::byte> payload;
    if (decode(frame, out, payload) != DecodeError::kNone) state.SkipWithError("decode");
    benchmark::DoNotOptimize(out);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

void ack_round_trip(benchmark::State& state) {
  Ack ack;
  ack.count = static_cast<uint16_t>(state.range(0));
  for (size_t i = 0; i < ack.count; ++i) ack.ranges[i] = {100'000 - 10 * i, 100'005 - 10 * i};
  std::array<std::byte, ack_bytes(kMaxAckRanges)> body;
  for (auto _ : state) {
    const size_t bytes = encode(ack, body);
    Ack out;
    if (!decode(std::span(body).first(bytes), out)) state.SkipWithError("decode");
    benchmark::DoNotOptimize(out);
  }
}

bool use(benchmark::State& state, const char* kernel) {
  if (crc32c_force_kernel(kernel)) return true;
  state.SkipWithError("this CPU lacks it");
  return false;
}

void sum(benchmark::State& state, const char* kernel) {
  if (!use(state, kernel)) return;
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> data = pattern(bytes);
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(data.data(), bytes));
  set_rate(state, bytes);
}

// The seal of a datagram with so many bytes of payload, as its sender makes it and its receiver
// makes it again.
void seal(benchmark::State& state) {
  if (!can_seal()) return state.SkipWithError("this CPU cannot seal");
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> header = pattern(sizeof(DatagramHeader)), payload = pattern(bytes);
  FrameSeal seals(SealSecret{});
  std::array<std::byte, kSealBytes> out;
  uint64_t number = 0;
  for (auto _ : state) {
    seals.seal(number++, header, payload, out.data());
    benchmark::DoNotOptimize(out);
  }
  set_rate(state, bytes);
}

// The same, encrypted: as its sender makes it, and as its receiver opens it.
void encryption(benchmark::State& state, bool open) {
  if (!can_seal()) return state.SkipWithError("this CPU cannot seal");
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> header = pattern(sizeof(DatagramHeader)), payload = pattern(bytes);
  FrameSeal seals(SealSecret{});
  std::vector<std::byte> sealed(kSealBytes + bytes), plain(bytes);
  seals.encrypt(0, header, payload, sealed.data());
  uint64_t number = 0;
  for (auto _ : state) {
    if (open) {
      if (!seals.decrypt(0, header, sealed, plain.data())) return state.SkipWithError("no fit");
    } else {
      seals.encrypt(number++, header, payload, sealed.data());
    }
    benchmark::DoNotOptimize(sealed.data());
    benchmark::ClobberMemory();
  }
  set_rate(state, bytes);
}

// Copies chunk after chunk of `source` into one of 64 frames, as a transmit ring is filled.
template <class Copy>
void copy_frames(benchmark::State& state, size_t source_bytes, Copy copy) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const size_t stride = (bytes + 63) / 64 * 64;
  const std::vector<std::byte> source = pattern(std::max(source_bytes, stride));
  std::vector<std::byte> frames(64 * stride);
  size_t at = 0, frame = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(copy(frames.data() + frame * stride, source.data() + at, bytes));
    benchmark::ClobberMemory();
    frame = (frame + 1) % 64;
    at += stride;
    if (at + bytes > source.size()) at = 0;
  }
  set_rate(state, bytes);
}

void copy_plain(benchmark::State& state, size_t source_bytes) {
  copy_frames(state, source_bytes, [](std::byte* to, const std::byte* from, size_t bytes) {
    return std::memcpy(to, from, bytes);
  });
}
void copy_and_sum(benchmark::State& state, const char* kernel, size_t source_bytes) {
  if (use(state, kernel)) copy_frames(state, source_bytes, copy_crc32c);
}
void copy_sum_and_fetch(benchmark::State& state, const char* kernel, size_t source_bytes) {
  if (!use(state, kernel)) return;
  copy_frames(state, source_bytes, [](std::byte* to, const std::byte* from, size_t bytes) {
    return copy_crc32c_fetching(to, from, bytes, from + (bytes + 63) / 64 * 64);
  });
}
void copy_then_sum(benchmark::State& state, const char* kernel, size_t source_bytes) {
  if (!use(state, kernel)) return;
  copy_frames(state, source_bytes, [](std::byte* to, const std::byte* from, size_t bytes) {
    std::memcpy(to, from, bytes);
    return crc32c(to, bytes);
  });
}

void register_all() {
  const struct {
    const char* name;
    FrameType type;
  } frames[] = {{"ping", FrameType::kPing}, {"push", FrameType::kDatagram0}};
  for (const auto& frame : frames) {
    benchmark::RegisterBenchmark((std::string("header/") + frame.name).c_str(), encode_and_decode,
                                 frame.type, size_t{64});
  }
  benchmark::RegisterBenchmark("ack", ack_round_trip)->Arg(1)->Arg(8)->Arg(64);
  for (const char* kernel : kKernels) {
    const std::string name = std::string("crc32c/") + kernel;
    benchmark::RegisterBenchmark(name.c_str(), sum, kernel)
        ->Arg(48)
        ->Arg(256)
        ->Arg(1424)
        ->Arg(8924);
  }
  benchmark::RegisterBenchmark("seal", seal)->Arg(0)->Arg(256)->Arg(1424)->Arg(8924);
  for (const bool open : {false, true}) {
    benchmark::RegisterBenchmark(open ? "decrypt" : "encrypt", encryption, open)
        ->Arg(0)
        ->Arg(256)
        ->Arg(1424)
        ->Arg(8924);
  }
  for (const size_t bytes : {1424L, 8924L}) {
    for (const size_t source : {size_t{0}, kMemoryBytes}) {
      const std::string place = source == 0 ? "/cache" : "/memory";
      const auto arg = static_cast<int64_t>(bytes);
      benchmark::RegisterBenchmark(("copy/memcpy" + place).c_str(), copy_plain, source)->Arg(arg);
      for (const char* kernel : kKernels) {
        benchmark::RegisterBenchmark(("copy/and_sum/" + (kernel + place)).c_str(), copy_and_sum,
                                     kernel, source)
            ->Arg(arg);
        benchmark::RegisterBenchmark(("copy/sum_and_fetch/" + (kernel + place)).c_str(),
                                     copy_sum_and_fetch, kernel, source)
            ->Arg(arg);
        benchmark::RegisterBenchmark(("copy/then_sum/" + (kernel + place)).c_str(), copy_then_sum,
                                     kernel, source)
            ->Arg(arg);
      }
    }
  }
}

}  // namespace
}  // namespace mercury::wire

int main(int argc, char** argv) {
  mercury::wire::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
