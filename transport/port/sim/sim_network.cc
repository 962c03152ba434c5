#include "transport/port/sim/sim_network.h"

#include <algorithm>
#include <cstring>

#include "transport/port/sim/sim_port.h"

namespace mercury::sim {
namespace {

constexpr uint32_t kUdpBytes = 8;
constexpr uint32_t kLargestPayload = 65'507;
constexpr uint64_t kDeliveredMark = 0x100;  // in the trace, beside the numbers of Drop

constexpr std::array<const char*, kDropCount> kDropNames{
    "loss",      "burst",       "queue_full",   "mtu",        "link_down",
    "partition", "no_endpoint", "rx_ring_full", "sender_gone"};

uint64_t pair_of(uint32_t from, uint32_t to) { return uint64_t{from} << 32 | to; }

}  // namespace

const char* name_of(Drop reason) { return kDropNames[static_cast<size_t>(reason)]; }

SimNetwork::SimNetwork(const NetworkConfig& config)
    : config_(config), random_(config.seed), now_ps_(config.start_ns * 1000) {}

LinkId SimNetwork::add_link(const LinkConfig& config) {
  links_.emplace_back(config);
  return LinkId(static_cast<uint32_t>(links_.size() - 1));
}

RackId SimNetwork::add_rack(const LinkConfig& up, const LinkConfig& down, uint32_t paths) {
  Rack& rack = racks_.emplace_back();
  for (uint32_t path = 0; path < paths; ++path) {
    rack.up.push_back(add_link(up));
    rack.down.push_back(add_link(down));
  }
  return RackId(static_cast<uint32_t>(racks_.size() - 1));
}

HostId SimNetwork::add_host() { return add_host(config_.host_link, config_.host_link); }

HostId SimNetwork::add_host(const LinkConfig& up, const LinkConfig& down) {
  const LinkId up_id = add_link(up);
  hosts_.push_back({up_id, add_link(down), kNone});
  return HostId(static_cast<uint32_t>(hosts_.size() - 1));
}

HostId SimNetwork::add_host(const LinkConfig& up, const LinkConfig& down, RackId rack) {
  const HostId host = add_host(up, down);
  hosts_[host.value].rack = rack.value;
  return host;
}

uint32_t SimNetwork::intern(const Endpoint& endpoint) {
  const auto [at, fresh] = numbers_.try_emplace(endpoint, static_cast<uint32_t>(addresses_.size()));
  if (fresh) addresses_.push_back({endpoint, kNone, nullptr});
  return at->second;
}

uint32_t SimNetwork::ip_overhead(uint32_t address) const noexcept {
  return (addresses_[address].endpoint.ip.is_v4() ? 20u : 40u) + kUdpBytes;
}

void SimNetwork::set_faults(const Faults& faults) {
  for (Link& link : links_) link.set_faults(faults);
}

void SimNetwork::set_rate(LinkId id, uint64_t bytes_per_second) {
  Link& link = links_[id.value];
  LinkConfig config = link.config();
  if (config.bytes_per_second == 0 || bytes_per_second == 0) return;
  const double factor =
      static_cast<double>(config.bytes_per_second) / static_cast<double>(bytes_per_second);
  config.bytes_per_second = bytes_per_second;
  link.set_config(config);
  link.stretch(now_ps_, factor);
  // Frames whose last bit is still to leave, in the queue's own order.
  events_.retime([&](const Event& event) {
    const Frame& frame = *event.frame;
    if (frame.hops == 0 || frame.route[frame.hop] != id.value) return event.time_ps;
    const uint64_t fixed_ps =
        now_ps_ + (frame.stage == Stage::kFlying ? config.delay_ns * 1000 : 0);
    if (event.time_ps <= fixed_ps) return event.time_ps;
    return fixed_ps + static_cast<uint64_t>(static_cast<double>(event.time_ps - fixed_ps) * factor);
  });
}

Status SimNetwork::show_as(SimPort& port, const Endpoint& seen) {
  if (seen.ip.is_v4() != port.info_.local.ip.is_v4()) {
    return Error(Errc::kInvalidArgument,
                 seen.to_string() + " is of another address family than the port");
  }
  const uint32_t number = intern(seen);
  Address& shown = addresses_[number];
  if (shown.port != nullptr && shown.port != &port) {
    return Error(Errc::kExists, seen.to_string() + " is another simulated port's");
  }
  if (port.seen_ != port.address_) addresses_[port.seen_].port = nullptr;
  shown.host = port.host_.value;
  shown.port = &port;
  port.seen_ = number;
  show_sources(port, seen);
  return {};
}

// Ports that nobody answers to: a translator changes their address alone.
void SimNetwork::show_sources(SimPort& port, const Endpoint& seen) {
  port.sources_.clear();
  for (uint32_t i = 0; i < port.info_.source_ports.count; ++i) {
    const auto from = static_cast<uint16_t>(port.info_.source_ports.first + i);
    port.sources_.push_back(intern({seen.ip, from}));
    addresses_[port.sources_.back()].host = port.host_.value;
  }
}

uint64_t SimNetwork::path_hash(const Endpoint& source, const Endpoint& target) const noexcept {
  uint64_t state = config_.seed;
  for (const Endpoint& end : {source, target}) {
    uint64_t words[2];
    std::memcpy(words, end.ip.bytes.data(), sizeof words);
    for (const uint64_t word : {words[0], words[1], uint64_t{end.port}}) {
      state ^= word;
      state = split_mix(state);
    }
  }
  return state;
}

void SimNetwork::block(HostId from, HostId to) { blocked_.insert(pair_of(from.value, to.value)); }
void SimNetwork::unblock(HostId from, HostId to) { blocked_.erase(pair_of(from.value, to.value)); }

void SimNetwork::partition(std::span<const HostId> one, std::span<const HostId> other) {
  for (HostId a : one) {
    for (HostId b : other) {
      block(a, b);
      block(b, a);
    }
  }
}

bool SimNetwork::is_blocked(uint32_t from, uint32_t to) const noexcept {
  return !blocked_.empty() && blocked_.contains(pair_of(from, to));
}

bool SimNetwork::inject(const Endpoint& source, const Endpoint& target,
                        std::span<const std::byte> payload, uint64_t delay_ns) {
  if (payload.size() > kLargestPayload) return false;
  Frame* const frame = pool_.acquire(static_cast<uint32_t>(payload.size()));
  frame->size = static_cast<uint32_t>(payload.size());
  if (!payload.empty()) std::memcpy(frame->data, payload.data(), payload.size());
  frame->source = intern(source);
  frame->target = intern(target);
  frame->stage = Stage::kFlying;
  events_.push(now_ps_ + delay_ns * 1000, frame);
  return true;
}

void SimNetwork::advance_to(uint64_t ns) {
  const uint64_t end_ps = ns * 1000;
  while (!events_.empty() && events_.top().time_ps <= end_ps) {
    const Event event = events_.top();
    events_.pop();
    now_ps_ = std::max(now_ps_, event.time_ps);
    if (event.frame->stage == Stage::kDeparting) {
      on_departure(event.frame);
    } else {
      on_arrival(event.frame);
    }
  }
  now_ps_ = std::max(now_ps_, end_ps);
}

void SimNetwork::touch(SimPort* port) noexcept {
  if (port->touched_) return;
  port->touched_ = true;
  touched_.push_back(port);
}

void SimNetwork::clear_touched() noexcept {
  for (SimPort* port : touched_) port->touched_ = false;
  touched_.clear();
}

void SimNetwork::forget(SimPort* port) noexcept {
  addresses_[port->address_].port = addresses_[port->seen_].port = nullptr;
  // Its payloads may go next, so what its NIC has not read yet must not be read later.
  for (const Event& event : events_.all()) {
    if (event.frame->sender == port) port->departed(event.frame);
  }
  std::erase(touched_, port);
}

void SimNetwork::transmit(Frame* frame, uint32_t host) noexcept {
  frame->stage = Stage::kDeparting;
  const uint32_t target = addresses_[frame->target].host;
  if (target == host) {
    events_.push(now_ps_, frame);
    return;
  }
  const SimPort& sender = *frame->sender;
  frame->source = frame->source_port == 0 ? sender.seen_ : sender.sources_[frame->source_port - 1U];
  route(frame, host, target);
  Link& link = links_[hosts_[host].up.value];
  if (link.marks(now_ps_)) {
    frame->arrival.ecn_ce = true;
    ++link.stats.ecn_marked;
  }
  events_.push(link.enqueue(now_ps_, frame->wire_bytes), frame);
}

uint32_t SimNetwork::choose(const std::vector<LinkId>& paths, const Frame& frame) const noexcept {
  if (paths.size() == 1) return paths[0].value;
  const uint64_t hash =
      path_hash(addresses_[frame.source].endpoint, addresses_[frame.target].endpoint);
  return paths[hash % paths.size()].value;
}

// An unknown target is found out at the switch, as in a real network.
void SimNetwork::route(Frame* frame, uint32_t from, uint32_t to) const noexcept {
  uint8_t hops = 0;
  const Host& source = hosts_[from];
  frame->route[hops++] = source.up.value;
  if (to != kNone) {
    const Host& target = hosts_[to];
    if (source.rack != target.rack) {
      if (source.rack != kNone) frame->route[hops++] = choose(racks_[source.rack].up, *frame);
      if (target.rack != kNone) frame->route[hops++] = choose(racks_[target.rack].down, *frame);
    }
    frame->route[hops++] = target.down.value;
  }
  frame->hops = hops;
}

void SimNetwork::on_departure(Frame* frame) noexcept {
  if (frame->sender == nullptr) {
    drop(frame, Drop::kSenderGone, nullptr);
    return;
  }
  frame->sender->departed(frame);
  if (tap_ != nullptr) [[unlikely]] {
    const Endpoint source = addresses_[frame->source].endpoint;  // a tap may add addresses
    const Endpoint target = addresses_[frame->target].endpoint;
    tap_(tap_context_, now_ns(), source, target, {frame->data, frame->size});
  }
  if (frame->hops == 0) {
    frame->stage = Stage::kFlying;
    events_.push(now_ps_ + config_.same_host_ns * 1000, frame);
    return;
  }
  fly(frame, links_[frame->route[0]], now_ps_);
}

// The frame has been serialised onto `link`: draws its fate there.
void SimNetwork::fly(Frame* frame, Link& link, uint64_t departure_ps) noexcept {
  const LinkConfig& config = link.config();
  const Faults& faults = config.faults;
  if (!link.up) return drop(frame, Drop::kLinkDown, &link);
  if (frame->ip_bytes > std::min(config.mtu_bytes, faults.vanish_above_bytes)) {
    return drop(frame, Drop::kMtu, &link);
  }
  if (random_.chance(faults.loss)) return drop(frame, Drop::kLoss, &link);
  if (link.burst_takes(departure_ps, random_)) return drop(frame, Drop::kBurst, &link);
  frame->stage = Stage::kFlying;
  uint64_t arrival_ps = link.jittered(departure_ps + config.delay_ns * 1000, random_);
  if (random_.chance(faults.duplicate)) {
    ++link.stats.duplicated;
    Frame* const copy = pool_.acquire(frame->size);
    std::byte* const data = copy->data;
    const uint32_t capacity = copy->capacity;
    const uint8_t size_class = copy->size_class;
    *copy = *frame;
    copy->data = data;
    copy->capacity = capacity;
    copy->size_class = size_class;
    std::memcpy(data, frame->data, frame->size);
    events_.push(arrival_ps, copy);
  }
  if (random_.chance(faults.corrupt)) {
    ++link.stats.corrupted;
    corrupt(frame);
  }
  if (random_.chance(faults.reorder)) {
    ++link.stats.reordered;
    arrival_ps += 1000 * (1 + random_.below(faults.reorder_delay_ns));
  }
  events_.push(arrival_ps, frame);
}

void SimNetwork::corrupt(Frame* frame) noexcept {
  if (frame->size == 0) return;
  const uint64_t flips = 1 + random_.below(3);
  for (uint64_t i = 0; i < flips; ++i) {
    const uint64_t bit = random_.below(uint64_t{frame->size} * 8);
    frame->data[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

void SimNetwork::on_arrival(Frame* frame) noexcept {
  if (frame->hops == 0) return deliver(frame);
  Link& link = links_[frame->route[frame->hop]];
  if (!link.up) return drop(frame, Drop::kLinkDown, &link);
  if (++frame->hop < frame->hops) return enter(frame, links_[frame->route[frame->hop]]);
  if (frame->hops == 1) return drop(frame, Drop::kNoEndpoint, &link);
  deliver(frame);
}

// A switch queues the frame for its next link.
void SimNetwork::enter(Frame* frame, Link& link) noexcept {
  const uint32_t target = addresses_[frame->target].host;
  if (frame->hop == 1 && is_blocked(addresses_[frame->source].host, target)) {
    return drop(frame, Drop::kPartition, &link);
  }
  if (!link.up) return drop(frame, Drop::kLinkDown, &link);
  if (frame->ip_bytes > link.config().mtu_bytes) return drop(frame, Drop::kMtu, &link);
  if (link.full(now_ps_, frame->wire_bytes)) return drop(frame, Drop::kQueueFull, &link);
  if (link.marks(now_ps_)) {
    frame->arrival.ecn_ce = true;
    ++link.stats.ecn_marked;
  }
  fly(frame, link, link.enqueue(now_ps_, frame->wire_bytes));
}

void SimNetwork::deliver(Frame* frame) noexcept {
  SimPort* const port = addresses_[frame->target].port;
  const bool from_others = frame->hops > 0;
  if (port == nullptr || (from_others && port->seen_ != frame->target)) {
    return drop(frame, Drop::kNoEndpoint, nullptr);
  }
  frame->stage = Stage::kOwned;
  trace(*frame, kDeliveredMark);
  if (!port->receive(frame)) return drop(frame, Drop::kRxRingFull, nullptr);
  ++delivered_;
}

void SimNetwork::drop(Frame* frame, Drop reason, Link* link) noexcept {
  ++drops_[static_cast<size_t>(reason)];
  if (link != nullptr) ++link->stats.drops[static_cast<size_t>(reason)];
  trace(*frame, static_cast<uint64_t>(reason));
  pool_.release(frame);
}

void SimNetwork::trace(const Frame& frame, uint64_t what) noexcept {
  uint64_t state = trace_ ^ now_ps_;
  state = split_mix(state) ^ pair_of(frame.source, frame.target);
  state = split_mix(state) ^ (what << 32 | frame.size);
  trace_ = split_mix(state);
}

}  // namespace mercury::sim
