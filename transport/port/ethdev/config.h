// What a DPDK port is made from: which device, whose addresses, how many engines share it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/port/ethdev/device_kind.h"
#include "transport/port/traffic_classes.h"

namespace mercury::ethdev {

// An address of this host on the device. On an interface shared with the kernel the prefix and the
// gateway are the kernel's business and are not read.
struct LocalAddress {
  IpAddress ip;
  uint8_t prefix_bits = 0;           // 24 for a.b.c.d/24
  std::optional<IpAddress> gateway;  // for destinations outside the prefix; none = on-link only
};

struct MemifOptions {
  bool server = false;    // exactly one of the two ends is the server; the client connects to it
  uint32_t id = 0;        // both ends name the same number
  bool abstract = false;  // abstract sockets do not cross network namespaces, paths do
};

inline constexpr uint16_t kMostVlan = 4094;  // 4095 is reserved (IEEE 802.1Q)

enum class Hugepages : uint8_t { kAuto, kNever, kAlways };

struct EthdevConfig {
  DeviceKind kind = DeviceKind::kAfPacket;
  // What names it, as its kind's row says: "0000:03:00.0", an interface of the kernel's, one to
  // create, a socket's path, or a name; two devices of one process that give the same name are
  // joined back to back.
  std::string device;
  uint16_t engines = 1;  // engine e listens on udp_port + e
  uint16_t queues = 0;   // 0 = one per engine where the device has them
  uint32_t mtu = 0;      // bytes of IP packet; 0 = the interface's own, 1500 where there is none
  std::optional<LocalAddress> v4;  // neither: the interface's own addresses (shared only)
  std::optional<LocalAddress> v6;
  uint16_t udp_port = 7470;
  // From which each engine's datagrams leave, the one where it listens among them: 1 to 16. The
  // others of engine e are the source_ports - 1 from udp_port + engines + e * (source_ports - 1)
  // on.
  uint16_t source_ports = 1;
  // The kernel uses the interface too, and answers ARP, neighbour discovery and ping. Default:
  // where an interface of the kernel's carries the frames; must be false elsewhere.
  std::optional<bool> shared;
  // All frames carry the tag of this VLAN, 1 to 4094, and those of others are dropped; 0: none do.
  // On an interface shared with the kernel tags are the kernel's business: it has an interface for
  // each VLAN.
  uint16_t vlan = 0;
  uint64_t link_bytes_per_second = 0;  // all engines; 0 = what the NIC's link says, if any
  TrafficClasses classes;              // of what is sent
  MemifOptions memif;
  std::string extra_args;  // appended to the driver's arguments: "qdisc_bypass=0"
  Hugepages hugepages = Hugepages::kAuto;
  uint32_t memory_mb = 0;  // of DPDK, for all devices of the process; 0 = what this device needs

  // How many UDP ports all engines take, from udp_port on.
  uint32_t udp_ports() const { return uint32_t{engines} * source_ports; }
  const DeviceRow& row() const { return row_of(kind); }
  bool is_shared() const { return shared.value_or(has_netdev()); }
  // An interface of the kernel carries the frames.
  bool has_netdev() const { return row().netdev == Netdev::kCarries; }
};

// Reads "af_xdp:eth1", "af_packet:eth1", "tap:mercury0", "memif:/run/m.sock", "ring:name" or a PCI
// address ("0000:03:00.0") into kind and device. Errors: kConfig.
Status parse_device(std::string_view text, EthdevConfig& config);

// What frames take in buffers: the Ethernet header, what DPDK puts before a frame
// (RTE_PKTMBUF_HEADROOM), sizeof(rte_mbuf), and what a mempool puts before each object.
inline constexpr uint32_t kEtherHeader = 14;
inline constexpr uint32_t kHeadroom = 128;
inline constexpr uint32_t kMbufStruct = 128;
inline constexpr uint32_t kPoolHeader = 64;

constexpr uint32_t round_up(uint32_t value, uint32_t step) {
  return (value + step - 1) / step * step;
}

// Sizes that follow from the configuration. All in bytes unless named otherwise.
struct BufferPlan {
  uint32_t data_room = 0;     // of an mbuf, headroom included
  uint32_t mbufs = 0;         // per device queue
  uint32_t descriptors = 0;   // of each receive and transmit ring
  uint32_t packet_frame = 0;  // af_packet: one slot of its ring
  uint32_t packet_block = 0;  // af_packet: what the kernel allocates at once
  uint64_t memory = 0;        // of DPDK, all queues
};
BufferPlan plan_buffers(const EthdevConfig& config, uint32_t mtu, uint16_t queues);

// What EAL is started with for such a plan, where nothing is configured.
uint32_t memory_mb_for(const BufferPlan& plan);

// Driver arguments of a virtual device; `xdp_program` is a path, or empty.
std::string vdev_args(const EthdevConfig& config, uint32_t mtu, uint16_t queues,
                      const BufferPlan& plan, const std::string& xdp_program);

// Refuses what cannot work, before anything is touched. Errors: kConfig.
Status validate(const EthdevConfig& config);

}  // namespace mercury::ethdev
