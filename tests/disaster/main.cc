// mercury-disaster: the engine against everything a network, a program and a host can do to it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <thread>

#include "aggregator/aggregator.h"
#include "apps/command_line.h"
#include "tests/disaster/mutations.h"
#include "tests/disaster/runner.h"
#include "tests/disaster/shrink.h"
#include "tests/disaster/world.h"
#include "transport/wire/crc32c.h"

namespace {

using namespace mercury::disaster;

struct Options {
  RangeOptions range;
  uint64_t seed = 0;
  uint64_t shrink = 0;
  bool verbose = false;
  bool portable = false;
  bool list_mutations = false;
  std::string reduce;
  std::string mutation;
};

// CLI11 takes -1 for 2^64 - 1. A range that runs nothing must not look clean.
std::string check_seed(const std::string& text) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, seed);
  const bool good =
      read.ec == std::errc() && read.ptr == end && seed > 0 && seed <= uint64_t{1} << 63;
  return good ? "" : "'" + text + "': expected a number from 1 to 2^63";
}

int run_seeds(RangeOptions range) {
  const auto begin = std::chrono::steady_clock::now();
  range.found = [](const Failure& failure) {
    std::printf("seed %" PRIu64 " FAILS: %s\n", failure.seed, failure.what.c_str());
    std::fflush(stdout);
  };
  const RangeResult result = run_range(range);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%" PRIu64 " seeds, %zu failures; %" PRIu64 " sums checked, %" PRIu64
              " frames, %" PRIu64 " of %" PRIu64
              " programs came through; %.0f virtual seconds in %.1f s; longest wait %.2f s "
              "(seed %" PRIu64 ")\n",
              result.seeds, result.failures.size(), result.sums, result.frames, result.succeeded,
              result.programs, result.virtual_seconds, took.count(), result.longest_wait_seconds,
              result.longest_wait_seed);
  return result.failures.empty() ? 0 : 1;
}

int run_one(const Options& options, const Reduction& reduction) {
  const Verdict verdict = run_seed(options.seed, reduction, options.verbose ? stdout : nullptr);
  std::printf("seed %" PRIu64 ": %s; trace %016" PRIx64 ", contents %016" PRIx64
              ", %.3f virtual seconds, %" PRIu64 " frames, %" PRIu64
              " sums checked, %u of %u programs came through\n",
              options.seed, verdict.ok() ? "ok" : verdict.violation.c_str(), verdict.trace,
              verdict.contents, static_cast<double>(verdict.virtual_ns) / 1e9, verdict.frames,
              verdict.sums, verdict.succeeded, verdict.programs);
  return verdict.ok() ? 0 : 1;
}

int run_shrink(const Options& options) {
  const uint64_t seed = options.shrink;
  const Fails fails = [&](const Reduction& cut) {
    return run_apart(seed, cut, options.range.seconds_a_seed);
  };
  const std::string first = fails({});
  if (first.empty()) {
    std::printf("seed %" PRIu64 " does not fail\n", seed);
    return 0;
  }
  std::printf("seed %" PRIu64 " FAILS: %s\n", seed, first.c_str());
  const Reduction least = shrink(make_scenario(seed), fails, [](const Reduction& kept) {
    std::printf("  still fails with: %s\n", kept.to_string().c_str());
    std::fflush(stdout);
  });
  std::printf("%s%s\nagain: mercury-disaster --seed %" PRIu64 " --reduce '%s' --verbose\n",
              describe(reduced(make_scenario(seed), least)).c_str(), fails(least).c_str(), seed,
              least.to_string().c_str());
  return 1;
}

// Replaces this process by the build that has the bug.
int run_mutation(const Options& options, char** argv) {
  const std::string path = mutant_path(options.mutation);
  if (path.empty()) {
    std::fprintf(stderr, "no mutation is called '%s': see --list-mutations\n",
                 options.mutation.c_str());
    return 2;
  }
  if (::access(path.c_str(), X_OK) != 0) {
    std::fprintf(stderr, "mutation '%s' is not built: tests/disaster/mutate.py --build-only %s\n",
                 options.mutation.c_str(), options.mutation.c_str());
    return 2;
  }
  std::vector<char*> arguments;
  for (char** argument = argv; *argument != nullptr; ++argument) {
    const std::string text = *argument;
    if (text == "--mutation") {
      ++argument;
    } else if (text.rfind("--mutation=", 0) != 0) {
      arguments.push_back(*argument);
    }
  }
  arguments.push_back(nullptr);
  ::execv(path.c_str(), arguments.data());
  std::perror(path.c_str());
  return 2;
}

int run(Options options, char** argv) {
  if (options.list_mutations) {
    for (const Mutation& mutation : mutations()) {
      std::printf("%-28s %s\n", mutation.name, mutation.what);
    }
    return 0;
  }
  if (!options.mutation.empty()) return run_mutation(options, argv);
  const mercury::Result<Reduction> reduction = Reduction::parse(options.reduce);
  if (!reduction) {
    std::fprintf(stderr, "%s\n", reduction.error().message.c_str());
    return 2;
  }
  if (options.portable) {
    mercury::wire::crc32c_force_kernel("table");
    mercury::force_aggregation_kernel("scalar");
  }
  if (options.range.jobs == 0)
    options.range.jobs = std::max(1U, std::thread::hardware_concurrency());
  if (options.shrink != 0) return run_shrink(options);
  if (options.seed != 0) return run_one(options, *reduction);
  return run_seeds(options.range);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.range.seeds = 1000;
  options.range.jobs = 0;
  CLI::App app("Runs Mercury's engines on virtual hosts through disasters, and checks every sum.");
  const CLI::Validator seed(check_seed, "");
  CLI::Option* from = app.add_option("--from", options.range.from, "first seed of a range")
                          ->capture_default_str()
                          ->check(seed);
  CLI::Option* seeds = app.add_option("--seeds", options.range.seeds, "how many seeds")
                           ->capture_default_str()
                           ->check(seed);
  app.add_option("--jobs", options.range.jobs, "processes; 0: one per processor")
      ->capture_default_str();
  app.add_option("--stop-after", options.range.stop_after, "failures; 0: run all seeds")
      ->capture_default_str();
  app.add_option("--seconds-a-seed", options.range.seconds_a_seed,
                 "processor time after which a seed counts as hanging")
      ->capture_default_str();
  app.add_flag("--progress", options.range.progress, "say how far it is, every 1,000 seeds");
  CLI::Option* one = app.add_option("--seed", options.seed, "replay this one")
                         ->check(seed)
                         ->excludes(from)
                         ->excludes(seeds);
  app.add_flag("--verbose", options.verbose, "with --seed: the scenario and all that happens")
      ->needs(one);
  app.add_option("--reduce", options.reduce, "with --seed: what --shrink printed")->needs(one);
  app.add_option("--shrink", options.shrink, "find the least of this seed that still fails")
      ->check(seed)
      ->excludes(from)
      ->excludes(seeds)
      ->excludes(one);
  app.add_flag("--portable", options.portable,
               "CRC-32C and sums by the kernels for any CPU, not by the best ones for this");
  app.add_flag("--list-mutations", options.list_mutations, "the bugs that can be seeded");
  app.add_option("--mutation", options.mutation, "run the build that has this bug");
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  return run(options, argv);
}
