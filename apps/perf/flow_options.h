// The options of mercury-perf stream, messages and serve.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/perf/talk.h"
#include "transport/base/result.h"

namespace mercury::perf {

inline constexpr uint64_t kLargestBlock = 64 << 20;       // both ends hold one for each flow
inline constexpr uint64_t kMostHeld = uint64_t{1} << 30;  // by all flows of a client
inline constexpr int kMostFlows = 512;

struct FlowOptions {
  bool messages = false;           // requests and replies; else bulk
  std::vector<std::string> hosts;  // each with a mercury-perf serve
  uint16_t port = kDefaultPort;
  int flows = 1, repeats = 5;    // flows with each host
  std::string direction = "up";  // "up", "down", "both"
  std::string over = "mercury", json;
  std::vector<uint64_t> sizes;
  uint64_t reply_bytes = 0;  // 0: as many as the request has
  uint64_t time_ns = 1'000'000'000, warmup_ns = 200'000'000;
  bool check = false;

  bool over_kernel() const { return over == "kernel"; }
};

struct ServeOptions {
  std::string bind;  // an address; empty: all of this host
  uint16_t port = kDefaultPort;
  uint64_t memory_bytes = kMostHeld;  // for all connections
};

// The options must outlive what these return.
CLI::App* add_stream_command(CLI::App& app, FlowOptions& options);
CLI::App* add_messages_command(CLI::App& app, FlowOptions& options);
CLI::App* add_serve_command(CLI::App& app, ServeOptions& options);
// What no single option can tell. Error: kInvalidArgument.
Status check_flows(const FlowOptions& options);

}  // namespace mercury::perf
