#include "transport/port/ethdev/device.h"

#include <linux/if_xdp.h>
#include <rte_bus_vdev.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "transport/port/ethdev/checks.h"
#include "transport/port/ethdev/eal.h"
#include "transport/port/ethdev/flow_rules.h"
#include "transport/port/ethdev/memif_socket.h"
#include "transport/port/ethdev/netdev.h"
#include "transport/port/ethdev/pools.h"
#include "transport/port/ethdev/ring_pair.h"
#include "transport/port/ethdev/rtnetlink.h"

namespace mercury::ethdev {
namespace {

// Frames that may wait for an engine in its inbox or outbox: two full bursts of each neighbour
// would fit many times; more would only hide that the engine is too slow.
constexpr unsigned kLaneRing = 1024;
// A memif client tries again this long after its server was not there, or went away. The driver
// takes a lost connection down in a thread of its own, and must not be disturbed at it.
constexpr uint64_t kReconnectNs = 100'000'000;
// A connection that was accepted is given this long to become a link.
constexpr uint64_t kHandshakeNs = 1'000'000'000;
// How often the kernel is asked whether its interface is up, and a NIC for its link, which may take
// a system call.
constexpr uint64_t kLinkPollNs = 100'000'000;

std::string unique_name(const char* prefix) {
  static std::atomic<uint32_t> next{0};
  return prefix + std::to_string(next.fetch_add(1));
}

}  // namespace

void Lane::wake() noexcept {
  // Both this and prepare_sleep exchange, so that one comes first: either we see the engine asleep,
  // or it sees what was put into the ring.
  if (!asleep.exchange(false, std::memory_order_acq_rel)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell, &one, sizeof(one));
}

// A driver says little about why; what is wrong with the machine says more.
Error Device::driver_error(const std::string& what, int code) const {
  // Drivers return -1 for "failed", which is no errno (it would read "not permitted").
  const int why = code == -1 ? 0 : std::abs(code);
  std::string message = "device " + name_ + ": " + what +
                        (why != 0 ? ": " + errno_text(why) : std::string()) +
                        "; the driver said: " + take_driver_log();
  bool denied = why == EPERM || why == EACCES;
  for (const Check& check : check_device(config_)) {
    if (check.ok) continue;
    denied = denied || check.name == "privileges";
    message += "; " + check.name + ": " + check.message;
    if (!check.fix.empty()) message += " (" + check.fix + ")";
  }
  return Error(denied ? Errc::kPermission : Errc::kSystem, why, message);
}

Result<std::shared_ptr<Device>> Device::create(const EthdevConfig& config) {
  if (Status valid = validate(config); !valid) return valid.error();
  std::shared_ptr<Device> device(new Device(config));
  device->name_ = device->row_.is_nic() ? config.device : device->row_.name + (":" + config.device);
  using Step = Status (Device::*)();
  for (const Step step : {&Device::settle_netdev, &Device::settle_addresses, &Device::attach,
                          &Device::configure, &Device::create_lanes, &Device::start}) {
    if (Status status = (device.get()->*step)(); !status) return status.error();
  }
  return device;
}

// Brings the device into DPDK.
Status Device::attach() {
  plan_ = plan_buffers(config_, mtu_, queues_);
  EalOptions options;
  options.hugepages = config_.hugepages;
  options.memory_mb = config_.memory_mb != 0 ? config_.memory_mb : memory_mb_for(plan_);
  if (row_.is_nic()) options.pci_address = config_.device;
  if (Status started = start_eal(options); !started) return started;
  if (row_.is_nic()) {
    if (rte_eth_dev_get_port_by_name(config_.device.c_str(), &port_id_) == 0) {
      attached_ = true;
      take_driver_log();
      return {};
    }
    const Error why = driver_error("no DPDK driver took it", 0);
    return Error(why.code == Errc::kPermission ? why.code : Errc::kNoDevice, why.message);
  }
  take_driver_log();
  if (row_.origin == Origin::kRings) return attach_ring();
  if (row_.uses_xdp()) {
    capture_libbpf_log();
    auto claim = InterfaceClaim::take(netdev_index_, config_.device);
    if (!claim) return claim.error();
    claim_.emplace(std::move(*claim));
    if (Status cleared = clear_leftover(netdev_index_, config_.device); !cleared) return cleared;
    if (config_.is_shared()) {
      auto object = SteerObject::create(config_.udp_port, config_.engines);
      if (!object) return object.error();
      steer_.emplace(std::move(*object));
    }
  }
  if (row_.naming == Naming::kSocket && config_.memif.server && !config_.memif.abstract) {
    if (Status cleared = clear_stale_socket(config_.device); !cleared) return cleared;
  }
  const std::string vdev = unique_name(row_.driver);
  const std::string args =
      vdev_args(config_, mtu_, queues_, plan_, steer_ ? steer_->path() : std::string());
  const std::vector<int> before = sockets_of_domain(AF_PACKET);
  const int failed = rte_vdev_init(vdev.c_str(), args.c_str());
  if (failed != 0) return driver_error("cannot create it (" + args + ")", failed);
  vdev_ = vdev;
  attached_ = true;
  const int found = rte_eth_dev_get_port_by_name(vdev.c_str(), &port_id_);
  if (found != 0) return driver_error("its driver made no port", found);
  lanes_ = std::make_unique<Lane[]>(config_.engines);
  if (row_.uses_packet_sockets()) return find_sockets(before, AF_PACKET);
  return {};
}

Status Device::attach_ring() {
  const std::string name = unique_name("mercury_ring");
  const auto port = attach_ring_side(config_.device, queues_, name);
  if (!port) return port.error();
  vdev_ = "net_ring_" + name;  // what the driver makes of it
  port_id_ = *port;
  attached_ = true;
  return {};
}

// The sockets that the driver opened since `before` are those of its queues, in their order.
Status Device::find_sockets(const std::vector<int>& before, int domain) {
  std::vector<int> opened;
  std::ranges::set_difference(sockets_of_domain(domain), before, std::back_inserter(opened));
  for (uint16_t queue = 0; queue < queues_ && queue < opened.size(); ++queue) {
    lanes_[queue].device_fd = opened[queue];
    if (domain != AF_PACKET || !config_.is_shared()) continue;
    Status filtered = filter_packet_socket(opened[queue], config_.udp_port, config_.engines);
    if (!filtered) return filtered;
  }
  return {};
}

Status Device::create_pools() {
  for (uint16_t queue = 0; queue < queues_; ++queue) {
    rte_mempool* pool =
        create_frame_pool(row_.pool, unique_name("mercury_frames"), plan_.data_room, plan_.mbufs);
    if (pool == nullptr) {
      return Error(Errc::kNoMemory, "device " + name_ + ": no memory for " +
                                        std::to_string(plan_.mbufs) + " buffers of " +
                                        std::to_string(plan_.data_room) +
                                        " bytes; raise memory_mb");
    }
    pools_.push_back(pool);
    if (gather_ == Gather::kNever) continue;
    rte_mempool* gather = create_gather_pool(unique_name("mercury_gather"), 2048);
    if (gather == nullptr) {
      return Error(Errc::kNoMemory, "device " + name_ + ": no memory; raise memory_mb");
    }
    gather_pools_.push_back(gather);
  }
  return {};
}

Status Device::configure() {
  rte_eth_dev_info info{};
  int failed = rte_eth_dev_info_get(port_id_, &info);
  if (failed != 0) return driver_error("cannot be asked what it can do", failed);
  queues_ = std::min({queues_, info.max_rx_queues, info.max_tx_queues});
  gather_ = gather_of(info);
  if (Status pools = create_pools(); !pools) return pools;
  rte_eth_conf conf{};
  if (row_.is_nic()) conf.rxmode.mtu = mtu_;
  offload_tags(info, conf);
  if (row_.is_nic()) {
    // Virtual devices report 1,518 bytes at most, and carry what fits their buffers.
    if (conf.rxmode.mtu > info.max_mtu) {
      return Error(Errc::kConfig, "device " + name_ + ": mtu " + std::to_string(mtu_) +
                                      " is more than its " + std::to_string(info.max_mtu) +
                                      (conf.rxmode.mtu > mtu_ ? ", less the VLAN's tag" : ""));
    }
    checksum_offload_ = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0;
    if (checksum_offload_) conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
    if (queues_ > 1) {
      conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
      conf.rx_adv_conf.rss_conf.rss_hf =
          info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP);
    }
  }
  if (gather_ != Gather::kNever) conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  failed = rte_eth_dev_configure(port_id_, queues_, queues_, &conf);
  if (failed != 0) return driver_error("cannot be configured", failed);
  uint16_t rx_descriptors = static_cast<uint16_t>(plan_.descriptors);
  uint16_t tx_descriptors = rx_descriptors;
  rte_eth_dev_adjust_nb_rx_tx_desc(port_id_, &rx_descriptors, &tx_descriptors);
  const auto socket = static_cast<unsigned>(rte_eth_dev_socket_id(port_id_));
  const std::vector<int> before = sockets_of_domain(AF_XDP);
  for (uint16_t queue = 0; queue < queues_; ++queue) {
    failed =
        rte_eth_rx_queue_setup(port_id_, queue, rx_descriptors, socket, nullptr, pools_[queue]);
    if (failed != 0) return driver_error("receive queue " + std::to_string(queue), failed);
    rte_eth_txconf tx = info.default_txconf;
    tx.offloads = conf.txmode.offloads;
    failed = rte_eth_tx_queue_setup(port_id_, queue, tx_descriptors, socket, &tx);
    if (failed != 0) return driver_error("transmit queue " + std::to_string(queue), failed);
  }
  if (row_.uses_xdp()) return find_sockets(before, AF_XDP);
  return {};
}

Status Device::create_lanes() {
  if (!lanes_) lanes_ = std::make_unique<Lane[]>(config_.engines);
  for (uint16_t engine = 0; engine < config_.engines; ++engine) {
    Lane& lane = lanes_[engine];
    lane.queue = static_cast<uint16_t>(engine % queues_);
    lane.owns_queue = engine < queues_;
    lane.pool = pools_[lane.queue];
    if (lane.owns_queue && !gather_pools_.empty()) lane.gather_pool = gather_pools_[lane.queue];
    lane.doorbell = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (lane.doorbell < 0) return Error::system(errno, "eventfd");
    lane.inbox = rte_ring_create(unique_name("mercury_inbox").c_str(), kLaneRing, 0, RING_F_SC_DEQ);
    const bool serves_others = lane.owns_queue && config_.engines > queues_;
    if (serves_others) {
      lane.outbox =
          rte_ring_create(unique_name("mercury_outbox").c_str(), kLaneRing, 0, RING_F_SC_DEQ);
    }
    if (lane.inbox == nullptr || (serves_others && lane.outbox == nullptr)) {
      return Error(Errc::kNoMemory, "device " + name_ + ": no memory for rings; raise memory_mb");
    }
  }
  return {};
}

Status Device::start() {
  if (!connects_later()) {  // a client connects from tick(): its server may not be there yet
    const int failed = rte_eth_dev_start(port_id_);
    if (failed != 0) return driver_error("does not start", failed);
    started_ = true;
  }
  if (Status receives = receive_vlan(); !receives) return receives;
  steer();
  if (!config_.is_shared()) rte_eth_allmulticast_enable(port_id_);  // neighbour discovery
  if (local_.mac.is_zero() && row_.has_mac) {
    rte_ether_addr mac{};
    if (rte_eth_macaddr_get(port_id_, &mac) == 0) std::memcpy(local_.mac.bytes.data(), &mac, 6);
  }
  if (local_.mac.is_zero()) {
    local_.mac = MacAddress::from_ip(local_.has_v4 ? local_.v4 : local_.v6);
  }
  std::unique_ptr<KernelNeighbours> kernel;
  if (config_.is_shared()) {
    auto routes = RouteSockets::open(netdev_index_);
    if (!routes) return routes.error();
    kernel = std::move(*routes);
  }
  neighbours_ = std::make_unique<Neighbours>(local_, config_.v4, config_.v6, std::move(kernel));
  if (Status asks = neighbours_->start(); !asks) return asks;
  link_bytes_per_second_ = config_.link_bytes_per_second;
  if (started_) tick(0);  // a client starts by the engine's clock
  return {};
}

void Device::steer() {
  if (!row_.is_nic() || queues_ < 2) return;
  const Steered done =
      steer_to_engines(port_id_, {config_.udp_port, config_.engines, queues_, local_.has_v4,
                                  local_.has_v6, config_.vlan != 0});
  take_driver_log();  // what it cannot do
  const bool v4 = local_.has_v4 && !done.v4;
  const bool v6 = local_.has_v6 && !done.v6;
  by_hash_ = v4 && v6 ? "IPv4 and IPv6" : v4 ? "IPv4" : v6 ? "IPv6" : "";
}

// NICs agree on a rate seconds after they were started, and may agree on another after their cable
// was out.
void Device::take_rate(uint64_t bytes_per_second) {
  if (bytes_per_second == 0 || config_.link_bytes_per_second != 0) return;
  link_bytes_per_second_.store(bytes_per_second, std::memory_order_relaxed);
}

// The drivers say that the link is up, whatever happens.
bool Device::look_at_netdev(bool was_up) {
  const bool up = netdev_running(config_.device);
  if (up && !was_up) take_rate(netdev_link_rate(config_.device));
  return up;
}

bool Device::look_at_link() {
  rte_eth_link link{};
  const bool up = started_ && rte_eth_link_get_nowait(port_id_, &link) == 0 &&
                  link.link_status == RTE_ETH_LINK_UP;
  const bool says = row_.has_link && link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN;
  if (up && says) take_rate(uint64_t{link.link_speed} * 1'000'000 / 8);
  return up;
}

void Device::tick(uint64_t now_ns) {
  const std::unique_lock lock(tick_mutex_, std::try_to_lock);
  if (!lock) return;  // another engine is at it
  const bool outside = config_.has_netdev() || row_.has_link;
  if (outside && now_ns < next_look_ns_) return;
  if (outside) next_look_ns_ = now_ns + kLinkPollNs;
  const bool was_up = link_up_.load(std::memory_order_relaxed);
  const bool up = config_.has_netdev() ? look_at_netdev(was_up) : look_at_link();
  link_up_.store(up, std::memory_order_relaxed);
  if (up || !connects_later()) return;
  if (was_up) next_look_ns_ = now_ns + kReconnectNs;
  if (now_ns < next_look_ns_) return;
  if (started_) rte_eth_dev_stop(port_id_);
  started_ = rte_eth_dev_start(port_id_) == 0;
  if (!started_) take_driver_log();  // "cannot connect": it will be tried again
  next_look_ns_ = now_ns + (started_ ? kHandshakeNs : kReconnectNs);
}

Device::~Device() {
  if (attached_) {
    rte_eth_dev_stop(port_id_);
    rte_eth_dev_close(port_id_);
    if (!vdev_.empty()) rte_vdev_uninit(vdev_.c_str());
    if (row_.origin == Origin::kRings) release_ring_side(config_.device);
  }
  for (uint16_t engine = 0; lanes_ && engine < config_.engines; ++engine) {
    for (rte_ring* ring : {lanes_[engine].inbox, lanes_[engine].outbox}) {
      void* frame = nullptr;
      while (ring != nullptr && rte_ring_sc_dequeue(ring, &frame) == 0) {
        rte_pktmbuf_free(static_cast<rte_mbuf*>(frame));
      }
      rte_ring_free(ring);
    }
    if (lanes_[engine].doorbell >= 0) ::close(lanes_[engine].doorbell);
  }
  for (rte_mempool* pool : pools_) rte_mempool_free(pool);
  for (rte_mempool* pool : gather_pools_) rte_mempool_free(pool);
}

}  // namespace mercury::ethdev
