// What a simulation found, as a table, JSON, CSV and a timeline (docs/simulator.md names the keys).
#pragma once

#include "apps/sim/simulation.h"

namespace mercury::simulator {

struct RunReport {
  const SimOptions& options;  // with_all_links()
  const RunOptions& run;
  const SimulationResult& result;
  double cpu_s = 0;  // shown to people alone: files and JSON are the same in every run
};

// To where the options say. Errors: kSystem.
Status report_run(const RunReport& report);

}  // namespace mercury::simulator
