// The client's side of streams and messages: connections with all hosts that begin together, and
// what each has carried.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/perf/blocks.h"
#include "apps/perf/flow_options.h"
#include "apps/perf/flow_request.h"
#include "apps/perf/latency.h"
#include "transport/base/result.h"

namespace mercury::perf {

struct Flow {
  std::string host;
  FlowRequest request;
  // What became of it.
  BlockCount count;
  LatencyHistogram latency;
  uint64_t end_ns = 0;       // the other end has all, or this one
  uint64_t peer_cpu_ns = 0;  // of the other program's thread
  std::optional<uint64_t>
      peer_daemon_ns;  // of that host's daemon, meanwhile; none: it is not known
  Status failed;
};

struct FlowsDone {
  std::vector<Flow> flows;
  uint64_t begin_ns = 0, end_ns = 0;  // of the last
  bool within_host = false;           // no daemon carried some of them
};

// One repeat: connects, begins everywhere at once, and ends after `time_ns` and what is under way
// then. `bytes` of a block or a request. Errors: of the first flow that failed, with its host;
// kClosed after a signal.
Result<FlowsDone> run_flows(const FlowOptions& options, uint64_t bytes, uint64_t time_ns,
                            bool compare);

}  // namespace mercury::perf
