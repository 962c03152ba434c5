#include "apps/ctl/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/ctl/udp_ports.h"
#include "apps/stackd/config.h"
#include "apps/stackd/descriptors.h"
#include "apps/stackd/host_builder.h"
#include "apps/stackd/ports.h"
#include "shim/channel/seqpacket.h"

namespace mercury {
namespace {

using ethdev::Check;

constexpr char kSystemConfig[] = "/etc/mercury/stackd.toml";

Check check_configuration(const std::string& path, StackdConfig& config) {
  Result<StackdConfig> loaded = load_config(path, {});
  if (!loaded) {
    const bool readable = path.empty() || access(path.c_str(), R_OK) == 0;
    return {"configuration", false, loaded.error().message,
            readable ? "correct it; mercury-stackd --print-config shows every key"
                     : "mercury-stackd --print-config > FILE makes one; name it with --config"};
  }
  config = *loaded;
  return {"configuration", true, path.empty() ? "defaults" : path, ""};
}

// The daemon makes the folders that are missing.
Check check_attach_folder(const StackdConfig& config) {
  std::error_code gone;  // the folder that we are in
  std::filesystem::path folder = std::filesystem::absolute(config.socket, gone).parent_path();
  while (folder.has_relative_path() && access(folder.c_str(), F_OK) != 0) {
    folder = folder.parent_path();
  }
  if (access(folder.c_str(), W_OK) == 0) return {"attach socket", true, config.socket, ""};
  const std::string where = gone ? "the folder of " + config.socket : folder.string();
  return {"attach socket", false, where + " is not writable",
          "run mercury-stackd as root, or set attach.socket to a path in a folder of yours"};
}

// What they may do to the daemon (docs/security.md, "Programs on a host").
Check check_programs() {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (attach::refuse_descriptors(socket.get())) {
    return {"programs", true, "send the daemon no descriptors", ""};
  }
  return {"programs", true,
          "one that may attach can hold up the daemon's control thread, or an engine that carries "
          "sockets, by a socket that lingers, as Linux before 6.16 has it",
          "run Linux 6.16 or newer, or let programs that you trust attach alone (attach.group)"};
}

Check check_group(const StackdConfig& config) {
  const std::string& group = config.socket_group;
  const bool there = attach_group(config).has_value();
  return {"attach group", there, there ? group : "there is no group \"" + group + "\"",
          there ? "" : "groupadd --system " + group + ", or set attach.group to one that exists"};
}

Check check_engine_cores(const StackdConfig& config) {
  const Status good = check_cores(config);
  if (good) return {"engine cores", true, "may be used", ""};
  const std::vector<uint32_t> usable = usable_cores();
  std::string cores;  // too few: none is pinned
  for (size_t i = 0; i < config.engines && usable.size() >= config.engines; ++i) {
    cores += (i == 0 ? "" : ", ") + std::to_string(usable[i]);
  }
  return {"engine cores", false, good.error().message, "set engine.cores = [" + cores + "]"};
}

Check check_engine_scheduling(const StackdConfig& config) {
  const Result<std::string> good = check_scheduling(scheduling_of(config));
  if (good) return {"scheduling", true, config.scheduling + ": " + *good, ""};
  if (good.error().code == Errc::kUnsupported) {
    return {"scheduling", false, kThreadsTrouble, kThreadsRemedy};
  }
  return {"scheduling", true, kSchedulingTrouble, kSchedulingRemedy};  // the daemon warns, and runs
}

// Whose sums it adds.
Check check_jobs(const StackdConfig& config) {
  if (!config.serve) return {"jobs", true, "serves none (jobs.serve)", ""};
  if (config.open_jobs) {
    return {"jobs", true,
            "whoever reaches this host's UDP ports has it serve jobs, and takes up to half of its "
            "memory (jobs.open)",
            "set jobs.open = false, and list jobs with their secrets under [[job]]"};
  }
  if (config.jobs.empty()) {
    return {"jobs", true,
            "serves those alone of which a server program runs here: no [[job]] lists one, and "
            "jobs.open is false",
            ""};
  }
  const auto secret = std::ranges::count_if(
      config.jobs, [](const StackdConfig::JobSection& job) { return !job.secret.empty(); });
  return {"jobs", true,
          std::to_string(config.jobs.size()) + " listed, " + std::to_string(secret) +
              " of them with a secret",
          ""};
}

// With which other hosts.
Check check_sockets(const StackdConfig& config) {
  if (!config.sockets_serve) return {"sockets", true, "carries none (sockets.serve)", ""};
  if (!speaks_to_others(config)) {
    return {"sockets", true,
            "between programs of this host alone: no sockets.secret, and sockets.open is false",
            ""};
  }
  if (has_sockets_secret(config))
    return {"sockets", true, "with hosts that have sockets.secret, too", ""};
  return {"sockets", true,
          "whoever reaches this host's UDP ports from sockets.networks has sessions, and their "
          "memory, and reaches what programs of mercury-run listen at (sockets.open)",
          "set the same sockets.secret on all hosts"};
}

// The daemon raises its soft limit to the hard one.
Check check_descriptors(const StackdConfig& config) {
  const uint64_t limit = descriptor_limit().hard;
  const std::string lacking = descriptors_lacking(config, limit);
  if (!lacking.empty()) {
    const std::string needed = std::to_string(descriptors_needed(config));
    return {"descriptors", true, lacking,  // as much for so many programs less
            "ulimit -n " + needed + " (systemd: LimitNOFILE=" + needed + ")"};
  }
  return {"descriptors", true,
          "up to " + std::to_string(descriptors_needed(config)) + " of " + std::to_string(limit),
          ""};
}

void check_port(const StackdConfig& config, const std::string& path, std::vector<Check>& checks) {
  const PortRow& port = port_of(config);
  const std::string file =
      path.empty() ? kSystemConfig + std::string(", which is not there yet") : path;
  for (Check& check : port.diagnose(config, file)) checks.push_back(std::move(check));
  if (port.kernel_has_address(config)) {  // which must leave the ports alone
    for (Check& check : check_udp_ports(config)) checks.push_back(std::move(check));
  }
  const bool said = std::ranges::any_of(checks, [](const Check& c) { return c.name == "offload"; });
  if (said) return;
  if (auto offload = port.check_offload(config)) checks.push_back(std::move(*offload));
}

const char* level_of(const Check& check) {
  if (!check.ok) return "MISSING";
  return check.fix.empty() ? "ok" : "advice";
}

void print(const Check& check) {
  std::printf("%-8s %-16s %s\n", level_of(check), check.name.c_str(), check.message.c_str());
  if (!check.fix.empty()) {
    std::printf("         %-16s %s: %s\n", "", check.ok ? "better" : "fix", check.fix.c_str());
  }
}

}  // namespace

int run_doctor(const std::string& config_path, bool as_json) {
  const std::string path =
      config_path.empty() && access(kSystemConfig, F_OK) == 0 ? kSystemConfig : config_path;
  StackdConfig config;
  std::vector<Check> checks{check_configuration(path, config)};
  if (checks.front().ok) {  // else the rest would be about the defaults
    checks.push_back(check_attach_folder(config));
    checks.push_back(check_jobs(config));
    checks.push_back(check_sockets(config));
    checks.push_back(check_programs());
    if (!config.socket_group.empty()) checks.push_back(check_group(config));
    checks.push_back(check_descriptors(config));
    checks.push_back(check_engine_scheduling(config));
    if (!config.cores.empty()) checks.push_back(check_engine_cores(config));
    check_port(config, path, checks);
  }
  bool good = true;
  nlohmann::json all = nlohmann::json::array();
  for (const Check& check : checks) {
    good = good && check.ok;
    if (as_json) {
      all.push_back({{"name", check.name},
                     {"ok", check.ok},
                     {"level", level_of(check)},
                     {"message", check.message},
                     {"fix", check.fix}});
    } else {
      print(check);
    }
  }
  if (as_json)
    std::cout << all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  return good ? 0 : 1;
}

}  // namespace mercury
