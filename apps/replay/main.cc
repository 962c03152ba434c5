// mercury-replay: replays a model's trace over Mercury, with timed compute and real payloads that
// are verified at the receiver. docs/replay.md.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "apps/attached_job.h"
#include "apps/command_line.h"
#include "apps/interruption.h"
#include "apps/output.h"
#include "apps/replay/options.h"
#include "apps/replay/replayer.h"
#include "apps/replay/report.h"
#include "apps/replay/scale.h"
#include "apps/trace/shipped.h"
#include "apps/trace/trace.h"
#include "shim/client/mercurystack/mercury.h"

namespace {

using mercury::Replayer;
using mercury::ReplayOptions;
using mercury::Status;
using mercury::Trace;

int fail(const std::string& text, int status = 1) {
  std::fprintf(stderr, "mercury-replay: %s\n", text.c_str());
  return status;
}

int interrupted(const std::string& text) {
  return fail("interrupted by " + mercury::interruption_name() + ": " + text,
              mercury::interruption_status());
}

Replayer::Progress progress(const ReplayOptions& options) {
  if (isatty(STDERR_FILENO) == 0) return {};
  const int total = options.warmup + options.iterations;
  return [total](int iteration, double iteration_s) {
    const bool last = iteration + 1 == total;
    std::fprintf(stderr, "\riteration %d of %d: %.1f ms  %s", iteration + 1, total,
                 1e3 * iteration_s, last ? "\n" : "");
  };
}

int work(const ReplayOptions& options, const Trace& trace) {
  for (const std::string& path : {options.report, options.timeline}) {
    if (Status writable = mercury::check_output(path); !writable)
      return fail(writable.error().message);
  }
  mercury::AttachedJob attached;
  if (Status opened = mercury::open_job(options, attached); !opened) {
    return fail(opened.error().message);
  }
  auto replayer = Replayer::create(trace, options, attached.context, attached.job);
  if (!replayer) return fail(replayer.error().message);
  mercury::catch_interruptions();
  if (Status done = replayer->run(progress(options), mercury::interrupted); !done) {
    return fail(done.error().message);
  }
  if (replayer->stopped()) {
    if (isatty(STDERR_FILENO) != 0) std::fputc('\n', stderr);  // behind the progress
    if (replayer->figures().iteration_s.empty()) {
      return interrupted("no iteration was measured");
    }
  }
  const bool daemon = mercury_context_get_mode(attached.context) == MERCURY_MODE_DAEMON;
  const mercury::ReplaySummary summary{options,
                                       trace,
                                       replayer->figures(),
                                       replayer->found(),
                                       mercury_job_get_rank(attached.job),
                                       daemon ? "daemon" : "embedded",
                                       replayer->stopped()};
  std::fputs(table_text(summary).c_str(), stdout);
  if (!options.report.empty()) {
    if (Status wrote = write_report(summary, options.report); !wrote) {
      return fail(wrote.error().message);
    }
  }
  if (!options.timeline.empty()) {
    if (Status wrote = replayer->timeline().write(options.timeline); !wrote) {
      return fail(wrote.error().message);
    }
  }
  if (summary.found.mismatches != 0) return fail("wrong sum: " + summary.found.first);
  if (!replayer->stopped()) return 0;
  return interrupted("job " + options.job + " loses this worker");
}

}  // namespace

int main(int argc, char** argv) {
  ReplayOptions options;
  if (Status taken = mercury::take_launcher(options); !taken) {
    return fail(taken.error().message, mercury::kWrongUsage);
  }
  if (const auto status = parse_command_line(argc, argv, options)) return *status;
  if (options.list) {
    for (const std::string& name : mercury::shipped_models()) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (options.role == "server") return mercury::serve_job(options, "mercury-replay");
  mercury::Result<Trace> trace = mercury::read_trace(mercury::trace_path(options.trace));
  if (!trace) return fail(trace.error().message);
  scale_trace(*trace, options);
  return work(options, *trace);
}
