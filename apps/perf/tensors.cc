#include "apps/perf/tensors.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/attached_job.h"
#include "apps/interruption.h"
#include "apps/output.h"
#include "apps/perf/tensor_sweep.h"
#include "apps/trace/shipped.h"
#include "shim/channel/attach.h"

namespace mercury::perf {
namespace {

int fail(const std::string& text) {
  std::fprintf(stderr, "mercury-perf: %s\n", text.c_str());
  return 1;
}

// Where mercury_attach looks for the daemon.
std::string daemon_socket() {
  const char* named = std::getenv("MERCURY_SOCKET");
  return named != nullptr && *named != 0 ? named : attach::kDefaultSocket;
}

std::string what_was_run(const TensorOptions& options, mercury_job* job, const char* engine) {
  char text[512];
  std::snprintf(text, sizeof text, "worker %d of %d, %d server%s, %s; policy %s; %d repeat%s%s\n",
                mercury_job_get_rank(job), mercury_job_get_workers(job),
                mercury_job_get_servers(job), mercury_job_get_servers(job) == 1 ? "" : "s", engine,
                options.policy.c_str(), options.repeats, options.repeats == 1 ? "" : "s",
                options.check ? ", each sum compared within its time" : "");
  return text;
}

std::string what_is_exchanged(const TensorOptions& options, const std::vector<TensorRow>& rows) {
  if (!options.model.empty()) {
    return model_name(options.model) + ", " + std::to_string(rows.front().tensors) +
           " tensors: an operation is one tensor\n";
  }
  return (options.dtype.empty() ? "f32" : options.dtype) + ", " +
         std::to_string(options.in_flight) + (options.in_flight == 1 ? " tensor" : " tensors") +
         " in flight, " +
         (options.priorities == "each" ? "each of its own priority\n" : "of the same priority\n");
}

Json row_json(const TensorRow& row, const TensorOptions& options, double bus_factor,
              const CostMeter& meter) {
  const Figures& figures = row.figures;
  Json json = {{"bytes", figures.bytes}, {"tensors", row.tensors}};
  if (!figures.not_measured.empty()) {
    json["not_measured"] = figures.not_measured;
    return json;
  }
  json["rounds"] = row.rounds;
  for (const auto& [begin_ns, end_ns] : row.repeats_ns) {
    json["repeats_ns"].push_back({begin_ns, end_ns});
  }
  json["operations"] = figures.operations;
  json["gbit_per_s"] = json_of(figures.gbit_per_s);
  const auto rate = figures.gbit_per_s.median();
  json["bus_gbit_per_s"] = bus_factor > 0 && rate ? Json(*rate * bus_factor) : Json(nullptr);
  json["operations_per_s"] = json_of(figures.operations_per_s);
  if (!options.model.empty()) {
    Repeats models = figures.operations_per_s;
    for (double& value : models.values) value /= static_cast<double>(row.tensors);
    json["models_per_s"] = json_of(models);
  }
  json["latency_us"] = json_of(figures.latency);
  if (options.priorities == "each") json["first_latency_us"] = json_of(row.first);
  json["cost"] = json_of(figures.costs, figures, meter);
  json["checked_elements"] = figures.checked;
  return json;
}

Json report_json(const TensorOptions& options, const std::vector<TensorRow>& rows, mercury_job* job,
                 const char* engine, const CostMeter& meter, double bus_factor) {
  Json json = {{"kind", "tensors"},
               {"rank", mercury_job_get_rank(job)},
               {"workers", mercury_job_get_workers(job)},
               {"servers", mercury_job_get_servers(job)},
               {"engine", engine},
               {"policy", options.policy},
               {"repeats", options.repeats},
               {"time_s", static_cast<double>(options.time_ns) * 1e-9},
               {"check", options.check},
               {"interrupted", interrupted()}};
  if (options.model.empty()) {
    json["dtype"] = options.dtype.empty() ? "f32" : options.dtype;
    json["in_flight"] = options.in_flight;
    json["priorities"] = options.priorities;
  } else {
    json["model"] = model_name(options.model);
    json["size_scale"] = options.size_scale;
  }
  for (const TensorRow& row : rows)
    json["rows"].push_back(row_json(row, options, bus_factor, meter));
  return json;
}

int work(const TensorOptions& options, const std::vector<Trace>& traces, CostMeter& meter) {
  AttachedJob attached;
  if (Status opened = open_job(options, attached); !opened) return fail(opened.error().message);
  const bool daemon = mercury_context_get_mode(attached.context) == MERCURY_MODE_DAEMON;
  if (daemon) {
    meter.watch_daemon(daemon_socket());
  } else {
    meter.no_daemon("embedded: the engine is a thread of the program");
  }
  catch_interruptions();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  TensorSweep sweep(options, meter, attached.context, attached.job,
                    [terminal](const std::string& where) {
                      if (terminal) std::fprintf(stderr, "\r\033[K%s", where.c_str());
                    });
  const std::vector<TensorRow> rows = sweep.run(traces);
  if (terminal) std::fputs("\r\033[K", stderr);
  const char* engine = daemon ? "daemon" : "embedded";
  const int workers = mercury_job_get_workers(attached.job);
  const double bus_factor = 2.0 * (workers - 1) / workers;
  if (options.json != "-") {
    std::vector<Figures> figures;
    figures.reserve(rows.size());
    for (const TensorRow& row : rows) figures.push_back(row.figures);
    std::fputs((what_was_run(options, attached.job, engine) + what_is_exchanged(options, rows) +
                "\n" + tables_of(figures, {.bus_factor = bus_factor}, meter))
                   .c_str(),
               stdout);
  }
  if (!options.json.empty()) {
    const Json json = report_json(options, rows, attached.job, engine, meter, bus_factor);
    if (Status wrote = write_json(json, options.json); !wrote) return fail(wrote.error().message);
  }
  for (const TensorRow& row : rows) {
    if (row.figures.not_measured.empty()) continue;
    fail(size_text(row.figures.bytes) + ": not measured: " + row.figures.not_measured);
    return interrupted() ? interruption_status() : 1;
  }
  return 0;
}

}  // namespace

int run_tensors(const TensorOptions& options, CostMeter& meter) {
  if (options.role == "server") return serve_job(options, "mercury-perf");
  const Result<std::vector<Trace>> traces = traces_of(options);
  if (!traces) return fail(traces.error().message);
  if (Status writable = check_output(options.json); !writable)
    return fail(writable.error().message);
  return work(options, *traces, meter);
}

}  // namespace mercury::perf
