// What a replay ends with: a table for people and a JSON file for programs.
#pragma once

#include <string>
#include <vector>

#include "apps/replay/options.h"
#include "apps/replay/payload_work.h"
#include "apps/replay/replayer.h"
#include "apps/trace/trace.h"
#include "transport/base/result.h"

namespace mercury {

struct ReplaySummary {
  const ReplayOptions& options;
  const Trace& trace;  // scaled
  const ReplayFigures& figures;
  const PayloadWork::Found& found;
  int rank = 0;
  std::string engine;  // "daemon" or "embedded"
  bool interrupted = false;
};

// The middle value, the upper one of two; 0 of none.
double median(std::vector<double> values);

std::string table_text(const ReplaySummary& summary);
// Error: kSystem.
Status write_report(const ReplaySummary& summary, const std::string& path);

}  // namespace mercury
