// A model's trace over an all-reduce library: the computing that mercury-replay does, at the same
// times, and one all-reduce after the other in the order in which gradients become ready, as
// Horovod and PyTorch do without fusion. A layer of the next forward pass begins when its sum is
// there.
//
//   rival_replay --trace resnet50 --library gloo --rank 0 --size 2 --store DIR
//   --address 10.0.0.1 mpirun -n 2 rival_replay --trace resnet50 --library mpi
//
// Rank 0 prints {"iteration_s": median, "iterations_s": [...], ...}. Exit status 1 if a sum is
// wrong.
#include <CLI/CLI.hpp>
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

namespace mercury::emulation {
namespace {

struct Options {
  std::string trace = "resnet50";
  std::string library = "gloo";
  int rank = 0;
  int size = 2;
  std::string store;
  std::string address = "127.0.0.1";
  int iterations = 3;
  int warmup = 1;
};

Result<double> iterate(const Trace& trace, Exchange& exchange) {
  const uint64_t begin_ns = monotonic_ns();
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
  return make_all_reduce(trace, std::move(*library));
}

int replay(const Options& options) {
  const Result<Trace> trace = read_trace(trace_path(options.trace));
  if (!trace) return fail(trace.error(), 2);
  const Result<std::unique_ptr<Exchange>> made = make(options, *trace);
  if (!made) return fail(made.error());
  if (!*made) return 0;  // a process that only serves has served
  Exchange& exchange = **made;
  std::vector<double> iterations_s;
  for (int i = 0; i < options.warmup + options.iterations; ++i) {
    const Result<double> took_s = iterate(*trace, exchange);
    if (!took_s) return fail(took_s.error());
    if (i >= options.warmup) iterations_s.push_back(*took_s);
  }
  for (size_t i = 0; i < trace->tensors.size(); ++i) {
    if (Status arrived = exchange.wait(i); !arrived) return fail(arrived.error());
  }
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
  app.add_option("--iterations", options.iterations)->check(CLI::Range(1, 100000));
  app.add_option("--warmup", options.warmup)->check(CLI::Range(0, 100000));
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  return mercury::emulation::replay(options);
}
