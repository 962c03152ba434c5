#include "apps/stackd/host_builder.h"

#include <charconv>
#include <optional>

#include "shim/runtime/random.h"
#include "transport/port/ethdev/ethdev_port.h"
#include "transport/port/uring/uring_port.h"

namespace mercury {
namespace {

constexpr uint64_t kBitsPerByte = 8;

// "10.0.0.1/24": the prefix is required only where Mercury routes itself.
Result<ethdev::LocalAddress> parse_address(const std::string& text) {
  const size_t slash = text.find('/');
  Result<IpAddress> ip = IpAddress::parse(text.substr(0, slash));
  if (!ip) return Error(Errc::kConfig, "port.address: " + ip.error().message);
  ethdev::LocalAddress address;
  address.ip = *ip;
  const uint8_t most = ip->is_v4() ? 32 : 128;
  address.prefix_bits = most;
  if (slash == std::string::npos) return address;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + slash + 1, end, address.prefix_bits);
  if (error != std::errc{} || stop != end || address.prefix_bits > most) {
    return Error(Errc::kConfig, "port.address: expected a prefix length from 0 to " +
                                    std::to_string(most) + ", got \"" + text + "\"");
  }
  return address;
}

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
  engine.tx_bound_bytes = config.tx_bound_bytes;
  host.lane.exchange.scheduler.max_sessions = engine.max_sessions;
  host.lane.exchange.scheduler.max_jobs = static_cast<uint32_t>(config.max_jobs);
  host.policy.serve = config.serve;
  host.policy.open_jobs = config.open_jobs;
  host.policy.max_jobs = static_cast<uint32_t>(config.max_jobs);
  host.policy.max_tensors = static_cast<uint32_t>(config.max_tensors);
  host.policy.memory_limit_bytes = config.job_memory_bytes;
  for (const StackdConfig::Job& job : config.jobs) {
    host.policy.known.push_back({job.name, job.secret, job.memory_bytes});
  }
  return host;
}

Result<std::vector<ThreadConfig>> thread_configs(const StackdConfig& config) {
  std::vector<ThreadConfig> threads(config.engines);
  if (!config.cores.empty() && config.cores.size() != config.engines) {
    return Error(Errc::kConfig, "engine.cores: expected one CPU for each of the " +
                                    std::to_string(config.engines) + " engines, got " +
                                    std::to_string(config.cores.size()));
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].polling = config.polling == "busy"        ? Polling::kBusy
                         : config.polling == "interrupt" ? Polling::kInterrupt
                                                         : Polling::kAdaptive;
    threads[i].spin_ns = config.spin_ns;
    threads[i].name = "mercury-eng" + std::to_string(i);
    if (config.cores.empty()) continue;
    const std::string& text = config.cores[i];
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, threads[i].core);
    if (error != std::errc{} || stop != end || threads[i].core < 0) {
      return Error(Errc::kConfig, "engine.cores: expected CPU numbers, got \"" + text + "\"");
    }
  }
  return threads;
}

Result<std::unique_ptr<Host>> uring_host(const StackdConfig& config) {
  if (config.addresses.empty()) {
    return Error(Errc::kConfig, "port.address: expected the address to listen on, got none");
  }
  Result<ethdev::LocalAddress> address = parse_address(config.addresses.front());
  if (!address) return address.error();
  std::vector<HostOf<uring::UringPort>::Part> parts;
  for (uint64_t engine = 0; engine < config.engines; ++engine) {
    auto counters = std::make_unique<Counters>();
    uring::UringConfig port_config;
    port_config.local = {address->ip, static_cast<uint16_t>(config.udp_port + engine)};
    port_config.mtu = static_cast<uint32_t>(config.mtu);
    port_config.link_bytes_per_second = config.rate_bits_per_second / kBitsPerByte / config.engines;
    Result<std::unique_ptr<uring::UringPort>> port =
        uring::UringPort::create(port_config, *counters);
    if (!port) return port.error();
    parts.push_back({std::move(counters), std::move(*port)});
  }
  return std::unique_ptr<Host>(std::make_unique<HostOf<uring::UringPort>>(
      std::move(parts), host_config(config), system_random));
}

Result<std::unique_ptr<Host>> ethdev_host(const StackdConfig& config) {
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
  return std::unique_ptr<Host>(std::make_unique<HostOf<ethdev::EthdevPort>>(
      std::move(parts), host_config(config), system_random));
}

}  // namespace

Result<ethdev::EthdevConfig> device_config(const StackdConfig& config) {
  ethdev::EthdevConfig device;
  std::string name = config.device;
  if (name == "af_xdp" || name == "af_packet" || name == "tap") name += ":" + config.interface;
  if (name == "memif") name += ":" + config.memif_socket;
  if (name == "ring") name += ":mercury";
  if (Status parsed = ethdev::parse_device(name, device); !parsed) return parsed.error();
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
  for (const std::string& text : config.addresses) {
    Result<ethdev::LocalAddress> address = parse_address(text);
    if (!address) return address.error();
    const bool v4 = address->ip.is_v4();
    const std::string& gateway = v4 ? config.gateway : config.gateway6;
    if (!gateway.empty()) {
      Result<IpAddress> router = IpAddress::parse(gateway);
      if (!router) return Error(Errc::kConfig, "port.gateway: " + router.error().message);
      address->gateway = *router;
    }
    std::optional<ethdev::LocalAddress>& slot = v4 ? device.v4 : device.v6;
    if (slot) return Error(Errc::kConfig, "port.address: expected one address of each family");
    slot = *address;
  }
  return device;
}

Result<BuiltHost> build_host(const StackdConfig& config) {
  Result<std::vector<ThreadConfig>> threads = thread_configs(config);
  if (!threads) return threads.error();
  Result<std::unique_ptr<Host>> host =
      config.port_kind == "uring" ? uring_host(config) : ethdev_host(config);
  if (!host) return host.error();
  return BuiltHost{std::move(*host), std::move(*threads)};
}

}  // namespace mercury
