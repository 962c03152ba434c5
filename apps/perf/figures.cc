#include "apps/perf/figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "apps/output.h"
#include "apps/replay/report.h"
#include "transport/base/quantity.h"

namespace mercury::perf {
namespace {

constexpr std::array<std::pair<const char*, uint64_t>, 4> kPercentiles = {
    {{"p50", 500}, {"p90", 900}, {"p99", 990}, {"p99.9", 999}}};

Json json_of(std::optional<double> figure) { return figure ? Json(*figure) : Json(nullptr); }

std::optional<double> micros(std::optional<uint64_t> ns) {
  if (!ns) return std::nullopt;
  return static_cast<double>(*ns) * 1e-3;
}

std::optional<double> per(std::optional<uint64_t> cost, uint64_t count) {
  if (!cost || count == 0) return std::nullopt;
  return static_cast<double>(*cost) / static_cast<double>(count);
}

std::optional<double> times(std::optional<double> figure, double factor) {
  if (!figure) return std::nullopt;
  return *figure * factor;
}

[[gnu::format(printf, 2, 3)]] void put(std::string& text, const char* format, ...) {
  char part[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(part, sizeof part, format, arguments);
  va_end(arguments);
  text += part;
}

void put_times(std::string& table, const LatencyHistogram& latency) {
  for (const auto& [name, per_mille] : kPercentiles) {
    put(table, " %9s", text_of(micros(latency.percentile_ns(per_mille)), 1).c_str());
  }
  put(table, " %9s", text_of(micros(latency.max_ns()), 1).c_str());
}

void put_rates(std::string& table, const Figures& row, const TableForm& form) {
  put(table, "%10s %11llu", size_text(row.bytes).c_str(),
      static_cast<unsigned long long>(row.operations));
  const std::optional<double> rate = row.gbit_per_s.median();
  put(table, " %9s %5s %%", rate_text(rate).c_str(),
      text_of(times(row.gbit_per_s.spread(), 100), 0).c_str());
  if (form.bus_factor) {
    put(table, " %9s",
        rate_text(*form.bus_factor > 0 ? times(rate, *form.bus_factor) : std::nullopt).c_str());
  }
  put(table, " %11s", rate_text(row.operations_per_s.median()).c_str());
  if (form.times) put_times(table, row.latency);
  table += "\n";
}

void put_costs(std::string& table, const Figures& row, const TableForm& form) {
  const CostSample& costs = row.costs;
  put(table, "%10s", size_text(row.bytes).c_str());
  std::vector<std::optional<uint64_t>> spent = {costs.program_ns, costs.daemon_ns};
  if (form.peers) spent.insert(spent.end(), {row.peer_cpu_ns, row.peer_daemon_ns});
  for (const std::optional<uint64_t> ns : spent) {
    put(table, " %12s %11s", text_of(times(per(ns, row.operations), 1e-3)).c_str(),
        text_of(per(ns, row.total_bytes), 3).c_str());
  }
  put(table, " %10s %8s\n", text_of(per(costs.cycles, row.operations), 0).c_str(),
      text_of(per(costs.cycles, row.total_bytes), 3).c_str());
}

void put_reasons(std::string& table, const std::vector<Figures>& rows, const TableForm& form,
                 const CostMeter& meter) {
  if (form.bus_factor && *form.bus_factor <= 0) {
    table += "bus -: a ring of one worker sends nothing\n";
  }
  if (!meter.why_no_daemon().empty()) put(table, "daemon -: %s\n", meter.why_no_daemon().c_str());
  if (!meter.why_no_cycles().empty()) put(table, "cycles -: %s\n", meter.why_no_cycles().c_str());
  const bool untold = std::any_of(rows.begin(), rows.end(), [](const Figures& row) {
    return row.not_measured.empty() && !row.peer_daemon_ns;
  });
  if (untold && form.peers) {
    const std::string& why = meter.why_no_daemon();
    put(table, "its daemon -: %s\n",
        why.empty() ? "a mercury-perf serve could not tell" : why.c_str());
  }
  const bool few = std::any_of(rows.begin(), rows.end(), [](const Figures& row) {
    return row.not_measured.empty() && !row.latency.percentile_ns(kPercentiles.back().second);
  });
  if (few && form.times) {
    table += "p99.9 -, p99 -, p90 -: too few operations for one to lie beyond it\n";
  }
}

}  // namespace

std::optional<double> Repeats::median() const {
  if (values.empty()) return std::nullopt;
  return mercury::median(values);
}

std::optional<double> Repeats::spread() const {
  const std::optional<double> middle = median();
  if (!middle || *middle <= 0) return std::nullopt;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return (*high - *low) / *middle;
}

Json json_of(const Repeats& repeats) {
  return {{"median", json_of(repeats.median())},
          {"spread", json_of(repeats.spread())},
          {"repeats", repeats.values}};
}

Json json_of(const LatencyHistogram& latency) {
  Json json = {{"count", latency.count()}};
  for (const auto& [name, per_mille] : kPercentiles) {
    json[name] = json_of(micros(latency.percentile_ns(per_mille)));
  }
  json["max"] = latency.count() > 0 ? json_of(micros(latency.max_ns())) : Json(nullptr);
  return json;
}

Json json_of(const CostSample& costs, const Figures& figures, const CostMeter& meter) {
  const auto both = [&](std::optional<uint64_t> cost, double factor) {
    return Json{{"per_operation", json_of(times(per(cost, figures.operations), factor))},
                {"per_byte", json_of(times(per(cost, figures.total_bytes), factor))}};
  };
  Json json = {{"program_cpu_ns", both(costs.program_ns, 1)},
               {"daemon_cpu_ns", both(costs.daemon_ns, 1)},
               {"program_cycles", both(costs.cycles, 1)}};
  if (figures.peer_cpu_ns) {
    json["peer_cpu_ns"] = both(figures.peer_cpu_ns, 1);
    json["peer_daemon_cpu_ns"] = both(figures.peer_daemon_ns, 1);
  }
  if (!costs.daemon_ns) json["no_daemon_cpu"] = meter.why_no_daemon();
  if (!costs.cycles) json["no_cycles"] = meter.why_no_cycles();
  if (costs.cycles) json["cycles_of"] = meter.cycles_scope();
  return json;
}

std::string text_of(std::optional<double> figure, int decimals) {
  if (!figure) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, *figure);
  return text;
}

std::string rate_text(std::optional<double> rate) {
  const double magnitude = rate && *rate > 0 ? std::floor(std::log10(*rate)) : 0;
  return text_of(rate, std::clamp(3 - static_cast<int>(magnitude), 0, 6));
}

std::string size_text(uint64_t bytes) { return print_bytes(bytes); }

std::string tables_of(const std::vector<Figures>& rows, const TableForm& form,
                      const CostMeter& meter) {
  std::string rates, costs, tables;
  put(rates, "%10s %11s %9s %7s", "size", "operations", "Gbit/s", "spread");
  if (form.bus_factor) put(rates, " %9s", "bus");
  put(rates, " %11s", "op/s");
  if (form.times) {
    for (const auto& [name, per_mille] : kPercentiles) put(rates, " %6s us", name);
    put(rates, " %6s us", "max");
  }
  put(costs, "\n\nprocessor time of an operation\n%10s %12s %11s %12s %11s", "size", "program us",
      "ns/byte", "daemon us", "ns/byte");
  if (form.peers) put(costs, " %12s %11s %12s %11s", "peer us", "ns/byte", "its daemon", "ns/byte");
  put(costs, " %10s %8s\n", "cycles/op", "/byte");
  rates += "\n";
  bool any = false;
  for (const Figures& row : rows) {
    if (!row.not_measured.empty()) continue;
    any = true;
    put_rates(rates, row, form);
    put_costs(costs, row, form);
  }
  if (any) tables = rates + costs.substr(1) + "\n";
  for (const Figures& row : rows) {
    if (row.not_measured.empty()) continue;
    put(tables, "%s: not measured: %s\n", size_text(row.bytes).c_str(), row.not_measured.c_str());
  }
  if (any) put_reasons(tables, rows, form, meter);
  return tables;
}

Status write_json(const Json& json, const std::string& path) {
  // A file name, and so a model's, can hold bytes that are no UTF-8.
  return write_output(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace mercury::perf
