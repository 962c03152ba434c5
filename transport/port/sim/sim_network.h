// A network in virtual time: hosts with one or more endpoints on a star of simulated links (or on
// racks below a core), deterministic from one seed. Nothing here reads a clock.
//
// How to drive it: let every engine poll at now_ns() until none has work; then advance_to() the
// earliest of next_event_ns() and the engines' own deadlines; repeat. touched() names the ports for
// which something changed, so that thousands of idle engines need not be polled.
//
// Way of a frame: NIC queue -> host uplink -> (rack uplink -> rack downlink, of several equal ones
// those that its addresses and ports choose) -> host downlink -> receive ring. Frames between two
// endpoints of one host take neither link nor fault.
//
// Not modelled: checksums (corruption is delivered), fragmentation, ICMP, neighbour discovery,
// interrupts, and the processor time of the engines.
//
// Owner/thread: one thread for the network and all its ports.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_set>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/random.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/port/sim/event_queue.h"
#include "transport/port/sim/frame_pool.h"
#include "transport/port/sim/link.h"

namespace mercury::sim {

class SimPort;
using HostId = Id<struct HostTag, uint32_t>;
using RackId = Id<struct RackTag, uint32_t>;
using LinkId = Id<struct LinkTag, uint32_t>;

struct NetworkConfig {
  uint64_t seed = 1;
  LinkConfig host_link;           // both directions of hosts added without their own
  uint64_t start_ns = 1'000;      // the clock does not start at 0, which means "never" to engines
  uint64_t same_host_ns = 1'000;  // between two endpoints of one host
  // Bytes of the link's time that a frame takes beside the IP packet: Ethernet header 14, FCS 4,
  // preamble 8, gap 12; and the least that a frame takes (64 and the last two).
  uint32_t ethernet_bytes = 38;
  uint32_t least_wire_bytes = 84;
  // Payloads that a port shares (tx_send_shared) are counted and not carried: for simulations whose
  // arithmetic touches no payload anyway. What arrives in their place is undefined.
  bool elide_shared = false;
};

class SimNetwork {
 public:
  explicit SimNetwork(const NetworkConfig& config = {});
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;
  // All ports must have been destroyed.
  ~SimNetwork() = default;

  // Topology. Hosts of a rack share its links to the core; hosts without one hang on the core.
  // A rack's frames to others take one of `paths` equal links up, and its frames from others one of
  // as many down, each with this configuration: a hash of both ends' addresses and ports says which
  // (RFC 2992), another one for each seed.
  RackId add_rack(const LinkConfig& up, const LinkConfig& down, uint32_t paths = 1);
  HostId add_host();
  HostId add_host(const LinkConfig& up, const LinkConfig& down);
  HostId add_host(const LinkConfig& up, const LinkConfig& down, RackId rack);
  LinkId uplink(HostId host) const { return hosts_[host.value].up; }
  LinkId downlink(HostId host) const { return hosts_[host.value].down; }
  LinkId uplink(RackId rack, uint32_t path = 0) const { return racks_[rack.value].up[path]; }
  LinkId downlink(RackId rack, uint32_t path = 0) const { return racks_[rack.value].down[path]; }
  // What says which path a rack's frames take between these: modulo its number of paths.
  uint64_t path_hash(const Endpoint& source, const Endpoint& target) const noexcept;

  // Virtual time.
  uint64_t now_ns() const noexcept { return now_ps_ / 1000; }
  // When something happens next (a frame moves on, or a NIC has room again); kNever if nothing
  // will.
  uint64_t next_event_ns() const noexcept {
    return events_.empty() ? kNever : (events_.top().time_ps + 999) / 1000;
  }
  // Lets everything up to and at `ns` happen. Times in the past do nothing.
  void advance_to(uint64_t ns);
  // Ports that received a frame or whose NIC finished one since the last clear_touched().
  std::span<SimPort* const> touched() const noexcept { return touched_; }
  void clear_touched() noexcept;

  // Faults, at any time. A link that is down loses what is on it.
  void set_config(LinkId link, const LinkConfig& config) { links_[link.value].set_config(config); }
  // Another rate from now on, for what is in the queue too.
  void set_rate(LinkId link, uint64_t bytes_per_second);
  void set_faults(LinkId link, const Faults& faults) { links_[link.value].set_faults(faults); }
  void set_faults(const Faults& faults);  // every link that exists
  void set_up(LinkId link, bool up) { links_[link.value].up = up; }
  // From now on a translator of addresses shows a port's frames to other hosts as from `seen`, and
  // brings it what they send there; what they send to where it was seen before is lost. Its own
  // address again: nothing stands between. On its host nothing changes, nor in PortInfo.
  // kExists: the address is another port's; kInvalidArgument: it is of another family.
  Status show_as(SimPort& port, const Endpoint& seen);
  void block(HostId from, HostId to);  // one way
  void unblock(HostId from, HostId to);
  void partition(std::span<const HostId> one, std::span<const HostId> other);  // both ways
  void heal() { blocked_.clear(); }
  // A frame from nowhere: what a forger, or a host before its restart, may send. It arrives after
  // `delay_ns` and meets no link. Payloads above 65,507 bytes are refused: false.
  bool inject(const Endpoint& source, const Endpoint& target, std::span<const std::byte> payload,
              uint64_t delay_ns = 0);

  // Observation. `tap` sees every frame as it leaves its NIC, with all of its UDP payload.
  using Tap = void (*)(void* context, uint64_t now_ns, const Endpoint& source,
                       const Endpoint& target, std::span<const std::byte> payload);
  void set_tap(Tap tap, void* context) noexcept {
    tap_ = tap;
    tap_context_ = context;
  }
  const LinkConfig& config(LinkId link) const { return links_[link.value].config(); }
  const LinkStats& stats(LinkId link) const { return links_[link.value].stats; }
  uint64_t backlog_ns(LinkId link) const {  // until the last bit of the queue has left
    return links_[link.value].backlog_ps(now_ps_) / 1000;
  }
  uint64_t drops(Drop reason) const { return drops_[static_cast<size_t>(reason)]; }
  uint64_t delivered_frames() const noexcept { return delivered_; }
  // Shared payloads that a NIC read from memory that its port was not told of: a NIC with an IOMMU
  // would have lost their frames.
  uint64_t unmapped_reads() const noexcept { return unmapped_reads_; }
  uint64_t frames_in_use() const noexcept { return pool_.in_use(); }
  // A hash of every delivery and drop: when, what, between whom. Equal in runs that are the same.
  uint64_t trace_hash() const noexcept { return trace_; }

 private:
  friend class SimPort;
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Host {
    LinkId up;
    LinkId down;
    uint32_t rack = kNone;
  };
  struct Rack {
    std::vector<LinkId> up;  // one for each path, as many
    std::vector<LinkId> down;
  };
  struct Address {
    Endpoint endpoint;
    uint32_t host = kNone;
    SimPort* port = nullptr;
  };

  LinkId add_link(const LinkConfig& config);
  uint32_t intern(const Endpoint& endpoint);
  uint32_t ip_overhead(uint32_t address) const noexcept;

  void show_sources(SimPort& port, const Endpoint& seen);

  // For SimPort: hands a frame to the NIC; forgets a port and what its NIC holds.
  void transmit(Frame* frame, uint32_t host) noexcept;
  void forget(SimPort* port) noexcept;
  void touch(SimPort* port) noexcept;

  void route(Frame* frame, uint32_t from, uint32_t to) const noexcept;
  uint32_t choose(const std::vector<LinkId>& paths, const Frame& frame) const noexcept;
  void on_departure(Frame* frame) noexcept;
  void on_arrival(Frame* frame) noexcept;
  void enter(Frame* frame, Link& link) noexcept;
  void fly(Frame* frame, Link& link, uint64_t departure_ps) noexcept;
  void corrupt(Frame* frame) noexcept;
  void deliver(Frame* frame) noexcept;
  void drop(Frame* frame, Drop reason, Link* link) noexcept;
  void trace(const Frame& frame, uint64_t what) noexcept;
  bool is_blocked(uint32_t from, uint32_t to) const noexcept;

  NetworkConfig config_;
  Random random_;
  uint64_t now_ps_ = 0;
  FramePool pool_;
  EventQueue events_;
  std::deque<Link> links_;
  std::vector<Host> hosts_;
  std::vector<Rack> racks_;
  std::vector<Address> addresses_;
  std::map<Endpoint, uint32_t> numbers_;
  std::unordered_set<uint64_t> blocked_;
  std::vector<SimPort*> touched_;
  std::array<uint64_t, kDropCount> drops_{};
  uint64_t delivered_ = 0;
  uint64_t unmapped_reads_ = 0;
  uint64_t trace_ = 0;
  Tap tap_ = nullptr;
  void* tap_context_ = nullptr;
};

}  // namespace mercury::sim
