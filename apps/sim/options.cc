#include "apps/sim/options.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "apps/output.h"
#include "scheduler/terms/members.h"
#include "transport/base/quantity.h"

namespace mercury::simulator {
namespace {

constexpr uint64_t kMinLinkBps = 1000, kMaxLinkBps = 100'000'000'000'000;
// The most that a frame's 16-bit payload length allows, and jumbo frames with room.
constexpr uint32_t kMaxMtu = 65535;

bool same_file(const std::string& a, const std::string& b) {
  std::error_code missing;
  return a == b || std::filesystem::equivalent(a, b, missing);
}

}  // namespace

Result<uint64_t> parse_link_rate(std::string_view text) {
  Result<uint64_t> rate = parse_bits_per_second(text);
  if (!rate || (*rate >= kMinLinkBps && *rate <= kMaxLinkBps)) return rate;
  return Error(Errc::kInvalidArgument, "'" + std::string(text) + "' is not from " +
                                           print_bits_per_second(kMinLinkBps) + " to " +
                                           print_bits_per_second(kMaxLinkBps));
}

void describe(CLI::App& command, SimOptions& options, PolicyReader read_policy,
              const std::string& policies) {
  command
      .add_option("--trace", options.trace,
                  "the model: a trace file, or one of vgg16, vgg19, alexnet, resnet50, mobilenet, "
                  "bert-base")
      ->required();
  add_parsed(
      command, "--policy", options.policy, read_policy,
      "one of " + policies + "; with knobs: bytescheduler:partition=4MB,credit=8MB,startup=50us")
      ->required();
  command.add_option("--workers", options.workers, "that all compute alike")
      ->capture_default_str()
      ->check(CLI::Range(1U, kMaxWorkers));
  command.add_option("--servers", options.servers, "that share every tensor evenly")
      ->capture_default_str()
      ->check(CLI::Range(1U, kMaxServers));
  add_parsed(command, "--bandwidth", options.bandwidth_bps, parse_link_rate,
             "of every link, each way [10Gbps]");
  add_parsed(command, "--worker-up", options.worker_up_bps, parse_link_rate,
             "of the workers' uplinks instead");
  add_parsed(command, "--worker-down", options.worker_down_bps, parse_link_rate,
             "of the workers' downlinks instead");
  add_parsed(command, "--server-up", options.server_up_bps, parse_link_rate,
             "of the servers' uplinks instead");
  add_parsed(command, "--server-down", options.server_down_bps, parse_link_rate,
             "of the servers' downlinks instead");
  command.add_option("--mtu", options.mtu, "IP packet bytes")
      ->capture_default_str()
      ->check(CLI::Range(kMinMtu, kMaxMtu));
  command.add_flag("--ipv6", options.ipv6, "frames carry IPv6 instead of IPv4");
  command.add_option("--json", options.json, "file for the figures, or - for standard output");
}

SimOptions with_all_links(SimOptions options) {
  for (uint64_t* rate : {&options.worker_up_bps, &options.worker_down_bps, &options.server_up_bps,
                         &options.server_down_bps}) {
    if (*rate == 0) *rate = options.bandwidth_bps;
  }
  return options;
}

Status check_outputs(const std::string& trace, const std::vector<OutputOption>& outputs) {
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    if (output->path.empty()) continue;
    const auto clashes = [&](const OutputOption& other) {
      return same_file(other.path, output->path);
    };
    const std::string named = output->option + (" " + output->path);
    if (same_file(trace, output->path)) {
      return Error(Errc::kInvalidArgument, named + " would overwrite the trace");
    }
    if (const auto other = std::find_if(outputs.begin(), output, clashes); other != output) {
      return Error(Errc::kInvalidArgument, named + " would overwrite " + other->option);
    }
    if (output->path == "-" && !output->to_standard_output) {
      return Error(Errc::kInvalidArgument, named + ": expected a file");
    }
    if (Status writable = check_output(output->path); !writable) return writable;
  }
  return {};
}

}  // namespace mercury::simulator
