#include "apps/replay/report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/output.h"
#include "apps/trace/shipped.h"

namespace mercury {
namespace {

double megabytes(uint64_t bytes) { return static_cast<double>(bytes) * 1e-6; }

[[gnu::format(printf, 3, 4)]] void row(std::string& table, const char* name, const char* format,
                                       ...) {
  char value[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(value, sizeof value, format, arguments);
  va_end(arguments);
  char line[320];
  std::snprintf(line, sizeof line, "  %-20s %s\n", name, value);
  table += line;
}

std::string scale_text(const ReplayOptions& options) {
  std::string text;
  char part[80];
  if (options.size_scale != 1) {
    std::snprintf(part, sizeof part, "elements divided by %g", options.size_scale);
    text += part;
  }
  if (options.time_scale != 1) {
    std::snprintf(part, sizeof part, "%scompute times multiplied by %g", text.empty() ? "" : ", ",
                  options.time_scale);
    text += part;
  }
  if (!options.dtype.empty()) {
    text += (text.empty() ? "all tensors as " : ", all tensors as ") + options.dtype;
  }
  return text.empty() ? "as in the trace" : text;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

std::string table_text(const ReplaySummary& summary) {
  const ReplayOptions& options = summary.options;
  const ReplayFigures& figures = summary.figures;
  const auto [low, high] =
      std::minmax_element(figures.iteration_s.begin(), figures.iteration_s.end());
  std::string table;
  row(table, "model", "%.200s", model_name(options.trace).c_str());
  row(table, "tensors", "%zu, %.3f MB", summary.trace.tensors.size(),
      megabytes(summary.trace.bytes()));
  row(table, "scale", "%s", scale_text(options).c_str());
  row(table, "job", "worker %d of %d, %d server%s, %s", summary.rank, options.workers,
      options.servers, options.servers == 1 ? "" : "s", summary.engine.c_str());
  row(table, "policy", "%s", options.policy.c_str());
  row(table, "iterations", "%zu, after %d of warm-up%s", figures.iteration_s.size(), options.warmup,
      summary.interrupted ? "; interrupted" : "");
  row(table, "iteration", "%.2f ms median, %.2f to %.2f ms", 1e3 * median(figures.iteration_s),
      1e3 * *low, 1e3 * *high);
  row(table, "  of it computing", "%.2f ms", 1e3 * median(figures.compute_s));
  row(table, "  of it payload", "%.2f ms that did not fit beside computing",
      1e3 * median(figures.payload_s));
  row(table, "pushed, pulled", "%.3f MB, %.3f MB (warm-up included)", megabytes(figures.bytes_up),
      megabytes(figures.bytes_down));
  if (options.verify) {
    row(table, "verified", "%llu elements, %llu wrong",
        static_cast<unsigned long long>(summary.found.verified_elements),
        static_cast<unsigned long long>(summary.found.mismatches));
  } else {
    row(table, "verified", "nothing (--no-verify)");
  }
  return table;
}

Status write_report(const ReplaySummary& summary, const std::string& path) {
  const ReplayOptions& options = summary.options;
  const ReplayFigures& figures = summary.figures;
  nlohmann::json tensors = nlohmann::json::array();
  for (size_t n = 0; n < summary.trace.tensors.size(); ++n) {
    const TraceTensor& tensor = summary.trace.tensors[n];
    tensors.push_back({{"name", tensor.name},
                       {"bytes", tensor.bytes()},
                       {"priority", tensor.priority},
                       {"ready_s", median(figures.tensors[n].ready_s)},
                       {"pulled_s", median(figures.tensors[n].pulled_s)}});
  }
  const nlohmann::json report = {{"model", model_name(options.trace)},
                                 {"bytes", summary.trace.bytes()},
                                 {"policy", options.policy},
                                 {"engine", summary.engine},
                                 {"rank", summary.rank},
                                 {"workers", options.workers},
                                 {"servers", options.servers},
                                 {"size_scale", options.size_scale},
                                 {"time_scale", options.time_scale},
                                 {"warmup", options.warmup},
                                 {"interrupted", summary.interrupted},
                                 {"iteration_s", median(figures.iteration_s)},
                                 {"iterations_s", figures.iteration_s},
                                 {"compute_s", median(figures.compute_s)},
                                 {"payload_s", median(figures.payload_s)},
                                 {"bytes_up", figures.bytes_up},
                                 {"bytes_down", figures.bytes_down},
                                 {"verified_elements", summary.found.verified_elements},
                                 {"mismatches", summary.found.mismatches},
                                 {"tensors", std::move(tensors)}};
  // A file name, and so a model's, can hold bytes that are no UTF-8.
  return write_output(path,
                      report.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace mercury
