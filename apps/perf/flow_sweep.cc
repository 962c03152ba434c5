#include "apps/perf/flow_sweep.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "apps/interruption.h"
#include "apps/output.h"
#include "apps/perf/figures.h"
#include "apps/perf/flows.h"
#include "apps/perf/talk.h"

namespace mercury::perf {
namespace {

struct FlowRow {
  Figures figures;
  Repeats up, down;  // Gbit/s of streams that were sent to hosts and that came from them
  std::vector<Repeats> of_flows;  // Gbit/s
  bool within_host = false;
};

int flow_error(const std::string& text) {
  std::fprintf(stderr, "mercury-perf: %s\n", text.c_str());
  return 1;
}

double gbit_per_s(uint64_t bytes, uint64_t ns) {
  return static_cast<double>(bytes) * 8 / static_cast<double>(ns);
}

// Of the other hosts' daemons. Each of a host's flows saw all that its daemon did meanwhile.
std::optional<uint64_t> peer_daemons_ns(const FlowsDone& done) {
  std::map<std::string, uint64_t> of_hosts;
  for (const Flow& flow : done.flows) {
    if (!flow.peer_daemon_ns) return std::nullopt;
    uint64_t& most = of_hosts[flow.host];
    most = std::max(most, *flow.peer_daemon_ns);
  }
  uint64_t sum = 0;
  for (const auto& [host, ns] : of_hosts) sum += ns;
  return sum;
}

void add_repeat(const FlowsDone& done, FlowRow& row) {
  Figures& figures = row.figures;
  const uint64_t taken_ns = done.end_ns - done.begin_ns;
  uint64_t up_bytes = 0, down_bytes = 0, operations = 0;
  row.of_flows.resize(done.flows.size());
  for (size_t n = 0; n < done.flows.size(); ++n) {
    const Flow& flow = done.flows[n];
    const uint64_t bytes = flow.count.blocks * figures.bytes;
    row.of_flows[n].values.push_back(gbit_per_s(bytes, flow.end_ns - done.begin_ns));
    (flow.request.kind == FlowRequest::Kind::kSource ? down_bytes : up_bytes) += bytes;
    operations += flow.count.blocks;
    figures.latency.add(flow.latency);
    figures.peer_cpu_ns = figures.peer_cpu_ns.value_or(0) + flow.peer_cpu_ns;
  }
  figures.peer_daemon_ns = sum(figures.peer_daemon_ns, peer_daemons_ns(done));
  figures.operations += operations;
  figures.total_bytes += up_bytes + down_bytes;
  row.up.values.push_back(gbit_per_s(up_bytes, taken_ns));
  row.down.values.push_back(gbit_per_s(down_bytes, taken_ns));
  figures.gbit_per_s.values.push_back(gbit_per_s(up_bytes + down_bytes, taken_ns));
  figures.operations_per_s.values.push_back(static_cast<double>(operations) * 1e9 /
                                            static_cast<double>(taken_ns));
}

void add_checked(const FlowsDone& done, FlowRow& row) {
  for (const Flow& flow : done.flows) row.figures.checked += flow.count.compared_bytes;
  row.within_host |= done.within_host;
}

Status measure_flows(const FlowOptions& options, const CostMeter& meter, FlowRow& row) {
  const uint64_t bytes = row.figures.bytes;
  const Result<FlowsDone> warm = run_flows(options, bytes, options.warmup_ns, true);
  if (!warm) return warm.error();
  add_checked(*warm, row);
  const CostSample none = meter.sample();
  row.figures.costs = none.since(none);
  if (!options.over_kernel()) row.figures.peer_daemon_ns = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const CostSample before = meter.sample();
    const Result<FlowsDone> done = run_flows(options, bytes, options.time_ns, options.check);
    if (!done) return done.error();
    row.figures.costs.add(meter.sample().since(before));
    add_repeat(*done, row);
    add_checked(*done, row);
  }
  return {};
}

std::string flow_heading(const FlowOptions& options) {
  std::string text = options.messages ? "requests and replies" : "streams " + options.direction;
  text += ", " + std::to_string(options.flows) +
          (options.flows == 1 ? " connection" : " connections") +
          (options.direction == "both" ? " each way" : "") + " with";
  for (const std::string& host : options.hosts) text += " " + host;
  text += options.over_kernel() ? ", over the kernel" : ", over Mercury";
  if (options.check) text += "; all bytes compared within their time";
  return text + "; " + std::to_string(options.repeats) +
         (options.repeats == 1 ? " repeat\n\n" : " repeats\n\n");
}

Json flow_row_json(const FlowRow& row, const FlowOptions& options, const CostMeter& meter) {
  const Figures& figures = row.figures;
  Json json = {{"bytes", figures.bytes}};
  if (!figures.not_measured.empty()) {
    json["not_measured"] = figures.not_measured;
    return json;
  }
  json["operations"] = figures.operations;
  json["gbit_per_s"] = json_of(figures.gbit_per_s);
  json["operations_per_s"] = json_of(figures.operations_per_s);
  if (options.messages) {
    json["reply_bytes"] = options.reply_bytes > 0 ? options.reply_bytes : figures.bytes;
    json["latency_us"] = json_of(figures.latency);
  } else {
    json["up_gbit_per_s"] = json_of(options.direction == "down" ? Repeats{} : row.up);
    json["down_gbit_per_s"] = json_of(options.direction == "up" ? Repeats{} : row.down);
  }
  for (const Repeats& flow : row.of_flows) json["flows_gbit_per_s"].push_back(json_of(flow));
  json["cost"] = json_of(figures.costs, figures, meter);
  json["within_host"] = row.within_host;
  json["checked_bytes"] = figures.checked;
  return json;
}

Json flow_report(const FlowOptions& options, const std::vector<FlowRow>& rows,
                 const CostMeter& meter) {
  Json json = {{"kind", options.messages ? "messages" : "stream"},
               {"hosts", options.hosts},
               {"over", options.over},
               {"flows", options.flows},
               {"repeats", options.repeats},
               {"time_s", static_cast<double>(options.time_ns) * 1e-9},
               {"check", options.check},
               {"interrupted", interrupted()}};
  if (!options.messages) json["direction"] = options.direction;
  for (const FlowRow& row : rows) json["rows"].push_back(flow_row_json(row, options, meter));
  return json;
}

std::vector<FlowRow> measure_sizes(const FlowOptions& options, const CostMeter& meter) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::vector<FlowRow> rows;
  bool going = true;
  for (const uint64_t bytes : options.sizes) {
    FlowRow& row = rows.emplace_back();
    row.figures.bytes = bytes;
    if (terminal) std::fprintf(stderr, "\r\033[K%s", size_text(bytes).c_str());
    const Status measured = going ? measure_flows(options, meter, row)
                                  : Status(Error(Errc::kClosed, "not tried after that"));
    if (!measured) row.figures.not_measured = measured.error().message;
    going = measured.ok();
  }
  if (terminal) std::fputs("\r\033[K", stderr);
  return rows;
}

}  // namespace

int run_flow_sweep(const FlowOptions& options, CostMeter& meter) {
  if (Status writable = check_output(options.json); !writable) {
    return flow_error(writable.error().message);
  }
  if (options.over_kernel()) {
    meter.no_daemon("the kernel carries it");
  } else {
    meter.watch_daemon(sockets_path());
  }
  catch_interruptions();
  const std::vector<FlowRow> rows = measure_sizes(options, meter);
  if (options.json != "-") {
    std::vector<Figures> figures;
    figures.reserve(rows.size());
    for (const FlowRow& row : rows) figures.push_back(row.figures);
    const TableForm form{.bus_factor = std::nullopt, .times = options.messages, .peers = true};
    std::string text = flow_heading(options) + tables_of(figures, form, meter);
    if (std::any_of(rows.begin(), rows.end(), [](const FlowRow& row) { return row.within_host; })) {
      text +=
          "within this host: such connections are pairs of the kernel's, which no daemon carries\n";
    }
    std::fputs(text.c_str(), stdout);
  }
  if (!options.json.empty()) {
    const Json json = flow_report(options, rows, meter);
    if (Status wrote = write_json(json, options.json); !wrote)
      return flow_error(wrote.error().message);
  }
  for (const FlowRow& row : rows) {
    if (row.figures.not_measured.empty()) continue;
    flow_error(size_text(row.figures.bytes) + ": not measured: " + row.figures.not_measured);
    return interrupted() ? interruption_status() : 1;
  }
  return 0;
}

}  // namespace mercury::perf
