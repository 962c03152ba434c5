#include "apps/sim/model_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/output.h"
#include "apps/trace/shipped.h"
#include "transport/base/quantity.h"

namespace mercury::simulator {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownCandidates = 10;

uint64_t frames_of(const ModelReport& report) {
  uint64_t frames = 0;
  for (const TraceTensor& tensor : report.trace.tensors) {
    frames += frames_of(tensor, report.framing);
  }
  return frames;
}
uint64_t wire_bytes_of(const ModelReport& report) {
  return report.trace.bytes() + frames_of(report) * report.framing.overhead_bytes;
}

Json tensors_json(const ModelReport& report) {
  Json tensors = Json::array();
  for (size_t n = 0; n < report.trace.tensors.size(); ++n) {
    const TraceTensor& tensor = report.trace.tensors[n];
    const model::LayerTimes& times = report.findings.prediction.layers[n];
    tensors.push_back({{"name", tensor.name},
                       {"bytes", tensor.bytes()},
                       {"priority", tensor.priority},
                       {"ready_s", times.ready_s},
                       {"pushed_s", times.pushed_s},
                       {"pulled_s", times.pulled_s}});
  }
  return tensors;
}

Json json_of(const ModelReport& report) {
  const SimOptions& options = report.options;
  const ModelFindings& findings = report.findings;
  const model::Prediction& prediction = findings.prediction;
  const uint64_t wire_bytes = wire_bytes_of(report);
  Json json = {{"source", "model"},
               {"model", model_name(options.trace)},
               {"policy", print_policy(findings.policy)},
               {"workers", options.workers},
               {"servers", options.servers},
               {"mtu", options.mtu},
               {"ipv6", options.ipv6},
               {"worker_up_bps", options.worker_up_bps},
               {"worker_down_bps", options.worker_down_bps},
               {"server_up_bps", options.server_up_bps},
               {"server_down_bps", options.server_down_bps},
               {"iteration_s", prediction.iteration_s},
               {"oracle_s", findings.oracle_s},
               {"optimum_s", findings.optimum_s},
               {"framing_s", prediction.iteration_s - findings.unframed_s},
               {"speed", findings.oracle_s / prediction.iteration_s},
               {"bytes_up", report.trace.bytes()},
               {"bytes_down", report.trace.bytes()},
               {"wire_bytes_up", wire_bytes},
               {"wire_bytes_down", wire_bytes},
               {"frames", frames_of(report)},
               {"frame_overhead_bytes", report.framing.overhead_bytes},
               {"push_begin_s", prediction.push_begin_s},
               {"push_end_s", prediction.push_end_s},
               {"uplink_busy", prediction.uplink_busy}};
  if (findings.reach) {
    json["reach"] = {{"speed", findings.reach->speed},
                     {"bandwidth_factor", findings.reach->factor}};
  }
  for (size_t n = 0; n < std::min(kShownCandidates, findings.candidates.size()); ++n) {
    const model::Candidate& candidate = findings.candidates[n];
    json["candidates"].push_back(
        {{"policy", print_policy(candidate.policy)}, {"iteration_s", candidate.iteration_s}});
  }
  json["tensors"] = tensors_json(report);
  return json;
}

void print_table(const ModelReport& report) {
  const SimOptions& options = report.options;
  const ModelFindings& findings = report.findings;
  const model::Prediction& prediction = findings.prediction;
  std::printf("  %-20s %s: %zu tensors, %.3f MB\n", "model", model_name(options.trace).c_str(),
              report.trace.tensors.size(), static_cast<double>(report.trace.bytes()) * 1e-6);
  std::printf("  %-20s %s\n", "policy", print_policy(findings.policy).c_str());
  std::printf("  %-20s %u workers %s up %s down, %u servers %s up %s down\n", "cluster",
              options.workers, print_bits_per_second(options.worker_up_bps).c_str(),
              print_bits_per_second(options.worker_down_bps).c_str(), options.servers,
              print_bits_per_second(options.server_up_bps).c_str(),
              print_bits_per_second(options.server_down_bps).c_str());
  std::printf("  %-20s %.3f ms\n", "iteration", 1e3 * prediction.iteration_s);
  std::printf("  %-20s %.3f ms (%u bytes a frame at MTU %u)\n", "  of it framing",
              1e3 * (prediction.iteration_s - findings.unframed_s), report.framing.overhead_bytes,
              options.mtu);
  std::printf("  %-20s %.3f ms, no framing\n", "least possible", 1e3 * findings.optimum_s);
  std::printf("  %-20s %.3f ms: speed %.4f\n", "one worker alone", 1e3 * findings.oracle_s,
              findings.oracle_s / prediction.iteration_s);
  std::printf("  %-20s %.1f %% from %.3f to %.3f ms\n", "uplink busy", 100 * prediction.uplink_busy,
              1e3 * prediction.push_begin_s, 1e3 * prediction.push_end_s);
  if (findings.reach) {
    std::printf("  %-20s at %.6g times these bandwidths\n",
                ("speed " + std::to_string(findings.reach->speed)).c_str(), findings.reach->factor);
  }
  for (size_t n = 0; n < std::min(kShownCandidates, findings.candidates.size()); ++n) {
    std::printf("  %-20s %.3f ms  %s\n", n == 0 ? "best settings" : "",
                1e3 * findings.candidates[n].iteration_s,
                print_policy(findings.candidates[n].policy).c_str());
  }
}

}  // namespace

Status report_model(const ModelReport& report) {
  const std::string& path = report.options.json;
  if (path != "-") print_table(report);
  if (path.empty()) return {};
  // A file name, and so a model's, can hold bytes that are no UTF-8.
  const std::string text =
      json_of(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return write_output(path, text);
}

}  // namespace mercury::simulator
