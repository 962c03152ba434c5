// The model traces that come with Mercury, in apps/trace/traces (tools/make_traces.py).
#pragma once

#include <string>
#include <vector>

namespace mercury {

const std::vector<std::string>& shipped_models();
// The file of a shipped model, or `trace` itself.
std::string trace_path(const std::string& trace);
// The model's name for tables: a file's name without folder and ".csv".
std::string model_name(const std::string& trace);

}  // namespace mercury
