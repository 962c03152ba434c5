#include "apps/stackd/host_builder.h"

#include <grp.h>
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "apps/stackd/memory_limits.h"
#include "shim/host/random.h"
#include "transport/port/ethdev/ethdev_port.h"
#include "transport/port/uring/uring_port.h"

namespace mercury {
namespace {

constexpr uint64_t kBitsPerByte = 8;
// Each engine has as much at least, or its part of the link would run dry between two frames.
constexpr uint64_t kTwoFramesBytes = 2 * 9216;

HostConfig host_config(const StackdConfig& config) {
  HostConfig host;
  EngineConfig& engine = host.lane.engine;
  engine.session.window = config.congestion == "fixed" ? WindowKind::kFixed : WindowKind::kAdaptive;
  engine.session.window_bytes = config.window_bytes;
  engine.session.delay_target_ns = config.delay_target_ns;
  engine.incast_queue_bytes = config.incast_queue_bytes / config.engines;
  engine.session.max_ack_delay_ns = config.ack_delay_ns;
  engine.session.min_probe_timeout_ns = config.min_probe_timeout_ns;
  engine.session.handshake_timeout_ns = config.handshake_timeout_ns;
  engine.session.peer_timeout_ns = config.peer_timeout_ns;
  engine.max_sessions = static_cast<uint32_t>(config.max_sessions);
  engine.tx_bound_bytes = std::max(config.tx_bound_bytes / config.engines,
                                   std::min(config.tx_bound_bytes, kTwoFramesBytes));
  host.lane.exchange.scheduler.max_sessions = engine.max_sessions;
  if (config.turns == "urgency") {
    host.lane.exchange.scheduler.turns = Scheduler::Turns::kUrgency;
  }
  host.lane.exchange.scheduler.max_jobs = static_cast<uint32_t>(config.max_jobs);
  host.policy.serve = config.serve;
  host.policy.open_jobs = config.open_jobs;
  host.policy.max_jobs = static_cast<uint32_t>(config.max_jobs);
  host.policy.max_tensors = static_cast<uint32_t>(config.max_tensors);
  host.policy.leave_grace_ns = config.leave_grace_ns;
  const MemoryLimits memory = memory_limits(config, physical_memory_bytes());
  host.policy.memory_limit_bytes = memory.job_bytes;
  host.policy.total_memory_bytes = memory.total_bytes;
  host.lane.exchange.sum_bytes = std::max<uint64_t>(1, memory.total_bytes / config.engines);
  for (const StackdConfig::Job& job : config.jobs) {
    host.policy.known.push_back({job.name, job.secret, job.memory_bytes});
  }
  return host;
}

std::vector<ThreadConfig> thread_configs(const StackdConfig& config) {
  std::vector<ThreadConfig> threads(config.engines);
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].polling = config.polling == "busy"        ? Polling::kBusy
                         : config.polling == "interrupt" ? Polling::kInterrupt
                                                         : Polling::kAdaptive;
    threads[i].spin_ns = config.spin_ns;
    threads[i].scheduling = scheduling_of(config);
    threads[i].name = "mercury-eng" + std::to_string(i);
    if (i < config.cores.size()) threads[i].core = static_cast<int>(config.cores[i]);
  }
  return threads;
}

Result<std::unique_ptr<Host>> opened(std::unique_ptr<Host> host) {
  if (const Status status = host->opened(); !status) return status.error();
  return host;
}

Result<std::unique_ptr<Host>> uring_host(const StackdConfig& config, const HostConfig& settings) {
  const IpAddress address = config.addresses.empty() ? IpAddress() : config.addresses.front().ip;
  std::vector<HostOf<uring::UringPort>::Part> parts;
  for (uint64_t engine = 0; engine < config.engines; ++engine) {
    auto counters = std::make_unique<Counters>();
    uring::UringConfig port_config;
    port_config.local = {address, static_cast<uint16_t>(config.udp_port + engine)};
    port_config.mtu = static_cast<uint32_t>(config.mtu);
    port_config.link_bytes_per_second = config.rate_bits_per_second / kBitsPerByte / config.engines;
    Result<std::unique_ptr<uring::UringPort>> port =
        uring::UringPort::create(port_config, *counters);
    if (!port) return port.error();
    parts.push_back({std::move(counters), std::move(*port)});
  }
  return opened(
      std::make_unique<HostOf<uring::UringPort>>(std::move(parts), settings, system_random));
}

Result<std::unique_ptr<Host>> ethdev_host(const StackdConfig& config, const HostConfig& settings) {
  Result<ethdev::EthdevConfig> device_settings = device_config(config);
  if (!device_settings) return device_settings.error();
  Result<std::shared_ptr<ethdev::Device>> device = ethdev::Device::create(*device_settings);
  if (!device) return device.error();
  std::vector<HostOf<ethdev::EthdevPort>::Part> parts;
  for (uint64_t engine = 0; engine < config.engines; ++engine) {
    auto counters = std::make_unique<Counters>();
    Result<std::unique_ptr<ethdev::EthdevPort>> port =
        ethdev::EthdevPort::open(*device, static_cast<uint16_t>(engine), *counters);
    if (!port) return port.error();
    parts.push_back({std::move(counters), std::move(*port)});
  }
  return opened(
      std::make_unique<HostOf<ethdev::EthdevPort>>(std::move(parts), settings, system_random));
}

}  // namespace

Scheduling scheduling_of(const StackdConfig& config) {
  if (config.scheduling == "realtime") return Scheduling::kRealtime;
  return config.scheduling == "urgent" ? Scheduling::kUrgent : Scheduling::kNormal;
}

Result<ethdev::EthdevConfig> device_config(const StackdConfig& config) {
  ethdev::EthdevConfig device;
  std::string name = config.device;
  if (name == "af_xdp" || name == "af_packet" || name == "tap") {
    if (config.interface.empty()) {
      return wrong_value(
          config, "port.interface",
          "expected the interface for device \"" + name + "\" (ip link lists them), got none");
    }
    name += ":" + config.interface;
  }
  if (name == "memif") name += ":" + config.memif_socket;
  if (name == "ring") name += ":mercury";
  if (!ethdev::parse_device(name, device)) {
    return wrong_value(config, "port.device",
                       "expected af_xdp, af_packet, tap, memif, ring or a PCI address such as "
                       "0000:03:00.0, got \"" +
                           config.device + "\"");
  }
  device.engines = static_cast<uint16_t>(config.engines);
  device.mtu = static_cast<uint32_t>(config.mtu);
  device.udp_port = static_cast<uint16_t>(config.udp_port);
  device.link_bytes_per_second = config.rate_bits_per_second / kBitsPerByte;
  device.memif.server = config.memif_role == "server";
  device.memif.id = static_cast<uint32_t>(config.memif_id);
  device.extra_args = config.device_args;
  device.hugepages = config.hugepages == "on"    ? ethdev::Hugepages::kAlways
                     : config.hugepages == "off" ? ethdev::Hugepages::kNever
                                                 : ethdev::Hugepages::kAuto;
  device.memory_mb = static_cast<uint32_t>(config.memory_bytes >> 20);
  for (const IpPrefix& prefix : config.addresses) {
    ethdev::LocalAddress address{prefix.ip, prefix.bits, std::nullopt};
    const IpAddress& gateway = prefix.ip.is_v4() ? config.gateway : config.gateway6;
    if (gateway != IpAddress()) address.gateway = gateway;
    (prefix.ip.is_v4() ? device.v4 : device.v6) = address;
  }
  return device;
}

std::vector<uint32_t> usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<uint32_t> cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (uint32_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

Status check_cores(const StackdConfig& config) {
  const std::vector<uint32_t> usable = usable_cores();
  if (usable.empty()) return {};  // what cannot be asked may still work
  for (const uint32_t core : config.cores) {
    if (std::find(usable.begin(), usable.end(), core) != usable.end()) continue;
    return wrong_value(
        config, "engine.cores",
        "expected CPUs that this process may run on (taskset -cp $$ shows them), got " +
            std::to_string(core));
  }
  return {};
}

Result<gid_t> attach_group(const StackdConfig& config) {
  if (config.socket_group.empty()) return static_cast<gid_t>(-1);
  if (const group* entry = getgrnam(config.socket_group.c_str())) return entry->gr_gid;
  return wrong_value(config, "attach.group",
                     "expected a group of this host, got \"" + config.socket_group +
                         "\"; groupadd --system " + config.socket_group + " makes it");
}

Status check_host(const StackdConfig& config) {
  if (Status cores = check_cores(config); !cores) return cores;
  if (const Result<gid_t> group = attach_group(config); !group) return group.error();
  if (config.port_kind == "uring") return {};
  const Result<ethdev::EthdevConfig> device = device_config(config);
  if (!device) return device.error();
  if (Status valid = ethdev::validate(*device); !valid) {
    return Error(valid.error().code, (config.file.empty() ? "defaults" : config.file) +
                                         ": [port]: " + valid.error().message);
  }
  if (device->has_netdev() && if_nametoindex(device->device.c_str()) == 0) {
    return wrong_value(
        config, "port.interface",
        "expected an interface of this host (ip link lists them), got \"" + device->device + "\"");
  }
  return {};
}

std::optional<ethdev::Check> check_offload(const StackdConfig& config) {
  if (config.port_kind == "uring") return ethdev::check_segmentation(config.addresses.front().ip);
  if (config.device == "af_packet") return ethdev::check_merging(config.interface);
  return std::nullopt;
}

Result<BuiltHost> build_host(const StackdConfig& config, Notice notice) {
  if (Status good = check_host(config); !good) return good.error();
  HostConfig settings = host_config(config);
  settings.notice = std::move(notice);
  Result<std::unique_ptr<Host>> host =
      config.port_kind == "uring" ? uring_host(config, settings) : ethdev_host(config, settings);
  if (!host) return host.error();
  return BuiltHost{std::move(*host), thread_configs(config)};
}

}  // namespace mercury
