// The options of mercury-perf tensors.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/member_options.h"
#include "apps/trace/trace.h"
#include "transport/base/result.h"

namespace mercury::perf {

struct TensorOptions : MemberOptions {
  TensorOptions() { job = "perf"; }
  std::vector<uint64_t> sizes;  // bytes of a tensor; empty: not asked for
  std::string model;            // a shipped model's name or a trace file; empty: sizes
  std::string dtype, priorities = "same", json;
  int in_flight = 1, repeats = 5;
  uint64_t time_ns = 1'000'000'000, warmup_ns = 200'000'000;
  uint64_t rounds = 0;  // of each tensor in a repeat; 0: as many as fit into `time_ns`
  double size_scale = 1;
  bool check = false;
};

// `options` must outlive what this returns.
CLI::App* add_tensors_command(CLI::App& app, TensorOptions& options);
// What no single option can tell. Error: kInvalidArgument.
Status check_tensors(const CLI::App& command, const TensorOptions& options);

// What is exchanged at once: each size's tensors, or one model's. Error: kConfig, of a trace.
Result<std::vector<Trace>> traces_of(const TensorOptions& options);

}  // namespace mercury::perf
