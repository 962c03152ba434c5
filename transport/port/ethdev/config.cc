#include "transport/port/ethdev/config.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <numeric>
#include <optional>

namespace mercury::ethdev {
namespace {

constexpr uint32_t kPage = 4096;
constexpr uint32_t kEtherHeader = 14;
constexpr uint32_t kHeadroom = 128;       // RTE_PKTMBUF_HEADROOM
constexpr uint32_t kMbufStruct = 128;     // sizeof(rte_mbuf)
constexpr uint32_t kPoolHeader = 64;      // what a mempool puts before each object
constexpr uint32_t kXdpHeadroom = 256;    // XDP_PACKET_HEADROOM, which the kernel keeps free
constexpr uint32_t kPacketOverhead = 96;  // TPACKET2_HDRLEN, alignment and a VLAN tag

// An AF_XDP buffer is one page, and holds the mempool's header, the mbuf and both headrooms: what
// is left is the largest frame. One page is the kernel's largest chunk.
constexpr uint32_t kXdpFrame = kPage - kPoolHeader - kMbufStruct - kHeadroom - kXdpHeadroom;
// DPDK 22.11 counts four bytes of frame check sequence on top of the Ethernet header.
constexpr uint32_t kXdpMaxMtu = kXdpFrame - kEtherHeader - 4;
static_assert(kXdpMaxMtu == 3502);

// A memif's ring goes round its buffers one after the other: more than this, and each copy into or
// out of one misses the caches.
constexpr uint32_t kMemifRingBytes = 2'500'000;

constexpr uint32_t round_up(uint32_t value, uint32_t step) {
  return (value + step - 1) / step * step;
}

// [domain:]bus:device.function in hexadecimal. Both DPDK and the kernel call it by its whole name,
// in small letters.
std::optional<std::string> pci_address(std::string_view text) {
  constexpr std::string_view kTail = ":xx:xx.x";
  std::string address = (text.size() == kTail.size() - 1 ? "0000:" : "") + std::string(text);
  if (address.size() < 4 + kTail.size() || address.size() > 8 + kTail.size()) return std::nullopt;
  std::ranges::transform(address, address.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string shape = std::string(address.size() - kTail.size(), 'x') + std::string(kTail);
  const bool fits = std::ranges::equal(address, shape, [](unsigned char c, char wanted) {
    return wanted == 'x' ? std::isxdigit(c) != 0 : c == wanted;
  });
  const bool in_range = address[address.size() - 4] <= '1' && address.back() <= '7';
  return fits && in_range ? std::optional(address) : std::nullopt;
}

}  // namespace

const char* name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kPci:
      return "pci";
    case DeviceKind::kAfXdp:
      return "af_xdp";
    case DeviceKind::kAfPacket:
      return "af_packet";
    case DeviceKind::kTap:
      return "tap";
    case DeviceKind::kMemif:
      return "memif";
    case DeviceKind::kRing:
      return "ring";
  }
  return "?";
}

const char* driver_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kAfXdp:
      return "net_af_xdp";
    case DeviceKind::kAfPacket:
      return "net_af_packet";
    case DeviceKind::kTap:
      return "net_tap";
    case DeviceKind::kMemif:
      return "net_memif";
    case DeviceKind::kRing:
      return "net_ring";
    case DeviceKind::kPci:  // many
      break;
  }
  return "";
}

Status parse_device(std::string_view text, EthdevConfig& config) {
  for (const DeviceKind kind : {DeviceKind::kAfXdp, DeviceKind::kAfPacket, DeviceKind::kTap,
                                DeviceKind::kMemif, DeviceKind::kRing}) {
    const std::string prefix = std::string(name_of(kind)) + ":";
    if (!text.starts_with(prefix)) continue;
    if (text.size() == prefix.size()) break;
    config.kind = kind;
    config.device = text.substr(prefix.size());
    return {};
  }
  if (auto address = pci_address(text)) {
    config.kind = DeviceKind::kPci;
    config.device = std::move(*address);
    return {};
  }
  return Error(Errc::kConfig, "device \"" + std::string(text) +
                                  "\": expected af_xdp:INTERFACE, af_packet:INTERFACE, tap:NAME, "
                                  "memif:PATH, ring:NAME or a PCI address such as 0000:03:00.0");
}

uint32_t max_mtu(DeviceKind kind) {
  if (kind == DeviceKind::kAfXdp) return kXdpMaxMtu;
  // The tap driver drops what is longer than an ordinary frame, and refuses to be told otherwise.
  if (kind == DeviceKind::kTap) return 1500;
  return 9600;
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
  if (config.kind == DeviceKind::kAfXdp) {
    // Objects of exactly one page: smaller ones would shrink the largest frame, larger ones are
    // refused. The pool feeds the fill, receive, transmit and completion rings (2,048 each).
    plan.data_room = kPage - kPoolHeader - kMbufStruct;
    plan.descriptors = 2048;
    plan.mbufs = 8192;
  } else if (config.kind == DeviceKind::kAfPacket) {
    // The driver wants an mbuf to hold a whole slot, and slots to fill blocks without a gap.
    plan.packet_frame = round_up(mtu + kEtherHeader + kPacketOverhead, 512);
    plan.packet_block = std::lcm(plan.packet_frame, kPage);
    plan.data_room = kHeadroom + plan.packet_frame;
  } else if (config.kind == DeviceKind::kPci) {
    // NICs take buffers in steps of 1 KB; 2 KB is the least that all drivers accept.
    plan.data_room = kHeadroom + std::max(2048U, round_up(mtu + kEtherHeader + 8, 1024));
    plan.mbufs = 8192;
  }
  // Engines beyond the queues send from an owner's buffers.
  const uint32_t sharers = (config.engines + queues - 1U) / queues;
  plan.mbufs += (sharers - 1) * 2048;
  const uint64_t object = round_up(plan.data_room + kMbufStruct + kPoolHeader, 64) + 64;
  plan.memory = uint64_t{queues} * plan.mbufs * object;
  return plan;
}

std::string vdev_args(const EthdevConfig& config, uint32_t mtu, uint16_t queues,
                      const BufferPlan& plan, const std::string& xdp_program) {
  std::string args;
  switch (config.kind) {
    case DeviceKind::kPci:
    case DeviceKind::kRing:
      break;
    case DeviceKind::kAfXdp:
      args = "iface=" + config.device + ",queue_count=" + std::to_string(queues);
      if (!xdp_program.empty()) args += ",xdp_prog=" + xdp_program;
      break;
    case DeviceKind::kAfPacket: {
      const uint32_t per_block = plan.packet_block / plan.packet_frame;
      args = "iface=" + config.device + ",qpairs=" + std::to_string(queues) +
             ",blocksz=" + std::to_string(plan.packet_block) +
             ",framesz=" + std::to_string(plan.packet_frame) +
             ",framecnt=" + std::to_string(round_up(plan.descriptors, per_block));
      break;
    }
    case DeviceKind::kTap:
      args = "iface=" + config.device;
      break;
    case DeviceKind::kMemif: {
      // One buffer per frame: chained buffers would arrive as chained mbufs.
      const uint32_t buffer = round_up(mtu + kEtherHeader, 64);
      const auto log2 =
          std::min(static_cast<uint32_t>(std::bit_width(kMemifRingBytes / buffer)) - 1, 10U);
      args = std::string("role=") + (config.memif.server ? "server" : "client") +
             ",id=" + std::to_string(config.memif.id) + ",socket=" + config.device +
             ",socket-abstract=" + (config.memif.abstract ? "yes" : "no") +
             ",bsize=" + std::to_string(buffer) + ",rsize=" + std::to_string(log2);
      break;
    }
  }
  if (!config.extra_args.empty()) args += (args.empty() ? "" : ",") + config.extra_args;
  return args;
}

Status validate(const EthdevConfig& config) {
  const auto refuse = [](std::string message) { return Error(Errc::kConfig, std::move(message)); };
  const std::string name = std::string(name_of(config.kind)) + ":" + config.device;
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
  if (config.udp_port == 0 || uint32_t{config.udp_port} + config.engines > 65536) {
    return refuse("device " + name + ": UDP ports must lie in 1 to 65535");
  }
  if (config.mtu != 0 && (config.mtu < 1280 || config.mtu > max_mtu(config.kind))) {
    return refuse("device " + name + ": mtu " + std::to_string(config.mtu) + " is not in 1280 to " +
                  std::to_string(max_mtu(config.kind)) + ", what " + name_of(config.kind) +
                  " carries");
  }
  if (config.is_shared() && !config.has_netdev()) {
    return refuse("device " + name + ": only af_xdp and af_packet can share with the kernel");
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
