// What every command of mercury-sim is told: the model, the policy and the cluster.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/command_line.h"
#include "scheduler/policy.h"
#include "transport/base/result.h"

namespace mercury::simulator {

inline constexpr uint32_t kMinMtu = 1280;  // IPv6's least

struct SimOptions {
  std::string trace;  // a shipped model's name or a file
  Policy policy;
  uint32_t workers = 2, servers = 2;
  uint64_t bandwidth_bps = 10'000'000'000;          // of every link in each direction, but for:
  uint64_t worker_up_bps = 0, worker_down_bps = 0;  // 0: bandwidth_bps
  uint64_t server_up_bps = 0, server_down_bps = 0;
  uint32_t mtu = 9000;
  bool ipv6 = false;
  std::string json;  // a file, "-" for standard output, or empty
};

// Adds their options to a command. A value that makes no sense is refused while parsing, with what
// was expected; --policy is one of `policies`. `options` must outlive `command`.
using PolicyReader = Result<Policy> (*)(std::string_view);
void describe(CLI::App& command, SimOptions& options, PolicyReader read_policy,
              const std::string& policies);

// A whole bandwidth that a link can have.
Result<uint64_t> parse_link_rate(std::string_view text);

// `worker_up_bps` and the other three, where they are 0, become `bandwidth_bps`.
SimOptions with_all_links(SimOptions options);

struct OutputOption {
  const char* option;
  const std::string& path;          // empty: not asked for
  bool to_standard_output = false;  // "-" means it
};
// So that a long run does not end in this: each can be written, none is the trace or another one.
// Errors: kInvalidArgument, kSystem.
Status check_outputs(const std::string& trace, const std::vector<OutputOption>& outputs);

}  // namespace mercury::simulator
