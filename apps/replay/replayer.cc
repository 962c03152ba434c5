#include "apps/replay/replayer.h"

#include <cerrno>
#include <utility>

#include "apps/replay/clock.h"
#include "apps/replay/tensors.h"

namespace mercury {
namespace {

// How long a wait for a sum goes without a look at whether to stop.
constexpr int kStopLookMs = 100;

double seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

Error call_failed(const std::string& what) {
  return Error(Errc::kSystem, what + ": " + mercury_last_error());
}

}  // namespace

Replayer::Replayer(const Trace& trace, const ReplayOptions& options, mercury_job* job,
                   PayloadWork work)
    : trace_(&trace),
      options_(&options),
      job_(job),
      work_(std::move(work)),
      exchanges_(trace.tensors.size()) {
  figures_.tensors.resize(trace.tensors.size());
  if (!options.timeline.empty()) timeline_.enable();
}

Result<Replayer> Replayer::create(const Trace& trace, const ReplayOptions& options,
                                  mercury_context* context, mercury_job* job) {
  auto memory = allocate_tensors(trace, context);
  if (!memory) return memory.error();
  if (Status declared = declare_tensors(trace, *memory, job, 0); !declared) return declared.error();
  PayloadWork work(trace, std::move(*memory), static_cast<uint32_t>(mercury_job_get_workers(job)),
                   static_cast<uint32_t>(mercury_job_get_rank(job)), options.verify);
  return Replayer(trace, options, job, std::move(work));
}

Error Replayer::failed(const char* what, uint32_t tensor, uint64_t iteration) const {
  return call_failed(std::string(what) + " tensor " + trace_->tensors[tensor].name +
                     " in iteration " + std::to_string(iteration));
}

bool Replayer::measured(uint64_t iteration) const {
  return iteration >= static_cast<uint64_t>(options_->warmup);
}

Status Replayer::check_stop() {
  stopped_ = stopped_ || (stop_ && stop_());
  return stopped_ ? Status(Error(Errc::kClosed, "stopped")) : Status();
}

Status Replayer::run(const Progress& progress, const Stop& stop) {
  stop_ = stop;
  work_.fill_all(0);
  if (Status done = exchange_all(progress); !done && check_stop()) return done;
  work_.finish_all();
  mercury_job_stats stats{};
  stats.size = sizeof stats;
  if (mercury_job_get_stats(job_, &stats) < 0) return call_failed("cannot read the statistics");
  figures_.bytes_up = stats.bytes_pushed;
  figures_.bytes_down = stats.bytes_pulled;
  return {};
}

// All iterations, and the sums of the last.
Status Replayer::exchange_all(const Progress& progress) {
  const int total = options_->warmup + options_->iterations;
  for (int iteration = 0; iteration < total; ++iteration) {
    const uint64_t begin_ns = monotonic_ns();
    compute_ns_ = payload_ns_ = 0;
    if (Status done = iterate(static_cast<uint64_t>(iteration)); !done) return done;
    const double iteration_s = seconds(monotonic_ns() - begin_ns);
    if (measured(static_cast<uint64_t>(iteration))) {
      figures_.iteration_s.push_back(iteration_s);
      figures_.compute_s.push_back(seconds(compute_ns_));
      figures_.payload_s.push_back(seconds(payload_ns_));
    }
    if (progress) progress(iteration, iteration_s);
  }
  for (uint32_t tensor = 0; tensor < exchanges_.size(); ++tensor) {
    if (Status arrived = collect(tensor); !arrived) return arrived;
  }
  return {};
}

Status Replayer::iterate(uint64_t iteration) {
  const uint64_t begin_ns = monotonic_ns();
  const auto count = static_cast<uint32_t>(trace_->tensors.size());
  for (uint32_t tensor = 0; tensor < count; ++tensor) {
    if (Status arrived = collect(tensor); !arrived) return arrived;
    const TraceTensor& row = trace_->tensors[tensor];
    compute(tensor, Timeline::Kind::kForward, iteration, row.update_ns + row.forward_ns);
  }
  for (uint32_t tensor = count; tensor-- > 0;) {
    compute(tensor, Timeline::Kind::kBackward, iteration, trace_->tensors[tensor].backward_ns);
    if (Status pushed = push(tensor, iteration, begin_ns); !pushed) return pushed;
  }
  return {};
}

// mercury_wait's status, or -ETIMEDOUT where the run is told to stop meanwhile.
int Replayer::wait(mercury_handle handle) {
  int status = 0;
  do {
    status = mercury_wait(job_, handle, kStopLookMs);
  } while (status == -ETIMEDOUT && check_stop());
  return status;
}

// Waits for the sum that is on its way, if one is.
Status Replayer::collect(uint32_t tensor) {
  Exchange& exchange = exchanges_[tensor];
  if (Status go_on = check_stop(); !go_on) return go_on;
  if (exchange.handle == 0) return {};
  if (wait(exchange.handle) < 0) {
    return failed("cannot exchange", tensor, exchange.round);
  }
  exchange.handle = 0;
  const uint64_t end_ns = monotonic_ns();
  timeline_.span(trace_->tensors[tensor].name, Timeline::Kind::kExchange, exchange.round,
                 exchange.begin_ns, end_ns);
  if (measured(exchange.round)) {
    figures_.tensors[tensor].pulled_s.push_back(seconds(end_ns - exchange.iteration_ns));
  }
  const uint64_t total =
      static_cast<uint64_t>(options_->warmup) + static_cast<uint64_t>(options_->iterations);
  work_.add(tensor, exchange.round, exchange.round + 1 == total);
  return {};
}

Status Replayer::push(uint32_t tensor, uint64_t iteration, uint64_t iteration_ns) {
  if (Status go_on = check_stop(); !go_on) return go_on;
  const uint64_t filling_ns = monotonic_ns();
  if (work_.finish(tensor)) payload_ns_ += monotonic_ns() - filling_ns;
  Exchange& exchange = exchanges_[tensor];
  exchange.begin_ns = monotonic_ns();
  exchange.iteration_ns = iteration_ns;
  exchange.round = iteration;
  int status = 0;
  while ((status = mercury_push_pull(job_, tensor, trace_->tensors[tensor].priority,
                                     &exchange.handle)) == -EAGAIN) {
    if (Status room = make_room(tensor); !room) return room;
  }
  if (status < 0) return failed("cannot push", tensor, iteration);
  if (measured(iteration)) {
    figures_.tensors[tensor].ready_s.push_back(seconds(exchange.begin_ns - iteration_ns));
  }
  return {};
}

// Too many operations are in flight: waits for the one that was pushed first.
Status Replayer::make_room(uint32_t pushing) {
  for (auto other = static_cast<uint32_t>(exchanges_.size()); --other > pushing;) {
    if (exchanges_[other].handle != 0) return collect(other);
  }
  return failed("cannot push", pushing, exchanges_[pushing].round);
}

void Replayer::compute(uint32_t tensor, Timeline::Kind kind, uint64_t iteration,
                       uint64_t duration_ns) {
  if (duration_ns == 0) return;
  const uint64_t begin_ns = monotonic_ns();
  const uint64_t deadline_ns = begin_ns + duration_ns;
  while (work_.pending() && monotonic_ns() + kSpinNs < deadline_ns) work_.slice();
  wait_until_ns(deadline_ns);
  const uint64_t end_ns = monotonic_ns();
  compute_ns_ += end_ns - begin_ns;
  timeline_.span(trace_->tensors[tensor].name, kind, iteration, begin_ns, end_ns);
}

}  // namespace mercury
