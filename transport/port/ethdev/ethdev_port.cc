// What is cold: opening, paths, time.
#include "transport/port/ethdev/ethdev_port.h"

#include <linux/if_packet.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "transport/port/ethdev/loan.h"

namespace mercury::ethdev {
namespace {

constexpr uint64_t kReroute = 1'000'000'000;
constexpr size_t kReroutesPerTick = Neighbours::kAskedPerTick;
constexpr uint64_t kReadMissed = 1'000'000'000;

// What the ring of a packet socket had no room for since the last call: DPDK's af_packet does not
// ask. 0: a socket of another kind.
uint32_t take_packet_drops(int fd) noexcept {
  tpacket_stats stats{};
  socklen_t bytes = sizeof stats;
  return ::getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &bytes) == 0 ? stats.tp_drops : 0;
}

// From a group's MAC address, or from none: nobody is asked for whoever wrote that.
Error no_way_back(const Endpoint& remote) {
  return Error(Errc::kInvalidArgument,
               "a frame of " + remote.to_string() + " came from no host's MAC address");
}

}  // namespace

EthdevPort::EthdevPort(std::shared_ptr<Device> device, uint16_t engine, Counters& counters)
    : device_(std::move(device)),
      counters_(counters),
      lane_(device_->lane(engine)),
      engine_(engine),
      dpdk_port_(device_->dpdk_port()),
      owns_queue_(lane_.owns_queue),
      lends_(device_->gather() == Gather::kByDma && lane_.gather_pool != nullptr),
      page_bytes_(device_->reads_by_page() ? static_cast<size_t>(::sysconf(_SC_PAGESIZE)) : 0),
      classes_(device_->config().classes),
      vlan_(device_->config().vlan) {
  const LocalIdentity& local = device_->local();
  const uint32_t headers = (local.has_v4 ? kIpv4HeaderBytes : kIpv6HeaderBytes) + kUdpHeaderBytes;
  info_.name = "ethdev:" + device_->name();
  info_.flush_is_system_call = device_->flush_is_system_call();
  info_.local.ip = local.has_v4 ? local.v4 : local.v6;
  info_.local.port = static_cast<uint16_t>(local.udp_port + engine);
  info_.source_ports = source_ports(local.udp_port, device_->config().engines, engine,
                                    device_->config().source_ports);
  info_.max_udp_payload = device_->mtu() - headers;
}

Result<std::unique_ptr<EthdevPort>> EthdevPort::open(std::shared_ptr<Device> device,
                                                     uint16_t engine, Counters& counters) {
  if (engine >= device->config().engines) {
    return Error(Errc::kInvalidArgument,
                 "device " + device->name() + " has no engine " + std::to_string(engine));
  }
  std::unique_ptr<EthdevPort> port(new EthdevPort(std::move(device), engine, counters));
  if (Status opened = port->open_wait_fd(); !opened) return opened.error();
  return port;
}

// One descriptor for the device's socket and the doorbell of other engines. A lane with a queue
// whose driver has no socket (memif, ring, tap) cannot be waited for.
Status EthdevPort::open_wait_fd() {
  if (owns_queue_ && lane_.device_fd < 0) return {};
  wait_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (wait_fd_ < 0) return Error::system(errno, "epoll_create1");
  for (const int fd : {lane_.doorbell, lane_.device_fd}) {
    if (fd < 0) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(wait_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return Error::system(errno, "epoll_ctl");
    }
  }
  return {};
}

EthdevPort::~EthdevPort() {
  rx_release();
  drop_pending();
  if (lends_) end_loans();
  for (const Path& path : paths_) {
    if (path.open) let_go(path);
  }
  rte_pktmbuf_free_bulk(stash_.data(), stash_count_);
  rte_pktmbuf_free_bulk(foreign_.data() + foreign_first_, foreign_last_ - foreign_first_);
  if (wait_fd_ >= 0) ::close(wait_fd_);
}

// The NIC is given the time to send what it has: no driver says when it has, so it is asked, with
// pauses. What it keeps, as its cable is out, it may not read any more: the owner is about to go.
void EthdevPort::end_loans() {
  constexpr int kMost = 100;
  constexpr useconds_t kPauseUs = 1000;
  uint32_t lent = 0;
  const auto count = [](rte_mempool*, void* sum, void* mbuf, unsigned) {
    *static_cast<uint32_t*>(sum) += loan_of(static_cast<rte_mbuf*>(mbuf))->pin != nullptr;
  };
  for (int pass = 0; pass < kMost; ++pass) {
    device_->let_go(lane_.queue);
    lent = 0;
    rte_mempool_obj_iter(lane_.gather_pool, count, &lent);
    if (lent == 0) break;
    ::usleep(kPauseUs);
  }
  const auto end = [](rte_mempool*, void*, void* mbuf, unsigned) {
    loan_of(static_cast<rte_mbuf*>(mbuf))->end();
  };
  rte_mempool_obj_iter(lane_.gather_pool, end, nullptr);
  for (const std::span<std::byte> memory : mapped_) {
    if (!memory.empty()) device_->unmap_memory(memory);
  }
}

Result<MemoryKey> EthdevPort::map(std::span<std::byte> memory) {
  if (!lends_) return MemoryKey();
  if (Status mapped = device_->map_memory(memory); !mapped) return mapped.error();
  const auto free = std::ranges::find_if(mapped_, [](const auto& each) { return each.empty(); });
  const auto key = static_cast<uint32_t>(free - mapped_.begin());
  if (free == mapped_.end()) mapped_.emplace_back();
  mapped_[key] = memory;
  return MemoryKey(key);
}

void EthdevPort::unmap(MemoryKey key) {
  if (!lends_) return;
  device_->unmap_memory(std::exchange(mapped_[key.value], {}));
}

// The frame lies in its buffer behind the headers with which it came.
ReturnWay EthdevPort::return_way(const RxFrame& frame) const noexcept {
  const size_t ip_bytes = frame.source.ip.is_v4() ? kIpv4HeaderBytes : kIpv6HeaderBytes;
  const std::byte* const ether =
      frame.payload.data() - kUdpHeaderBytes - ip_bytes - kEtherHeaderBytes;
  MacAddress source;
  std::memcpy(source.bytes.data(), ether + source.bytes.size(), source.bytes.size());
  return {source.is_group() ? 0 : source.packed()};
}

Result<PathId> EthdevPort::open_path(const Endpoint& remote) { return open_path(remote, {}); }

Result<PathId> EthdevPort::open_answer_path(const Endpoint& remote, ReturnWay way) {
  if (way.opaque == 0) return no_way_back(remote);
  return open_path(remote, way);
}

// Whoever is reached by a gateway costs no neighbour, and its gateway may not be where its frames
// come from.
Result<PathId> EthdevPort::open_tentative_path(const Endpoint& remote, ReturnWay way) {
  if (!device_->neighbours().would_add_host(remote.ip)) return open_path(remote, {});
  return open_answer_path(remote, way);
}

void EthdevPort::settle_path(PathId id) {
  Path& path = paths_[id.value];
  if (!path.fixed) return;
  const auto neighbour = device_->neighbours().resolve(path.remote.ip);
  path.seeks = !neighbour;  // then it stays as it is until reroute() finds one
  if (neighbour) settle_at(path, *neighbour);
}

void EthdevPort::settle_at(Path& path, uint32_t neighbour) {
  path.fixed = path.seeks = false;
  path.borrowed = true;
  path.neighbour = neighbour;
}

Result<PathId> EthdevPort::open_path_from(PathId like, uint16_t source) {
  if (source >= info_.source_ports.count) {
    return Error(Errc::kInvalidArgument, "the port has no such source port");
  }
  Path path = paths_[like.value];
  set_source_port(path.header, static_cast<uint16_t>(info_.source_ports.first + source));
  if (has_neighbour(path)) device_->neighbours().hold(path.neighbour);
  return add_path(path);
}

Result<PathId> EthdevPort::open_path(const Endpoint& remote, ReturnWay way) {
  const LocalIdentity& local = device_->local();
  const bool v4 = remote.ip.is_v4();
  const uint8_t first_byte = remote.ip.bytes[v4 ? 12 : 0];
  const bool group = v4 ? first_byte >= 224 : first_byte == 0xff;
  if (remote.port == 0 || remote.ip.is_unspecified() || group) {
    return Error(Errc::kInvalidArgument, remote.to_string() + " is no address of a peer");
  }
  if (v4 ? !local.has_v4 : !local.has_v6) {
    return Error(Errc::kNotFound, "device " + device_->name() + " has no " +
                                      (v4 ? "IPv4" : "IPv6") + " address to reach " +
                                      remote.to_string() + " from");
  }
  Path path;
  path.open = true;
  path.remote = remote;
  const Endpoint self{v4 ? local.v4 : local.v6, info_.local.port};
  MacAddress destination;
  if (remote.ip == self.ip) {
    if (remote.port < local.udp_port || remote.port >= local.udp_port + local.udp_ports) {
      return Error(Errc::kNotFound, remote.to_string() + " is this host, and no engine of it");
    }
    path.loops = true;
    path.loop_engine = static_cast<uint16_t>(remote.port - local.udp_port);
    destination = local.mac;
  } else if (way.opaque != 0) {
    path.fixed = true;
    destination = MacAddress::unpack(way.opaque);
  } else {
    const auto neighbour = device_->neighbours().resolve(remote.ip);
    if (!neighbour) return neighbour.error();
    path.neighbour = *neighbour;
  }
  path.header = make_template(local.mac, destination, self, remote);
  return add_path(path);
}

PathId EthdevPort::add_path(const Path& path) {
  if (free_paths_.empty()) {
    paths_.push_back(path);
    return PathId(static_cast<uint32_t>(paths_.size() - 1));
  }
  const uint32_t slot = free_paths_.back();
  free_paths_.pop_back();
  paths_[slot] = path;
  return PathId(slot);
}

void EthdevPort::let_go(const Path& path) {
  if (has_neighbour(path)) device_->neighbours().release(path.neighbour);
}

void EthdevPort::close_path(PathId path) {
  if (path.value >= paths_.size() || !paths_[path.value].open) return;
  let_go(paths_[path.value]);
  paths_[path.value].open = false;
  free_paths_.push_back(path.value);
}

bool EthdevPort::path_ready(PathId path) const {
  const Path& at = paths_[path.value];
  return at.loops || at.fixed ||
         (device_->link_up() && (at.borrowed || device_->neighbours().mac(at.neighbour) != 0));
}

uint32_t EthdevPort::path_max_payload(PathId path) const {
  return device_->mtu() - (paths_[path.value].header.length - kEtherHeaderBytes);
}

uint32_t EthdevPort::buffers_in_use() const noexcept {
  const uint32_t held = building_ + (pending_last_ - pending_first_) +
                        (foreign_last_ - foreign_first_) + held_count_ + stash_count_;
  const bool copies = device_->gather() == Gather::kInCall;
  if (!copies || device_->config().engines != device_->queues()) return held;
  const uint32_t taken = rte_mempool_in_use_count(lane_.pool);
  return taken - std::min(taken, spare_.count());
}

void EthdevPort::tick(uint64_t now_ns) {
  device_->tick(now_ns);
  if (owns_queue_) count_missed(now_ns);
  if (!device_->link_up()) return;
  device_->neighbours().tick(now_ns,
                             [this](std::span<const std::byte> frame) { queue_raw(frame); });
  reroute(now_ns);
}

// Looks for another way to peers whose next hop does not answer: routes change. Once for all paths
// to one, and in a tick to kReroutesPerTick peers, as the kernel is asked for each; next comes who
// is behind them.
void EthdevPort::reroute(uint64_t now_ns) {
  if (now_ns < next_reroute_ns_) return;
  Neighbours& neighbours = device_->neighbours();
  std::map<IpAddress, std::optional<uint32_t>> ways;
  for (; next_reroute_ < paths_.size(); ++next_reroute_) {
    Path& path = paths_[next_reroute_];
    const bool lost = has_neighbour(path) && neighbours.mac(path.neighbour) == 0;
    if (!path.open || !(lost || path.seeks)) continue;
    if (ways.size() >= kReroutesPerTick && !ways.contains(path.remote.ip)) return;
    const auto [way, is_new] = ways.try_emplace(path.remote.ip);
    if (is_new) {
      if (const auto found = neighbours.resolve(path.remote.ip)) way->second = *found;
    } else if (way->second) {
      neighbours.hold(*way->second);
    }
    if (!way->second) continue;
    let_go(path);
    if (path.seeks) {
      settle_at(path, *way->second);
    } else {
      path.neighbour = *way->second;
    }
  }
  next_reroute_ = 0;
  next_reroute_ns_ = now_ns + kReroute;
}

// Frames that found no buffer or no descriptor never reach rx_burst: the device counts them.
void EthdevPort::count_missed(uint64_t now_ns) {
  if (now_ns < next_missed_ns_) return;
  next_missed_ns_ = now_ns + kReadMissed;
  counters_.add(Counter::kDropNoBuffer, take_packet_drops(lane_.device_fd));
  rte_eth_stats stats{};
  if (engine_ != 0 || rte_eth_stats_get(dpdk_port_, &stats) != 0) return;  // all queues together
  const uint64_t missed = stats.imissed + stats.rx_nombuf;
  if (missed > missed_) counters_.add(Counter::kDropNoBuffer, missed - missed_);
  missed_ = missed;
}

void EthdevPort::queue_raw(std::span<const std::byte> frame) {
  TxFrame room;
  if (!tx_alloc(room)) return;  // asked again on a later tick
  --building_;
  auto* mbuf = static_cast<rte_mbuf*>(room.cookie);
  std::memcpy(room.data, frame.data(), frame.size());
  mbuf->data_len = static_cast<uint16_t>(frame.size());
  mbuf->pkt_len = static_cast<uint32_t>(frame.size());
  queue(mbuf, Path{});
}

}  // namespace mercury::ethdev
