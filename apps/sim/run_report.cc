#include "apps/sim/run_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/output.h"
#include "apps/sim/run_expected.h"

namespace mercury::simulator {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSteady = 0.001;  // iterations that differ less are alike

Json tensors_json(const RunReport& report, const SimulatedJob& job) {
  Json tensors = Json::array();
  for (size_t n = 0; n < job.trace.tensors.size(); ++n) {
    const TraceTensor& tensor = job.trace.tensors[n];
    tensors.push_back({{"name", tensor.name},
                       {"bytes", tensor.bytes()},
                       {"priority", tensor.priority},
                       {"ready_s", job.ready_s(n, report.run.warmup)},
                       {"pulled_s", job.pulled_s(n, report.run.warmup)}});
  }
  return tensors;
}

Json job_json(const RunReport& report, const SimulatedJob& job) {
  const Expected model = expected(report.options, report.run, job);
  const double iteration_s = job.iteration_s(report.run.warmup);
  const double left_s = iteration_s - model.model_s - model.latency_s;
  return {{"model", job.model},
          {"policy", print_policy(job.policy)},
          {"iterations", job.iterations()},
          {"iteration_s", iteration_s},
          {"spread", job.spread(report.run.warmup)},
          {"oracle_s", model.oracle_s},
          {"optimum_s", model.optimum_s},
          {"speed", iteration_s > 0 ? model.oracle_s / iteration_s : 0},
          {"model_s", model.model_s},
          {"framing_s", model.framing_s},
          {"latency_s", model.latency_s},
          {"protocol_s", model.model_s > 0 ? left_s : 0},
          {"bytes_up", job.trace.bytes()},
          {"bytes_down", job.trace.bytes()},
          {"tensors", tensors_json(report, job)}};
}

Json hosts_json(const RunReport& report) {
  Json hosts = Json::array();
  const SimulationResult& result = report.result;
  const auto measured = static_cast<double>(
      std::max<size_t>(1, result.jobs.front().iterations() > report.run.warmup
                              ? result.jobs.front().iterations() - report.run.warmup
                              : 1));
  for (uint32_t host = 0; host < result.up.size(); ++host) {
    const bool worker = host < report.options.workers;
    hosts.push_back(
        {{"role", worker ? "worker" : "server"},
         {"rank", worker ? host : host - report.options.workers + report.run.colocated},
         {"wire_bytes_up", static_cast<double>(result.up[host].wire_bytes) / measured},
         {"wire_bytes_down", static_cast<double>(result.down[host].wire_bytes) / measured},
         {"longest_wait_up_s", 1e-12 * static_cast<double>(result.up[host].longest_wait_ps)},
         {"longest_wait_down_s", 1e-12 * static_cast<double>(result.down[host].longest_wait_ps)},
         {"frames_up", static_cast<double>(result.up[host].frames) / measured},
         {"frames_down", static_cast<double>(result.down[host].frames) / measured}});
  }
  return hosts;
}

Json json_of(const RunReport& report) {
  const SimOptions& options = report.options;
  const EvenLinks links = even_links(options, report.run);
  Json json = {{"source", "simulation"},
               {"workers", options.workers},
               {"servers", options.servers},
               {"colocated", report.run.colocated},
               {"mtu", options.mtu},
               {"ipv6", options.ipv6},
               {"seed", report.run.seed},
               {"payload", report.run.payload},
               {"worker_up_bps", links.worker_up},
               {"worker_down_bps", links.worker_down},
               {"server_up_bps", links.server_up},
               {"server_down_bps", links.server_down},
               {"interrupted", report.result.interrupted},
               {"frames", report.result.frames},
               {"retransmits", report.result.retransmits},
               {"drops", report.result.drops}};
  if (report.run.frame_cost_ns > 0) {
    json["frame_cost_s"] = 1e-9 * static_cast<double>(report.run.frame_cost_ns);
  }
  json.update(job_json(report, report.result.jobs.front()));
  json["hosts"] = hosts_json(report);
  for (size_t n = 1; n < report.result.jobs.size(); ++n) {
    json["other_jobs"].push_back(job_json(report, report.result.jobs[n]));
  }
  return json;
}

void print_table(const RunReport& report) {
  for (const SimulatedJob& job : report.result.jobs) {
    const Expected model = expected(report.options, report.run, job);
    const double iteration_s = job.iteration_s(report.run.warmup);
    std::printf("  %-20s %s: %zu tensors, %.3f MB\n", "model", job.model.c_str(),
                job.trace.tensors.size(), static_cast<double>(job.trace.bytes()) * 1e-6);
    std::printf("  %-20s %s\n", "policy", print_policy(job.policy).c_str());
    std::printf("  %-20s %.3f ms, of %zu iterations and %u workers", "iteration", 1e3 * iteration_s,
                job.iterations() - report.run.warmup, report.options.workers);
    const double spread = job.spread(report.run.warmup);
    if (spread > kSteady) std::printf(", which are up to %.1f %% apart", 100 * spread);
    std::printf("\n");
    if (model.optimum_s > 0) {
      std::printf("  %-20s %.3f ms, no framing\n", "least possible", 1e3 * model.optimum_s);
    } else {
      std::printf("  %-20s unknown: links or workers differ, or change, or servers share links\n",
                  "least possible");
    }
    if (model.model_s > 0) std::printf("  %-20s %.3f ms\n", "equations", 1e3 * model.model_s);
    std::printf("  %-20s %.3f ms: speed %.4f\n", "one worker alone", 1e3 * model.oracle_s,
                model.oracle_s / iteration_s);
  }
  std::printf("  %-20s %llu, %llu sent again, %llu lost\n", "frames",
              static_cast<unsigned long long>(report.result.frames),
              static_cast<unsigned long long>(report.result.retransmits),
              static_cast<unsigned long long>(report.result.drops));
  if (report.cpu_s > 0) {
    std::printf("  %-20s %.2f s, %.2f million frames a second\n", "CPU time", report.cpu_s,
                1e-6 * static_cast<double>(report.result.frames) / report.cpu_s);
  }
}

std::string csv_of(const RunReport& report) {
  std::string text = "job,model,policy,worker,iteration,begin_s,iteration_s\n";
  char line[256];
  for (size_t n = 0; n < report.result.jobs.size(); ++n) {
    const SimulatedJob& job = report.result.jobs[n];
    for (size_t rank = 0; rank < job.workers.size(); ++rank) {
      const auto& iterations = job.workers[rank]->iterations();
      for (size_t i = 0; i < iterations.size(); ++i) {
        // The policy's knobs are separated by commas.
        std::snprintf(line, sizeof line, ",%zu,%zu,%.9f,%.9f\n", rank, i,
                      1e-9 * static_cast<double>(iterations[i].begin_ns - report.result.begin_ns),
                      1e-9 * static_cast<double>(iterations[i].end_ns - iterations[i].begin_ns));
        text.append(std::to_string(n)).append(",\"").append(job.model).append("\",\"");
        text.append(print_policy(job.policy)).append("\"").append(line);
      }
    }
  }
  return text;
}

// What a worker's links carried since its sample before, as a counter that Perfetto draws.
void add_counters(const RunReport& report, Json& events) {
  const std::vector<LinkSample>& samples = report.result.samples;
  const size_t workers = report.options.workers;
  for (size_t n = workers; n < samples.size(); ++n) {
    const LinkSample &now = samples[n], &before = samples[n - workers];
    const double ns = static_cast<double>(now.time_ns - before.time_ns);
    const auto gbps = [&](uint64_t bytes) { return 8 * static_cast<double>(bytes) / ns; };
    events.push_back({{"name", "links, Gb/s"},
                      {"ph", "C"},
                      {"pid", now.worker},
                      {"ts", static_cast<double>(before.time_ns - report.result.begin_ns) * 1e-3},
                      {"args",
                       {{"up", gbps(now.bytes_up - before.bytes_up)},
                        {"down", gbps(now.bytes_down - before.bytes_down)}}}});
  }
}

// Chrome's trace format: a process per job and worker, its computing and its exchanges.
std::string timeline_of(const RunReport& report) {
  Json events = Json::array();
  const auto micros = [&](uint64_t ns) {
    return static_cast<double>(ns - report.result.begin_ns) * 1e-3;
  };
  for (size_t n = 0; n < report.result.jobs.size(); ++n) {
    const SimulatedJob& job = report.result.jobs[n];
    for (size_t rank = 0; rank < job.workers.size(); ++rank) {
      const size_t process = n * job.workers.size() + rank;
      const std::string name = job.model + " worker " + std::to_string(rank);
      events.push_back(
          {{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
      for (const Span& span : job.workers[rank]->spans()) {
        const bool exchange = span.kind == Span::Kind::kExchange;
        const char* prefix = exchange                            ? ""
                             : span.kind == Span::Kind::kForward ? "forward "
                                                                 : "backward ";
        events.push_back({{"name", prefix + job.trace.tensors[span.tensor].name},
                          {"cat", exchange ? "exchange" : "compute"},
                          {"ph", "X"},
                          {"pid", process},
                          // Exchanges overlap: each tensor has a line of its own.
                          {"tid", exchange ? span.tensor + 1 : 0},
                          {"ts", micros(span.begin_ns)},
                          {"dur", static_cast<double>(span.end_ns - span.begin_ns) * 1e-3},
                          {"args", {{"iteration", span.iteration}}}});
      }
    }
  }
  add_counters(report, events);
  return Json{{"traceEvents", std::move(events)}}.dump() + "\n";
}

}  // namespace

Status report_run(const RunReport& report) {
  if (report.options.json != "-" && report.run.csv != "-") print_table(report);
  Status done;
  const auto put = [&](const std::string& path, auto text) {
    if (path.empty() || !done) return;
    done = write_output(path, text());
  };
  // A file name, and so a model's, can hold bytes that are no UTF-8.
  put(report.options.json, [&] {
    return json_of(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  });
  put(report.run.csv, [&] { return csv_of(report); });
  put(report.run.timeline, [&] { return timeline_of(report); });
  return done;
}

}  // namespace mercury::simulator
