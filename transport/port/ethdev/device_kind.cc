#include "transport/port/ethdev/device_kind.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "transport/port/ethdev/config.h"
#include "transport/port/ethdev/l2.h"

namespace mercury::ethdev {
namespace {

constexpr uint32_t kPage = 4096;
constexpr uint32_t kXdpHeadroom = 256;    // XDP_PACKET_HEADROOM, which the kernel keeps free
constexpr uint32_t kPacketOverhead = 96;  // TPACKET2_HDRLEN, alignment and a VLAN tag

// An AF_XDP buffer is one page, and holds the mempool's header, the mbuf and both headrooms: what
// is left is the largest frame. One page is the kernel's largest chunk.
constexpr uint32_t kXdpFrame = kPage - kPoolHeader - kMbufStruct - kHeadroom - kXdpHeadroom;
// DPDK 22.11 counts four bytes of frame check sequence on top of the Ethernet header.
constexpr uint32_t kXdpMaxMtu = kXdpFrame - kEtherHeader - 4;
static_assert(kXdpMaxMtu == 3502);
// The tap driver drops what is longer than an ordinary frame, and refuses to be told otherwise.
constexpr uint32_t kTapMaxMtu = 1500;
constexpr uint32_t kAnyMtu = 9600;

// A memif's ring goes round its buffers one after the other: more than this, and each copy into or
// out of one misses the caches.
constexpr uint32_t kMemifRingBytes = 2'500'000;

// NICs take buffers in steps of 1 KB; 2 KB is the least that all drivers accept.
void plan_nic(BufferPlan& plan, uint32_t mtu) {
  plan.data_room = kHeadroom + std::max(2048U, round_up(mtu + kEtherHeader + 8, 1024));
  plan.mbufs = 8192;
}

// Objects of exactly one page: smaller ones would shrink the largest frame, larger ones are
// refused. The pool feeds the fill, receive, transmit and completion rings (2,048 each).
void plan_xdp(BufferPlan& plan, uint32_t) {
  plan.data_room = kPage - kPoolHeader - kMbufStruct;
  plan.descriptors = 2048;
  plan.mbufs = 8192;
}

// The driver wants an mbuf to hold a whole slot, and slots to fill blocks without a gap.
void plan_packet(BufferPlan& plan, uint32_t mtu) {
  plan.packet_frame = round_up(mtu + kEtherHeader + kPacketOverhead, 512);
  plan.packet_block = std::lcm(plan.packet_frame, kPage);
  plan.data_room = kHeadroom + plan.packet_frame;
}

std::string xdp_arguments(const EthdevConfig& config, uint32_t, uint16_t queues, const BufferPlan&,
                          const std::string& xdp_program) {
  const std::string args = "iface=" + config.device + ",queue_count=" + std::to_string(queues);
  return xdp_program.empty() ? args : args + ",xdp_prog=" + xdp_program;
}

std::string packet_arguments(const EthdevConfig& config, uint32_t, uint16_t queues,
                             const BufferPlan& plan, const std::string&) {
  const uint32_t per_block = plan.packet_block / plan.packet_frame;
  return "iface=" + config.device + ",qpairs=" + std::to_string(queues) +
         ",blocksz=" + std::to_string(plan.packet_block) +
         ",framesz=" + std::to_string(plan.packet_frame) +
         ",framecnt=" + std::to_string(round_up(plan.descriptors, per_block));
}

std::string tap_arguments(const EthdevConfig& config, uint32_t, uint16_t, const BufferPlan&,
                          const std::string&) {
  return "iface=" + config.device;
}

// One buffer per frame: chained buffers would arrive as chained mbufs.
std::string memif_arguments(const EthdevConfig& config, uint32_t mtu, uint16_t, const BufferPlan&,
                            const std::string&) {
  const uint32_t tag = config.vlan == 0 ? 0 : kVlanTagBytes;
  const uint32_t buffer = round_up(mtu + kEtherHeader + tag, 64);
  const auto log2 =
      std::min(static_cast<uint32_t>(std::bit_width(kMemifRingBytes / buffer)) - 1, 10U);
  return std::string("role=") + (config.memif.server ? "server" : "client") +
         ",id=" + std::to_string(config.memif.id) + ",socket=" + config.device +
         ",socket-abstract=" + (config.memif.abstract ? "yes" : "no") +
         ",bsize=" + std::to_string(buffer) + ",rsize=" + std::to_string(log2);
}

// In the order of DeviceKind. Of those that could gather, af_xdp takes one segment only, and
// net_ring's peer frees in another thread.
constexpr std::array kRows{
    DeviceRow{.kind = DeviceKind::kPci,
              .name = "pci",
              .driver = "",
              .origin = Origin::kPciBus,
              .naming = Naming::kAddress,
              .netdev = Netdev::kNone,
              .socket_domain = 0,
              .pool = PoolLayout::kDma,
              .gather = Gather::kByDma,
              .linked = false,
              .has_mac = true,
              .has_link = true,
              .connects_later = false,
              .max_mtu = kAnyMtu,
              .plan = plan_nic,
              .arguments = nullptr},
    DeviceRow{.kind = DeviceKind::kAfXdp,
              .name = "af_xdp",
              .driver = "net_af_xdp",
              .origin = Origin::kVdev,
              .naming = Naming::kInterface,
              .netdev = Netdev::kCarries,
              .socket_domain = AF_XDP,
              .pool = PoolLayout::kOnePiece,
              .gather = Gather::kNever,
              .linked = false,
              .has_mac = true,
              .has_link = false,
              .connects_later = false,
              .max_mtu = kXdpMaxMtu,
              .plan = plan_xdp,
              .arguments = xdp_arguments},
    DeviceRow{.kind = DeviceKind::kAfPacket,
              .name = "af_packet",
              .driver = "net_af_packet",
              .origin = Origin::kVdev,
              .naming = Naming::kInterface,
              .netdev = Netdev::kCarries,
              .socket_domain = AF_PACKET,
              .pool = PoolLayout::kAny,
              .gather = Gather::kInCall,
              .linked = false,
              .has_mac = true,
              .has_link = false,
              .connects_later = false,
              .max_mtu = kAnyMtu,
              .plan = plan_packet,
              .arguments = packet_arguments},
    DeviceRow{.kind = DeviceKind::kTap,
              .name = "tap",
              .driver = "net_tap",
              .origin = Origin::kVdev,
              .naming = Naming::kNewInterface,
              .netdev = Netdev::kMade,
              .socket_domain = 0,
              .pool = PoolLayout::kAny,
              .gather = Gather::kNever,
              .linked = false,
              .has_mac = false,  // it is that of the kernel at its other end
              .has_link = false,
              .connects_later = false,
              .max_mtu = kTapMaxMtu,
              .plan = nullptr,
              .arguments = tap_arguments},
    DeviceRow{.kind = DeviceKind::kMemif,
              .name = "memif",
              .driver = "net_memif",
              .origin = Origin::kVdev,
              .naming = Naming::kSocket,
              .netdev = Netdev::kNone,
              .socket_domain = 0,
              .pool = PoolLayout::kAny,
              .gather = Gather::kInCall,
              .linked = false,
              .has_mac = true,
              .has_link = false,
              .connects_later = true,
              .max_mtu = kAnyMtu,
              .plan = nullptr,
              .arguments = memif_arguments},
    DeviceRow{.kind = DeviceKind::kRing,
              .name = "ring",
              .driver = "net_ring",
              .origin = Origin::kRings,
              .naming = Naming::kPair,
              .netdev = Netdev::kNone,
              .socket_domain = 0,
              .pool = PoolLayout::kAny,
              .gather = Gather::kNever,
              .linked = true,
              .has_mac = false,
              .has_link = false,
              .connects_later = false,
              .max_mtu = kAnyMtu,
              .plan = nullptr,
              .arguments = nullptr},
};
static_assert([] {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].kind) != i) return false;
  }
  return true;
}());

}  // namespace

bool DeviceRow::uses_xdp() const { return socket_domain == AF_XDP; }
bool DeviceRow::uses_packet_sockets() const { return socket_domain == AF_PACKET; }

std::span<const DeviceRow> device_rows() { return kRows; }

const DeviceRow& row_of(DeviceKind kind) { return kRows[static_cast<size_t>(kind)]; }

const DeviceRow* device_row(std::string_view name) {
  const auto* const row = std::ranges::find_if(kRows, [name](const DeviceRow& each) {
    return each.naming != Naming::kAddress && name == each.name;
  });
  return row == kRows.end() ? nullptr : row;
}

}  // namespace mercury::ethdev
