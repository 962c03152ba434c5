#include "apps/stackd/ports.h"

#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "shim/host/random.h"
#include "transport/port/ethdev/config.h"
#include "transport/port/ethdev/ethdev_port.h"
#include "transport/port/traffic_classes.h"
#include "transport/port/uring/uring_port.h"

namespace mercury {
namespace {

using ethdev::Check;

// Of ring devices: one process has both ends.
constexpr char kRingName[] = "mercury";

Result<std::unique_ptr<Host>> opened(std::unique_ptr<Host> host) {
  if (const Status status = host->opened(); !status) return status.error();
  return host;
}

// --- ethdev ------------------------------------------------------------------------------------

// What port.device and the keys beside it name: "af_xdp:eth1". Empty: the interface is missing.
std::string full_name(const StackdConfig& config) {
  const ethdev::DeviceRow* const row = ethdev::device_row(config.device);
  if (row == nullptr) return config.device;
  switch (row->naming) {
    case ethdev::Naming::kInterface:
    case ethdev::Naming::kNewInterface:
      return config.interface.empty() ? "" : config.device + ":" + config.interface;
    case ethdev::Naming::kSocket:
      return config.device + ":" + config.memif_socket;
    case ethdev::Naming::kPair:
      return config.device + ":" + kRingName;
    case ethdev::Naming::kAddress:
      break;
  }
  return config.device;
}

// Errors: kConfig.
Result<ethdev::EthdevConfig> device_config(const StackdConfig& config) {
  ethdev::EthdevConfig device;
  const std::string full = full_name(config);
  if (full.empty()) {
    return wrong_value(config, "port.interface",
                       "expected the interface for device \"" + config.device +
                           "\" (ip link lists them), got none");
  }
  if (!ethdev::parse_device(full, device)) {
    std::string known;
    for (const ethdev::DeviceRow& row : ethdev::device_rows()) {
      if (row.naming != ethdev::Naming::kAddress) known += row.name + std::string(", ");
    }
    known.erase(known.size() - 2);
    return wrong_value(config, "port.device",
                       "expected " + known + " or a PCI address such as 0000:03:00.0, got \"" +
                           config.device + "\"");
  }
  device.engines = static_cast<uint16_t>(config.engines);
  device.mtu = static_cast<uint32_t>(config.mtu);
  device.udp_port = static_cast<uint16_t>(config.udp_port);
  device.source_ports = static_cast<uint16_t>(config.source_ports);
  device.link_bytes_per_second = config.rate_bits_per_second / kBitsPerByte;
  device.classes = *TrafficClasses::parse(config.dscp);  // the configuration's check has seen it
  device.vlan = static_cast<uint16_t>(config.vlan);
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

Status check_ethdev(const StackdConfig& config) {
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

std::vector<Check> diagnose_ethdev(const StackdConfig& config, const std::string& file) {
  const Result<ethdev::EthdevConfig> device = device_config(config);
  if (!device) return {{"device", false, device.error().message, "set it in " + file}};
  return ethdev::check_device(*device);
}

bool kernel_has_device_address(const StackdConfig& config) {
  const Result<ethdev::EthdevConfig> device = device_config(config);
  return device && device->has_netdev();
}

std::string packet_interface(const StackdConfig& config) {
  const ethdev::DeviceRow* const row = ethdev::device_row(config.device);
  return row != nullptr && row->uses_packet_sockets() ? config.interface : "";
}

std::optional<Check> check_ethdev_offload(const StackdConfig& config) {
  const std::string interface = packet_interface(config);
  return interface.empty() ? std::nullopt : ethdev::check_merging(interface);
}

Result<std::unique_ptr<Host>> open_ethdev(const StackdConfig& config, const HostConfig& settings) {
  Result<ethdev::EthdevConfig> device_settings = device_config(config);
  if (!device_settings) return device_settings.error();
  Result<std::shared_ptr<ethdev::Device>> device = ethdev::Device::create(*device_settings);
  if (!device) return device.error();
  if (const std::string& families = (*device)->by_hash(); settings.notice && !families.empty()) {
    settings.notice(
        NoticeKind::kTrouble,
        "device " + (*device)->name() + " does not put " + families +
            " frames into the queue of the engine that hears them: engines pass them on");
  }
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

// --- uring -------------------------------------------------------------------------------------

bool is_link_local(const IpAddress& ip) {
  return !ip.is_v4() && ip.bytes[0] == 0xfe && (ip.bytes[1] & 0xc0) == 0x80;
}

std::string uring_fix(const Error& why, const IpPrefix& address) {
  const std::string ip = address.ip.to_string();
  if (why.sys_errno == EADDRNOTAVAIL) {
    return "ip address add " + ip + "/" + std::to_string(address.bits) +
           " dev INTERFACE, or set port.address to one that ip address shows";
  }
  if (why.sys_errno == EINVAL && is_link_local(address.ip)) {
    return "set port.address to one that is not link-local (fe80::/10); ip address shows them";
  }
  if (why.code == Errc::kInvalidArgument) return "set port.address to one that ip address shows";
  if (why.code == Errc::kNoMemory) return "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)";
  if (why.sys_errno == EPERM || why.sys_errno == ENOSYS) {
    return "sysctl kernel.io_uring_disabled=0";
  }
  return "use Linux 6.0 or later, or set port.kind = \"ethdev\"";
}

// Made and dropped: the surest way to know that io_uring, its limits and the address work.
std::vector<Check> diagnose_uring(const StackdConfig& config, const std::string&) {
  Counters counters;
  uring::UringConfig port;
  const IpPrefix address = config.addresses.front();  // the configuration's check has seen it
  port.local = {address.ip, 0};
  Result<std::unique_ptr<uring::UringPort>> made = uring::UringPort::create(port, counters);
  if (!made) return {{"io_uring", false, made.error().message, uring_fix(made.error(), address)}};
  return {{"io_uring", true,
           "UDP payload up to " + std::to_string((*made)->info().max_udp_payload) + " bytes at " +
               address.ip.to_string(),
           ""}};
}

bool kernel_has_every_address(const StackdConfig&) { return true; }

std::optional<Check> check_uring_offload(const StackdConfig& config) {
  return ethdev::check_segmentation(config.addresses.front().ip);
}

std::string no_interface(const StackdConfig&) { return {}; }

Result<std::unique_ptr<Host>> open_uring(const StackdConfig& config, const HostConfig& settings) {
  const IpAddress address = config.addresses.empty() ? IpAddress() : config.addresses.front().ip;
  std::vector<HostOf<uring::UringPort>::Part> parts;
  for (uint64_t engine = 0; engine < config.engines; ++engine) {
    auto counters = std::make_unique<Counters>();
    uring::UringConfig port_config;
    port_config.local = {address, static_cast<uint16_t>(config.udp_port + engine)};
    port_config.source_ports =
        source_ports(static_cast<uint32_t>(config.udp_port), static_cast<uint32_t>(config.engines),
                     static_cast<uint32_t>(engine), static_cast<uint32_t>(config.source_ports));
    port_config.mtu = static_cast<uint32_t>(config.mtu);
    port_config.link_bytes_per_second = config.rate_bits_per_second / kBitsPerByte;
    port_config.classes = *TrafficClasses::parse(config.dscp);
    Result<std::unique_ptr<uring::UringPort>> port =
        uring::UringPort::create(port_config, *counters);
    if (!port) return port.error();
    parts.push_back({std::move(counters), std::move(*port)});
  }
  return opened(
      std::make_unique<HostOf<uring::UringPort>>(std::move(parts), settings, system_random));
}

constexpr std::array kPorts{
    PortRow{.kind = kEthdevPort,
            .check = check_ethdev,
            .diagnose = diagnose_ethdev,
            .kernel_has_address = kernel_has_device_address,
            .check_offload = check_ethdev_offload,
            .drops_uncut_of = packet_interface,
            .open = open_ethdev},
    PortRow{.kind = kUringPort,
            .check = nullptr,
            .diagnose = diagnose_uring,
            .kernel_has_address = kernel_has_every_address,
            .check_offload = check_uring_offload,
            .drops_uncut_of = no_interface,
            .open = open_uring},
};

}  // namespace

const PortRow& port_of(const StackdConfig& config) {
  return *std::ranges::find_if(
      kPorts, [&config](const PortRow& row) { return config.port_kind == row.kind.name; });
}

}  // namespace mercury
