#include "apps/ctl/doctor.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/stackd/config.h"
#include "apps/stackd/descriptors.h"
#include "apps/stackd/host_builder.h"
#include "transport/port/ethdev/checks.h"
#include "transport/port/uring/uring_port.h"

namespace mercury {
namespace {

using ethdev::Check;

constexpr char kSystemConfig[] = "/etc/mercury/stackd.toml";

Check check_configuration(const std::string& path, StackdConfig& config) {
  Result<StackdConfig> loaded = load_config(path, {});
  if (!loaded) return {"configuration", false, loaded.error().message, ""};
  config = *loaded;
  return {"configuration", true, path.empty() ? "defaults" : path, ""};
}

// Made and dropped: the surest way to know that io_uring, its limits and the address work.
Check check_uring(const StackdConfig& config) {
  Counters counters;
  uring::UringConfig port;
  IpAddress ip = IpAddress::v4(127, 0, 0, 1);
  if (config.port_kind == "uring" && !config.addresses.empty()) ip = config.addresses.front().ip;
  port.local = {ip, 0};
  Result<std::unique_ptr<uring::UringPort>> made = uring::UringPort::create(port, counters);
  if (!made) return {"io_uring", false, made.error().message, ""};
  return {"io_uring", true,
          "UDP payload up to " + std::to_string((*made)->info().max_udp_payload) + " bytes at " +
              ip.to_string(),
          ""};
}

// The daemon makes the folders that are missing.
Check check_attach_folder(const StackdConfig& config) {
  std::filesystem::path folder = std::filesystem::absolute(config.socket).parent_path();
  while (folder.has_relative_path() && access(folder.c_str(), F_OK) != 0) {
    folder = folder.parent_path();
  }
  if (access(folder.c_str(), W_OK) == 0) return {"attach socket", true, config.socket, ""};
  return {"attach socket", false, folder.string() + " is not writable",
          "mercury-stackd as root, or with another attach.socket"};
}

// The daemon raises its soft limit to the hard one.
Check check_descriptors(const StackdConfig& config) {
  const uint64_t limit = descriptor_limit().hard;
  const std::string lacking = descriptors_lacking(config, limit);
  if (!lacking.empty()) {
    return {"descriptors", false, lacking,
            "ulimit -n " + std::to_string(descriptors_needed(config))};
  }
  return {"descriptors", true,
          "up to " + std::to_string(descriptors_needed(config)) + " of " + std::to_string(limit),
          ""};
}

void print(const Check& check) {
  std::printf("%-8s %-16s %s\n", check.ok ? "ok" : "MISSING", check.name.c_str(),
              check.message.c_str());
  if (!check.fix.empty()) std::printf("         %-16s run: %s\n", "", check.fix.c_str());
}

}  // namespace

int run_doctor(const std::string& config_path, bool as_json) {
  const std::string path =
      config_path.empty() && access(kSystemConfig, F_OK) == 0 ? kSystemConfig : config_path;
  StackdConfig config;
  std::vector<Check> checks{check_configuration(path, config)};
  checks.push_back(check_attach_folder(config));
  checks.push_back(check_descriptors(config));
  checks.push_back(check_uring(config));
  if (config.port_kind == "ethdev" && checks.front().ok) {
    Result<ethdev::EthdevConfig> device = device_config(config);
    if (!device) {
      checks.push_back({"device", false, device.error().message, ""});
    } else {
      for (Check& check : ethdev::check_device(*device)) checks.push_back(std::move(check));
    }
  }
  bool good = true;
  nlohmann::json all = nlohmann::json::array();
  for (const Check& check : checks) {
    good = good && check.ok;
    if (as_json) {
      all.push_back(
          {{"name", check.name}, {"ok", check.ok}, {"message", check.message}, {"fix", check.fix}});
    } else {
      print(check);
    }
  }
  if (as_json) std::cout << all.dump(1) << "\n";
  return good ? 0 : 1;
}

}  // namespace mercury
