// What several repeats of one measurement have in common, and the figures of a measurement: of
// tensors, streams or messages alike.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/perf/costs.h"
#include "apps/perf/latency.h"
#include "transport/base/result.h"

namespace mercury::perf {

using Json = nlohmann::ordered_json;  // of reports: figures stay in their order

// One figure of each repeat; empty: nothing was measured.
struct Repeats {
  std::vector<double> values;
  std::optional<double> median() const;
  // (largest - smallest) / median.
  std::optional<double> spread() const;
};

struct Figures {
  uint64_t bytes = 0;       // of one operation; of a model, of all its tensors together
  uint64_t operations = 0;  // of all repeats
  uint64_t total_bytes = 0;
  Repeats gbit_per_s, operations_per_s;
  LatencyHistogram latency;
  CostSample costs;
  std::optional<uint64_t> peer_cpu_ns;     // of the other ends' programs
  std::optional<uint64_t> peer_daemon_ns;  // and of their daemons: all that these did
  uint64_t checked = 0;                    // elements or bytes that were compared, and right
  std::string not_measured;                // why there are no figures; empty: there are
};

// null where there is no figure.
Json json_of(const Repeats& repeats);
Json json_of(const LatencyHistogram& latency);
Json json_of(const CostSample& costs, const Figures& figures, const CostMeter& meter);

// "-" where there is no figure.
std::string text_of(std::optional<double> figure, int decimals = 2);
std::string rate_text(std::optional<double> rate);  // four digits
std::string size_text(uint64_t bytes);

struct TableForm {
  // What the rate is multiplied by for that of a bus (docs/perf.md); none: no such column.
  std::optional<double> bus_factor;
  bool times = true;   // of an operation
  bool peers = false;  // what the other ends' programs and daemons took
};
// Two tables of rows: rates and times, then costs; and below why there is a "-".
std::string tables_of(const std::vector<Figures>& rows, const TableForm& form,
                      const CostMeter& meter);

// To `path`, or to standard output if that is "-". Error: kSystem.
Status write_json(const Json& json, const std::string& path);

}  // namespace mercury::perf
