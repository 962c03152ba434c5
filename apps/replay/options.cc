#include "apps/replay/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "apps/command_line.h"

namespace mercury {
namespace {

constexpr std::array kDtypes = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBf16,
                                Dtype::kI32, Dtype::kI64, Dtype::kI8,  Dtype::kU8};

// CLI11's own range check lets "nan" through.
CLI::Validator number_between(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) {
          return std::string();
        }
        return "'" + text + "' is not a number from " + CLI::detail::to_string(low) + " to " +
               CLI::detail::to_string(high);
      },
      "NUMBER");
}

void describe(CLI::App& app, ReplayOptions& options) {
  app.add_option("--trace", options.trace, "the model: a trace file, or a name that --list shows");
  app.add_flag("--list", options.list, "show the shipped traces and leave");
  describe_member(app, options);
  app.add_option("--iterations", options.iterations, "measured ones")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--warmup", options.warmup, "iterations before them")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--time-scale", options.time_scale, "multiplies compute times")
      ->check(number_between(0, 1000));
  app.add_option("--size-scale", options.size_scale,
                 "divides the elements of each tensor (one stays), for small machines")
      ->check(number_between(1, 1e12));
  app.add_option("--dtype", options.dtype, "of all tensors, instead of the trace's")
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16", "i32", "i64", "i8", "u8"}));
  app.add_flag("!--no-verify", options.verify, "do not compare the sums with what they must be");
  app.add_option("--report", options.report, "file for the figures, JSON");
  app.add_option("--timeline", options.timeline, "file for a timeline in Chrome's trace format");
}

std::string replay_contradiction(const ReplayOptions& options) {
  if (options.list) return {};
  if (options.role == "worker" && options.trace.empty()) {
    return "--trace is missing; --list shows the shipped ones";
  }
  return contradiction(options);
}

}  // namespace

std::optional<int> parse_command_line(int argc, const char* const* argv, ReplayOptions& options) {
  CLI::App app{
      "Replays a model's trace over Mercury: timed compute, real payloads, verified sums.\n"
      "SIGINT or SIGTERM ends it with a report of what is finished; the second one at once."};
  app.name("mercury-replay");
  describe(app, options);
  if (const auto end = read_command_line(app, argc, argv)) return *end;
  const std::string wrong = replay_contradiction(options);
  if (wrong.empty()) return std::nullopt;
  std::fprintf(stderr, "mercury-replay: %s\n", wrong.c_str());
  return kWrongUsage;
}

std::optional<Dtype> dtype_named(const std::string& name) {
  const auto* const found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                         [&](Dtype dtype) { return name_of(dtype) == name; });
  return found == kDtypes.end() ? std::nullopt : std::optional(*found);
}

}  // namespace mercury
