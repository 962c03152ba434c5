// A model's trace over another library: the computing that mercury-replay does, at the same times,
// and gradients exchanged in the order in which they become ready. A layer of the next forward pass
// begins when its own sum is there; with --wait all, the first one when all sums are there, as
// under DistributedDataParallel and Horovod, whose step() waits for all.
//
//   rival_replay --trace resnet50 --library gloo --rank 0 --size 2 --store DIR --address 10.0.0.1
//   mpirun -n 2 rival_replay --trace resnet50 --library mpi
//
// Gradients are fused as the users of these libraries have it: over Gloo in the buckets of
// PyTorch's DistributedDataParallel, the first of 1 MiB and others of 25, over MPI as by Horovod,
// what is ready in each millisecond up to 64 MiB. --fuse 0 reduces each tensor by itself.
//
// Rank 0 prints {"iteration_s": median, "iterations_s": [...], ...}. Exit status 1 if a sum is
// wrong.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/command_line.h"
#include "apps/replay/clock.h"
#include "apps/replay/report.h"
#include "apps/trace/shipped.h"
#include "apps/trace/trace.h"
#include "benchmarks/emulation/exchange.h"
#include "shim/host/scheduling.h"

namespace mercury::emulation {
namespace {

struct Options {
  std::string trace = "resnet50";
  std::string library = "gloo";
  int rank = 0;
  int size = 2;
  std::string store;
  std::string address = "127.0.0.1";
  int64_t fuse_bytes = -1;  // the library's
  double cycle_ms = 1;
  std::string wait = "own";
  std::string scheduling;  // empty: as it was started
  int iterations = 3;
  int warmup = 1;
};

constexpr uint64_t kMiB = uint64_t{1} << 20;

Fusion fusion_of(const Options& options) {
  if (options.fuse_bytes == 0) return {};
  const auto fuse_bytes = static_cast<uint64_t>(options.fuse_bytes);
  if (options.library == "mpi") {
    return {.rule = Fusion::Rule::kReady,
            .bytes = options.fuse_bytes < 0 ? 64 * kMiB : fuse_bytes,
            .cycle_ns = static_cast<uint64_t>(options.cycle_ms * 1e6)};
  }
  const uint64_t bytes = options.fuse_bytes < 0 ? 25 * kMiB : fuse_bytes;
  return {.bytes = bytes, .first_bytes = std::min(bytes, kMiB)};
}

// Of this thread and all that it starts, so of the library's.
Status schedule(const std::string& scheduling) {
  if (scheduling.empty()) return {};
  if (scheduling == "normal") return set_scheduling(Scheduling::kNormal);
  return set_scheduling(scheduling == "realtime" ? Scheduling::kRealtime : Scheduling::kUrgent);
}

Status wait_for_all(const Trace& trace, Exchange& exchange) {
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    if (Status arrived = exchange.wait(i); !arrived) return arrived;
  }
  return {};
}

Result<double> iterate(const Trace& trace, Exchange& exchange, bool step) {
  const uint64_t begin_ns = monotonic_ns();
  if (step) {
    if (Status arrived = wait_for_all(trace, exchange); !arrived) return arrived.error();
  }
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    if (Status arrived = exchange.wait(i); !arrived) return arrived.error();
    const uint64_t compute_ns = trace.tensors[i].update_ns + trace.tensors[i].forward_ns;
    if (compute_ns > 0) wait_until_ns(monotonic_ns() + compute_ns);
  }
  for (size_t i = trace.tensors.size(); i-- > 0;) {
    if (trace.tensors[i].backward_ns > 0) {
      wait_until_ns(monotonic_ns() + trace.tensors[i].backward_ns);
    }
    exchange.push(i);
  }
  return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
}

int fail(const Error& error, int status = 1) {
  std::fprintf(stderr, "rival_replay: %s\n", error.message.c_str());
  return status;
}

Result<std::unique_ptr<Exchange>> make(const Options& options, const Trace& trace) {
  if (options.library == "ps-lite") return make_pslite(trace);
  Result<std::unique_ptr<Collective>> library =
      options.library == "mpi"
          ? make_mpi()
          : make_gloo(options.rank, options.size, options.store, options.address);
  if (!library) return library.error();
  return make_all_reduce(trace, std::move(*library), fusion_of(options));
}

int replay(const Options& options) {
  const Result<Trace> trace = read_trace(trace_path(options.trace));
  if (!trace) return fail(trace.error(), 2);
  if (Status scheduled = schedule(options.scheduling); !scheduled) return fail(scheduled.error());
  const Result<std::unique_ptr<Exchange>> made = make(options, *trace);
  if (!made) return fail(made.error());
  if (!*made) return 0;  // a process that only serves has served
  Exchange& exchange = **made;
  std::vector<double> iterations_s;
  for (int i = 0; i < options.warmup + options.iterations; ++i) {
    const Result<double> took_s = iterate(*trace, exchange, options.wait == "all");
    if (!took_s) return fail(took_s.error());
    if (i >= options.warmup) iterations_s.push_back(*took_s);
  }
  if (Status arrived = wait_for_all(*trace, exchange); !arrived) return fail(arrived.error());
  const bool hold = exchange.all_hold();
  if (exchange.rank() == 0) {
    const nlohmann::json report = {{"library", exchange.version()},
                                   {"iteration_s", median(iterations_s)},
                                   {"iterations_s", iterations_s},
                                   {"verified", hold}};
    std::printf("%s\n", report.dump().c_str());
  }
  if (!hold) std::fprintf(stderr, "rival_replay: a sum is wrong\n");
  return hold ? 0 : 1;
}

}  // namespace
}  // namespace mercury::emulation

int main(int argc, char** argv) {
  mercury::emulation::Options options;
  CLI::App app("Replays a model's trace over Gloo, MPI or ps-lite");
  app.add_option("--trace", options.trace, "a trace file, or a shipped model")
      ->capture_default_str();
  app.add_option("--library", options.library)
      ->check(CLI::IsMember({"gloo", "mpi", "ps-lite"}))
      ->capture_default_str();
  app.add_option("--rank", options.rank, "gloo")->check(CLI::Range(0, 255));
  app.add_option("--size", options.size, "gloo")->check(CLI::Range(1, 256));
  app.add_option("--store", options.store, "gloo: an empty folder that all ranks see");
  app.add_option("--address", options.address, "gloo: of this rank")->capture_default_str();
  app.add_option("--fuse", options.fuse_bytes,
                 "gloo, mpi: bytes that are reduced at once, 0: each tensor by itself "
                 "[gloo: 26214400, mpi: 67108864]")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app.add_option("--cycle", options.cycle_ms,
                 "mpi: milliseconds from one look at what is ready to the next")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--wait", options.wait,
                 "of the forward pass: for a layer's own sum, or first for all")
      ->check(CLI::IsMember({"own", "all"}))
      ->capture_default_str();
  app.add_option("--scheduling", options.scheduling,
                 "as engine.scheduling of mercury-stackd [as it was started]")
      ->check(CLI::IsMember({"normal", "urgent", "realtime"}));
  app.add_option("--iterations", options.iterations)->check(CLI::Range(1, 100000));
  app.add_option("--warmup", options.warmup)->check(CLI::Range(0, 100000));
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  return mercury::emulation::replay(options);
}
