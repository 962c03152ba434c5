#include "apps/perf/tensor_options.h"

#include "apps/command_line.h"
#include "apps/perf/sizes.h"
#include "apps/perf/times.h"
#include "apps/replay/options.h"
#include "apps/replay/scale.h"
#include "apps/trace/shipped.h"

namespace mercury::perf {
namespace {

constexpr const char* kDefaultSizes = "4..64MiB";
constexpr int kMostInFlight = 1000;  // the rings of an attachment hold 1,024 operations

constexpr const char* kTensorsHelp =
    "Tensors that are pushed and summed as fast as they go, by every worker of a job: no "
    "computing between.\n"
    "Start it once for each worker, on its host; the servers are daemons, or this program with "
    "--role server. Each worker prints what it saw.\n\n"
    "Gbit/s  bytes of the tensors whose sums came back, in 10^9 bits a second. That much payload "
    "passes a worker's link in each direction; frames' headers come on top.\n"
    "bus     Gbit/s times 2 (n - 1) / n for n workers: what a link would carry if they made the "
    "same "
    "sums in a ring (as nccl-tests' busbw), for comparison with those.\n"
    "us      from the call that pushes a tensor until its sum is known to be there, of all "
    "repeats.\n"
    "spread  (largest - smallest) / median of the repeats; rates are medians.\n"
    "program, daemon  processor time of this program and of this host's daemon, all threads, user "
    "and system; the daemon's is of all that it does. Of the server nothing: look there.\n\n"
    "Before the repeats and after them every element of every sum is compared with what it must "
    "be.";

// One size's tensors, as a model of as many equal layers.
Trace equal_tensors(uint64_t bytes, Dtype dtype, const TensorOptions& options) {
  Trace trace;
  for (int n = 0; n < options.in_flight; ++n) {
    TraceTensor& tensor = trace.tensors.emplace_back();
    tensor.name = std::to_string(n);
    tensor.numel = bytes / size_of(dtype);
    tensor.dtype = dtype;
    if (options.priorities == "each") tensor.priority = static_cast<uint16_t>(n);
  }
  return trace;
}

Error wrong(std::string text) { return Error(Errc::kInvalidArgument, std::move(text)); }

Status check_model_options(const CLI::App& command, const TensorOptions& options) {
  for (const char* option : {"--sizes", "--in-flight", "--priorities"}) {
    if (options.model.empty() || command.count(option) == 0) continue;
    return wrong(std::string("--model says what is exchanged, and so there is no ") + option);
  }
  if (options.model.empty() && command.count("--size-scale") > 0) {
    return wrong("--size-scale divides a model's tensors, and there is no --model");
  }
  return {};
}

}  // namespace

CLI::App* add_tensors_command(CLI::App& app, TensorOptions& options) {
  CLI::App* command = app.add_subcommand("tensors", kTensorsHelp);
  options.sizes = *parse_sizes(kDefaultSizes);
  describe_member(*command, options);
  add_parsed(*command, "--sizes", options.sizes, parse_sizes,
             std::string("of a tensor: 4KB, or 4,1MiB, or a sweep by fours: ") + kDefaultSizes);
  command->add_option("--in-flight", options.in_flight, "tensors at once")
      ->check(CLI::Range(1, kMostInFlight));
  command
      ->add_option("--priorities", options.priorities,
                   "of those: the same, or each its own, with the first the most urgent; its times "
                   "are then in the JSON, too")
      ->check(CLI::IsMember({"same", "each"}));
  command->add_option("--model", options.model,
                      "instead of sizes: all tensors of a trace file, or of a model that "
                      "mercury-replay --list shows, at its priorities");
  command
      ->add_option("--size-scale", options.size_scale, "divides the elements of a model's tensors")
      ->check(CLI::Range(1.0, 1e12));
  command->add_option("--dtype", options.dtype, "of the elements: f32, or what the model says")
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16", "i32", "i64", "i8", "u8"}));
  command->add_option("--repeats", options.repeats, "measured ones, of each size")
      ->check(CLI::Range(1, 1000));
  add_parsed(*command, "--time", options.time_ns, parse_some_time,
             "of a repeat, about; at least one round [1s]");
  add_parsed(*command, "--warmup", options.warmup_ns, parse_some_time, "before them [200ms]");
  command->add_option("--rounds", options.rounds, "of each tensor in a repeat, instead of --time")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000'000}));
  command->add_flag("--check", options.check,
                    "compare every sum of the repeats, too, within their time");
  command->add_option("--json", options.json, "file for the figures, or - for standard output");
  return command;
}

Status check_tensors(const CLI::App& command, const TensorOptions& options) {
  if (const std::string error = contradiction(options); !error.empty()) return wrong(error);
  if (!options.listen.empty() && options.mode == "daemon") {
    return wrong("--listen is an embedded engine's; a daemon listens where its configuration says");
  }
  if (options.role == "server") {
    for (const char* option : {"--sizes", "--model", "--in-flight", "--json", "--check"}) {
      if (command.count(option) == 0) continue;
      return wrong(std::string("--role server: the workers say what is exchanged, not ") + option);
    }
    return {};
  }
  if (Status model = check_model_options(command, options); !model) return model;
  if (options.rounds > 0 && command.count("--time") > 0) {
    return wrong("either --time or --rounds says how long a repeat is");
  }
  const size_t element_bytes = size_of(dtype_named(options.dtype).value_or(Dtype::kF32));
  for (const uint64_t bytes : options.sizes) {
    if (!options.model.empty() || bytes % element_bytes == 0) continue;
    return wrong("a tensor of " + std::to_string(bytes) +
                 " bytes has no whole number of elements of " + std::to_string(element_bytes));
  }
  return {};
}

Result<std::vector<Trace>> traces_of(const TensorOptions& options) {
  std::vector<Trace> traces;
  if (options.model.empty()) {
    const Dtype dtype = dtype_named(options.dtype).value_or(Dtype::kF32);
    for (const uint64_t bytes : options.sizes) {
      traces.push_back(equal_tensors(bytes, dtype, options));
    }
    return traces;
  }
  Result<Trace> model = read_trace(trace_path(options.model));
  if (!model) return model.error();
  ReplayOptions scale;
  scale.size_scale = options.size_scale;
  scale.dtype = options.dtype;
  scale_trace(*model, scale);
  traces.push_back(std::move(*model));
  return traces;
}

}  // namespace mercury::perf
