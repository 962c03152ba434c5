#include "apps/sim/run_command.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "apps/interruption.h"
#include "apps/sim/run_report.h"

namespace mercury::simulator {
namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void show_progress(uint64_t done, uint64_t total) {
  constexpr uint64_t kWidth = 40;
  static uint64_t shown = ~uint64_t{0};
  const uint64_t filled = done * kWidth / total;
  if (filled == shown) return;
  shown = filled;
  std::fprintf(stderr, "\r  [%.*s%.*s] %3llu %%", static_cast<int>(filled),
               "########################################", static_cast<int>(kWidth - filled),
               "                                        ",
               static_cast<unsigned long long>(done * 100 / total));
}
void end_progress() { std::fprintf(stderr, "\r%60s\r", ""); }

// Every simulated host has a few descriptors, as a real one has.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Status run_simulation(const SimOptions& given, const RunOptions& run) {
  const SimOptions options = with_all_links(given);
  allow_many_files();
  catch_interruptions();
  SimulationHooks hooks;
  hooks.interrupted = interrupted;
  const bool progress = !run.quiet && isatty(STDERR_FILENO) != 0;
  if (progress) hooks.progress = show_progress;
  const double begin_s = cpu_seconds();
  const auto result = simulate(options, run, hooks);
  if (progress) end_progress();
  if (!result) return result.error();
  if (result->interrupted && result->jobs.front().iterations() <= run.warmup) {
    return Error(Errc::kClosed, "interrupted before an iteration was over");
  }
  if (Status reported = report_run({options, run, *result, cpu_seconds() - begin_s}); !reported) {
    return reported;
  }
  if (result->interrupted) {
    std::fprintf(stderr, "mercury-sim: interrupted: %zu of %u iterations are done\n",
                 result->jobs.front().iterations(), run.iterations);
  }
  if (result->mismatches == 0) return {};
  return Error(Errc::kProtocol, std::to_string(result->mismatches) + " elements of sums are wrong");
}

}  // namespace mercury::simulator
