// The kinds of DPDK devices, one row each. What sets a kind apart is a column: nothing else asks
// which kind a device is of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mercury::ethdev {

struct BufferPlan;
struct EthdevConfig;

enum class DeviceKind : uint8_t { kPci, kAfXdp, kAfPacket, kTap, kMemif, kRing };

// How DPDK comes to have the device.
enum class Origin : uint8_t {
  kPciBus,  // found by its address
  kVdev,    // created with arguments
  kRings,   // made of two rings of this process (ring_pair.h)
};

// What names one: behind a colon, as in "af_xdp:eth1", but for an address.
enum class Naming : uint8_t {
  kAddress,       // on the PCI bus
  kInterface,     // of the kernel
  kNewInterface,  // that it makes
  kSocket,        // the path at which both ends meet
  kPair,          // a name that both ends give
};

// Which interface of the kernel has to do with it.
enum class Netdev : uint8_t {
  kNone,
  kCarries,  // one that is there carries its frames, and the kernel may use it too
  kMade,     // its other end
};

// What the driver demands of the memory of its frames.
enum class PoolLayout : uint8_t {
  kDma,       // the NIC's addresses of each buffer follow each other
  kAny,       // none reads it but the driver
  kOnePiece,  // all buffers back to back
};

// Whether frames may point at payloads that lie elsewhere (Port::tx_send_shared).
enum class Gather : uint8_t {
  kNever,   // they are copied
  kInCall,  // the driver has copied them when rte_eth_tx_burst returns
  kByDma,   // the NIC reads them later, from memory that is mapped for it
};

struct DeviceRow {
  DeviceKind kind;
  const char* name;
  const char* driver;  // DPDK's, "net_af_xdp"; empty: there are many
  Origin origin;
  Naming naming;
  Netdev netdev;
  int socket_domain;  // of the sockets that the driver opens, one for each queue; 0: none
  PoolLayout pool;
  Gather gather;        // at most: a NIC's driver may lack what that takes
  bool linked;          // the driver is part of the program; others are loaded
  bool has_mac;         // of its own
  bool has_link;        // that is up or down, and has a rate; what others say of theirs is made up
  bool connects_later;  // one of its ends waits for the other
  // Bytes of IP packet that the driver carries whatever the interface says; 9,600 where only memory
  // limits it.
  uint32_t max_mtu;
  void (*plan)(BufferPlan& plan, uint32_t mtu);  // what it needs else than others; may be null
  // The driver's arguments; null: none. `xdp_program` is a path, or empty.
  std::string (*arguments)(const EthdevConfig& config, uint32_t mtu, uint16_t queues,
                           const BufferPlan& plan, const std::string& xdp_program);

  bool is_nic() const { return origin == Origin::kPciBus; }
  bool uses_xdp() const;
  bool uses_packet_sockets() const;
};

std::span<const DeviceRow> device_rows();
const DeviceRow& row_of(DeviceKind kind);
// Null: no kind has that name before its colon.
const DeviceRow* device_row(std::string_view name);

}  // namespace mercury::ethdev
