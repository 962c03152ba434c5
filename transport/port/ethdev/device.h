// One DPDK device, shared by the engines of a host.
//
// Each engine has a lane. The first `queues` lanes own a queue pair of the device each; the others
// receive what the owners hand over and send through an owner's outbox, both over rte_ring: an
// engine never locks and never waits for another.
//
//        device queue 0        device queue 1
//              |                     |
//           lane 0 <-- inboxes --> lane 1 <-- inbox, outbox --> lane 2 (no queue)
//
// Owner/thread: create and destroy on one thread; lanes as said at each member; the rest is cold
// and may be called by any engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/port/ethdev/config.h"
#include "transport/port/ethdev/ip.h"
#include "transport/port/ethdev/kernel_guard.h"
#include "transport/port/ethdev/neighbours.h"
#include "transport/port/ethdev/steer.h"

struct rte_eth_conf;
struct rte_eth_dev_info;
struct rte_mempool;
struct rte_ring;

namespace mercury::ethdev {

struct Lane {
  rte_ring* inbox = nullptr;  // received elsewhere for this engine; any engine puts, this one takes
  rte_ring* outbox =
      nullptr;  // queue owners: what engines without a queue send; they put, it takes
  rte_mempool* pool =
      nullptr;  // for frames to send; the receive pool of the queue it sends through
  // Queue owners: for mbufs that only point at a payload elsewhere; null: payloads are copied.
  rte_mempool* gather_pool = nullptr;
  int device_fd = -1;  // the driver's socket, or -1
  int doorbell = -1;   // eventfd
  bool owns_queue = false;
  uint16_t queue = 0;  // the queue pair it uses, itself or through its owner
  // Set by the engine before it sleeps, cleared by whoever wakes it.
  alignas(kCacheLine) std::atomic<bool> asleep{false};

  // After something was put into a ring of this lane.
  void wake() noexcept;
};

class Device {
 public:
  // Starts EAL if needed, creates the device, its queues and rings. Errors: kConfig, kNoDevice,
  // kPermission, kBusy, kSystem; messages name the device and what to run.
  static Result<std::shared_ptr<Device>> create(const EthdevConfig& config);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const EthdevConfig& config() const { return config_; }
  const std::string& name() const { return name_; }  // "af_xdp:eth1"
  uint32_t mtu() const { return mtu_; }
  uint16_t queues() const { return queues_; }
  uint16_t dpdk_port() const { return port_id_; }
  const LocalIdentity& local() const { return local_; }
  // All engines together; 0 = unknown. A NIC's changes in tick(). Any thread.
  uint64_t link_bytes_per_second() const noexcept {
    return link_bytes_per_second_.load(std::memory_order_relaxed);
  }
  // Which families' frames come to a NIC's queues by hash, and not to that of the engine that hears
  // them: "IPv4 and IPv6", say; empty: none.
  const std::string& by_hash() const { return by_hash_; }
  bool flush_is_system_call() const { return row_.netdev != Netdev::kNone; }
  Lane& lane(uint16_t engine) { return lanes_[engine]; }
  Neighbours& neighbours() { return *neighbours_; }
  Gather gather() const { return gather_; }              // what its driver can of what its kind may
  bool reads_by_page() const { return reads_by_page_; }  // no segment may cross a page's border
  // For Gather::kByDma. Drivers let go of what a NIC has sent when they want its descriptors back,
  // which may be never: this makes them. By the queue's engine.
  void let_go(uint16_t queue) const noexcept;
  // Lets the NIC read these pages, which stay in place until unmap_memory. Errors: kLimit (DPDK
  // keeps 256 such mappings in a process), kSystem (the IOMMU's addresses are too few, say).
  Status map_memory(std::span<std::byte> memory);
  void unmap_memory(std::span<std::byte> memory);
  bool checksum_offload() const { return checksum_offload_; }
  bool inserts_tags() const { return inserts_tags_; }  // of the VLAN, into what is sent

  // The device is started and its link is up: frames may be given to it.
  bool link_up() const noexcept { return link_up_.load(std::memory_order_relaxed); }
  // Link state; connects a memif client until the server is there.
  void tick(uint64_t now_ns);

 private:
  explicit Device(const EthdevConfig& config) : config_(config), row_(config.row()) {}

  Status settle_netdev();
  Status settle_addresses();
  Status attach();
  Status attach_ring();
  Gather gather_of(const rte_eth_dev_info& info);
  Status configure();
  Status receive_vlan();
  void offload_tags(const rte_eth_dev_info& info, rte_eth_conf& conf);
  Status create_pools();
  Status create_lanes();
  Status start();
  void steer();
  bool look_at_netdev(bool was_up);
  bool look_at_link();
  void take_rate(uint64_t bytes_per_second);
  Status find_sockets(const std::vector<int>& before, int domain);
  Error driver_error(const std::string& what, int code) const;

  // The end that waits for the other.
  bool connects_later() const { return row_.connects_later && !config_.memif.server; }

  EthdevConfig config_;
  const DeviceRow& row_;
  std::string name_;
  std::string vdev_;  // DPDK's name of a virtual device that we created
  uint32_t mtu_ = 1500;
  uint32_t netdev_index_ = 0;
  uint16_t queues_ = 1;
  uint16_t port_id_ = 0;
  bool attached_ = false;
  bool checksum_offload_ = false;
  bool inserts_tags_ = false;
  bool filters_tags_ = false;
  LocalIdentity local_;
  std::string by_hash_;
  BufferPlan plan_;
  std::vector<rte_mempool*> pools_;         // one per queue
  std::vector<rte_mempool*> gather_pools_;  // the same, or none
  Gather gather_ = Gather::kNever;
  bool reads_by_page_ = false;
  std::unique_ptr<Lane[]> lanes_;
  std::unique_ptr<Neighbours> neighbours_;
  KernelGuard guard_;
  std::optional<InterfaceClaim> claim_;
  std::optional<SteerObject> steer_;
  std::mutex tick_mutex_;
  bool started_ = false;  // guarded by tick_mutex_ once ports run
  uint64_t next_look_ns_ = 0;
  std::atomic<bool> link_up_{false};
  std::atomic<uint64_t> link_bytes_per_second_{0};
};

}  // namespace mercury::ethdev
