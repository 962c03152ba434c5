// mercury-replay: replays a model's trace over Mercury, with timed compute and real payloads that
// are verified at the receiver. docs/replay.md.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "apps/command_line.h"
#include "apps/interruption.h"
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

// A context and a job in it, closed in reverse.
struct AttachedJob {
  mercury_context* context = nullptr;
  mercury_job* job = nullptr;
  AttachedJob() = default;
  AttachedJob(const AttachedJob&) = delete;
  AttachedJob& operator=(const AttachedJob&) = delete;
  ~AttachedJob() {
    mercury_job_close(job);
    mercury_detach(context);
  }
};

// What the launcher set. False after a message.
bool take_environment(ReplayOptions& options) {
  mercury_job_options job;
  mercury_job_options_init(&job, sizeof job);
  const int status = mercury_job_options_from_env(&job);
  if (status == -ENOENT) return true;
  if (status < 0) {
    fail(std::string("the launcher's environment: ") + mercury_last_error());
    return false;
  }
  options.role = job.role == MERCURY_ROLE_SERVER ? "server" : "worker";
  options.rank = job.rank;
  options.workers = job.workers;
  options.servers = job.servers;
  if (job.name != nullptr) options.job = job.name;
  if (job.rendezvous != nullptr) options.rendezvous = job.rendezvous;
  return true;
}

// Empty on success.
std::string open(const ReplayOptions& options, AttachedJob& attached) {
  mercury_attach_options attach;
  mercury_attach_options_init(&attach, sizeof attach);
  if (options.mode == "daemon") attach.mode = MERCURY_MODE_DAEMON;
  if (options.mode == "embedded") attach.mode = MERCURY_MODE_EMBEDDED;
  if (!options.listen.empty()) attach.listen = options.listen.c_str();
  if (mercury_attach(&attach, &attached.context) < 0) {
    return std::string("cannot attach: ") + mercury_last_error();
  }
  mercury_job_options job;
  mercury_job_options_init(&job, sizeof job);
  job.name = options.job.c_str();
  job.secret = std::getenv("MERCURY_SECRET");
  job.role = options.role == "server" ? MERCURY_ROLE_SERVER : MERCURY_ROLE_WORKER;
  job.rank = options.rank;
  job.workers = options.workers;
  job.servers = options.servers;
  job.rendezvous = options.rendezvous.c_str();
  job.policy = options.policy.c_str();
  if (mercury_job_open(attached.context, &job, &attached.job) < 0) {
    return "cannot open job " + options.job + ": " + mercury_last_error();
  }
  return {};
}

int serve(const ReplayOptions& options) {
  AttachedJob attached;
  if (const std::string error = open(options, attached); !error.empty()) return fail(error);
  mercury::catch_interruptions();
  int status = 0;
  while ((status = mercury_job_wait_end(attached.job, 100)) == -ETIMEDOUT) {
    if (!mercury::interrupted()) continue;
    return interrupted("job " + options.job + " loses this server");
  }
  if (status < 0) {
    return fail("job " + options.job + " failed: " + mercury_last_error());
  }
  std::printf("job %s has ended\n", options.job.c_str());
  return 0;
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

// Before a long run rather than after it. An empty path is no file.
Status check_writable(const std::string& path) {
  if (path.empty()) return {};
  errno = 0;
  if (std::ofstream(path, std::ios::app)) return {};
  return mercury::Error::system(errno, "cannot write " + path);
}

int work(const ReplayOptions& options, const Trace& trace) {
  for (const std::string& path : {options.report, options.timeline}) {
    if (Status writable = check_writable(path); !writable) return fail(writable.error().message);
  }
  AttachedJob attached;
  if (const std::string error = open(options, attached); !error.empty()) return fail(error);
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
  if (!take_environment(options)) return mercury::kWrongUsage;
  if (const auto status = parse_command_line(argc, argv, options)) return *status;
  if (options.list) {
    for (const std::string& name : mercury::shipped_models()) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (options.role == "server") return serve(options);
  mercury::Result<Trace> trace = mercury::read_trace(mercury::trace_path(options.trace));
  if (!trace) return fail(trace.error().message);
  scale_trace(*trace, options);
  return work(options, *trace);
}
