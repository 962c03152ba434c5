#include "apps/replay/timeline.h"

#include <nlohmann/json.hpp>

#include "apps/output.h"

namespace mercury {
namespace {

nlohmann::json event(const std::string& name, Timeline::Kind kind, uint64_t iteration,
                     uint64_t begin_ns, uint64_t end_ns) {
  const bool exchange = kind == Timeline::Kind::kExchange;
  const char* prefix = exchange ? "" : kind == Timeline::Kind::kForward ? "forward " : "backward ";
  return {{"name", prefix + name},
          {"cat", exchange ? "exchange" : "compute"},
          {"ph", "X"},
          {"pid", 0},
          {"tid", exchange ? 1 : 0},
          {"ts", static_cast<double>(begin_ns) * 1e-3},
          {"dur", static_cast<double>(end_ns - begin_ns) * 1e-3},
          {"args", {{"iteration", iteration}}}};
}

}  // namespace

Status Timeline::write(const std::string& path) const {
  nlohmann::json events = nlohmann::json::array();
  for (const Span& span : spans_) {
    events.push_back(event(*span.name, span.kind, span.iteration, span.begin_ns, span.end_ns));
  }
  return write_output(path, nlohmann::json{{"traceEvents", std::move(events)}}.dump() + "\n");
}

}  // namespace mercury
