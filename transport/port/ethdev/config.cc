#include "transport/port/ethdev/config.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "transport/port/port.h"

namespace mercury::ethdev {
namespace {

// [domain:]bus:device.function in hexadecimal. Both DPDK and the kernel call it by its whole name,
// in small letters.
std::optional<std::string> pci_address(std::string_view text) {
  constexpr std::string_view kTail = ":xx:xx.x";
  std::string address = (text.size() == kTail.size() - 1 ? "0000:" : "") + std::string(text);
  if (address.size() < 4 + kTail.size() || address.size() > 8 + kTail.size()) return std::nullopt;
  std::ranges::transform(address, address.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string shape = std::string(address.size() - kTail.size(), 'x') + std::string(kTail);
  const bool fits = std::ranges::equal(address, shape, [](char c, char wanted) {
    return wanted == 'x' ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c == wanted;
  });
  const bool in_range = address[address.size() - 4] <= '1' && address.back() <= '7';
  return fits && in_range ? std::optional(address) : std::nullopt;
}

const char* placeholder(Naming naming) {
  switch (naming) {
    case Naming::kAddress:
      return "ADDRESS";
    case Naming::kInterface:
      return "INTERFACE";
    case Naming::kNewInterface:
    case Naming::kPair:
      return "NAME";
    case Naming::kSocket:
      return "PATH";
  }
  return "?";
}

}  // namespace

Status parse_device(std::string_view text, EthdevConfig& config) {
  const size_t colon = text.find(':');
  const DeviceRow* const row = device_row(text.substr(0, colon));
  if (row != nullptr && colon != std::string_view::npos && colon + 1 < text.size()) {
    config.kind = row->kind;
    config.device = text.substr(colon + 1);
    return {};
  }
  if (auto address = pci_address(text)) {
    config.kind = DeviceKind::kPci;
    config.device = std::move(*address);
    return {};
  }
  std::string known;
  for (const DeviceRow& each : device_rows()) {
    if (each.naming == Naming::kAddress) continue;
    known += (known.empty() ? "" : ", ") + std::string(each.name) + ":" + placeholder(each.naming);
  }
  return Error(Errc::kConfig, "device \"" + std::string(text) + "\": expected " + known +
                                  " or a PCI address such as 0000:03:00.0");
}

uint32_t memory_mb_for(const BufferPlan& plan) {
  // Beside the buffers: rings, driver structures, and what the allocator loses to alignment.
  return static_cast<uint32_t>((plan.memory >> 20) * 5 / 4 + 64);
}

BufferPlan plan_buffers(const EthdevConfig& config, uint32_t mtu, uint16_t queues) {
  BufferPlan plan;
  plan.descriptors = 1024;
  plan.mbufs = 4096;
  plan.data_room = round_up(kHeadroom + kEtherHeader + 4 + mtu, 64);
  if (config.row().plan != nullptr) config.row().plan(plan, mtu);
  // Engines beyond the queues send from an owner's buffers.
  const uint32_t sharers = (config.engines + queues - 1U) / queues;
  plan.mbufs += (sharers - 1) * 2048;
  const uint64_t object = round_up(plan.data_room + kMbufStruct + kPoolHeader, 64) + 64;
  plan.memory = uint64_t{queues} * plan.mbufs * object;
  return plan;
}

std::string vdev_args(const EthdevConfig& config, uint32_t mtu, uint16_t queues,
                      const BufferPlan& plan, const std::string& xdp_program) {
  const auto arguments = config.row().arguments;
  std::string args = arguments == nullptr ? "" : arguments(config, mtu, queues, plan, xdp_program);
  if (!config.extra_args.empty()) args += (args.empty() ? "" : ",") + config.extra_args;
  return args;
}

Status validate(const EthdevConfig& config) {
  const auto refuse = [](std::string message) { return Error(Errc::kConfig, std::move(message)); };
  const DeviceRow& row = config.row();
  const std::string name = std::string(row.name) + ":" + config.device;
  if (config.device.empty()) return refuse("device: empty name");
  if (config.has_netdev() && config.device.size() > 15) {
    return refuse("device " + name + ": interface names have at most 15 characters");
  }
  if (config.device.find_first_of(",=") != std::string::npos) {
    return refuse("device " + name + ": ',' and '=' cannot be part of a name");
  }
  if (config.engines == 0 || config.engines > 64) {
    return refuse("device " + name + ": engines must be 1 to 64");
  }
  if (config.queues > config.engines) {
    return refuse("device " + name + ": more queues than engines");
  }
  if (config.source_ports == 0 || config.source_ports > kMostSourcePorts) {
    return refuse("device " + name + ": source_ports must be 1 to " +
                  std::to_string(kMostSourcePorts));
  }
  if (config.udp_port == 0 || config.udp_port + config.udp_ports() > 65536) {
    return refuse("device " + name + ": UDP ports must lie in 1 to 65535");
  }
  if (config.mtu != 0 && (config.mtu < 1280 || config.mtu > row.max_mtu)) {
    return refuse("device " + name + ": mtu " + std::to_string(config.mtu) + " is not in 1280 to " +
                  std::to_string(row.max_mtu) + ", what " + row.name + " carries");
  }
  if (config.is_shared() && !config.has_netdev()) {
    return refuse("device " + name + ": only af_xdp and af_packet can share with the kernel");
  }
  if (config.vlan > kMostVlan) {
    return refuse("device " + name + ": vlan must be 1 to " + std::to_string(kMostVlan) +
                  ", or 0 for none");
  }
  if (config.vlan != 0 && config.is_shared()) {
    const std::string interface = config.device + "." + std::to_string(config.vlan);
    return refuse("device " + name +
                  ": the kernel has an interface for each VLAN: leave vlan out, " +
                  "and give interface \"" + interface + "\" (ip link add link " + config.device +
                  " name " + interface + " type vlan id " + std::to_string(config.vlan) + ")");
  }
  if (!config.is_shared() && !config.v4 && !config.v6) {
    return refuse("device " + name + ": needs an address (v4 or v6): the kernel has none for it");
  }
  if (config.v4 && (!config.v4->ip.is_v4() || config.v4->prefix_bits > 32)) {
    return refuse("device " + name + ": v4 is not an IPv4 address with a prefix of 0 to 32");
  }
  if (config.v6 && (config.v6->ip.is_v4() || config.v6->prefix_bits > 128)) {
    return refuse("device " + name + ": v6 is not an IPv6 address with a prefix of 0 to 128");
  }
  return {};
}

}  // namespace mercury::ethdev
