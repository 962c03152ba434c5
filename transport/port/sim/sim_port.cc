#include "transport/port/sim/sim_port.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace mercury::sim {
namespace {

constexpr uint32_t kLargestIpBytes = 65'535;

// The port's part of a PayloadPin: how many frames still read the payload.
uint32_t& readers_of(PayloadPin& pin) noexcept {
  return *std::launder(reinterpret_cast<uint32_t*>(pin.opaque));
}

uint32_t since(uint64_t then_ns, uint64_t now_ns) noexcept {
  return then_ns < now_ns ? static_cast<uint32_t>(std::min<uint64_t>(now_ns - then_ns, UINT32_MAX))
                          : 0;
}

Frame* frame_of(const TxFrame& frame) noexcept { return static_cast<Frame*>(frame.cookie); }

}  // namespace

Result<std::unique_ptr<SimPort>> SimPort::create(SimNetwork& network, HostId host,
                                                 const Endpoint& local,
                                                 const SimPortConfig& config) {
  if (host.value >= network.hosts_.size()) {
    return Error(Errc::kInvalidArgument, "the simulated network has no such host");
  }
  if (local.ip.is_unspecified() || local.port == 0) {
    return Error(Errc::kInvalidArgument,
                 local.to_string() + ": a simulated port needs an address and a UDP port");
  }
  if (network.addresses_[network.intern(local)].port != nullptr) {
    return Error(Errc::kExists, local.to_string() + " is taken by another simulated port");
  }
  std::unique_ptr<SimPort> port(new SimPort(network, host, local, config));
  SimNetwork::Address& address = network.addresses_[port->address_];
  address.port = port.get();
  address.host = host.value;
  return port;
}

SimPort::SimPort(SimNetwork& network, HostId host, const Endpoint& local,
                 const SimPortConfig& config)
    : network_(network),
      host_(host),
      address_(network.intern(local)),
      seen_(address_),
      config_(config),
      counters_(config.counters != nullptr ? config.counters : &own_counters_) {
  const LinkConfig& up = network.config(network.uplink(host));
  mtu_bytes_ = std::min(up.mtu_bytes, kLargestIpBytes);
  info_.name = "sim";
  info_.local = local;
  info_.max_udp_payload = mtu_bytes_ - network.ip_overhead(address_);
  info_.source_ports = config.source_ports;
  info_.flush_is_system_call = config.flush_is_system_call;
  network_.show_sources(*this, local);
  if (config.report_rate) reported_rate_ = up.bytes_per_second;
  info_.reports_completion = true;
  if (config_.tx_queue_bytes == 0) {
    config_.tx_queue_bytes = 2 * uint64_t{mtu_bytes_ + network.config_.ethernet_bytes};
  }
}

SimPort::~SimPort() {
  while (Frame* frame = pending_.pop()) {
    departed(frame);
    network_.pool_.release(frame);
  }
  network_.forget(this);
  for (FrameList* list : {&arrived_, &lent_}) {
    while (Frame* frame = list->pop()) network_.pool_.release(frame);
  }
}

uint32_t SimPort::rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
  // They have come in this order.
  const bool waited = !arrived_.empty() && arrived_.front()->arrived_ns < now_ns;
  uint32_t count = 0;
  while (count < burst.size()) {
    Frame* frame = arrived_.pop();
    if (frame == nullptr) break;
    burst[count].payload = {frame->data, frame->size};
    burst[count].source = network_.addresses_[frame->source].endpoint;
    static_cast<Arrival&>(burst[count]) = frame->arrival;
    if (waited) [[unlikely]]
      burst[count].waited_ns = since(frame->arrived_ns, now_ns);
    lent_.push(frame);
    ++count;
  }
  return count;
}

void SimPort::rx_release() noexcept {
  while (Frame* frame = lent_.pop()) network_.pool_.release(frame);
}

bool SimPort::tx_alloc(TxFrame& frame) noexcept {
  if (queued_bytes_ >= config_.tx_queue_bytes) return false;
  Frame* const fresh = network_.pool_.acquire(info_.max_udp_payload);
  fresh->wire_bytes = mtu_bytes_ + network_.config_.ethernet_bytes;  // until its size is known
  queued_bytes_ += fresh->wire_bytes;
  ++queued_frames_;
  frame = TxFrame{fresh->data, info_.max_udp_payload, 0, fresh};
  return true;
}

void SimPort::queue(TxFrame& tx, PathId path, uint32_t total_bytes) noexcept {
  Frame* const frame = frame_of(tx);
  const NetworkConfig& config = network_.config_;
  const uint32_t target = target_of(path);
  if (target >= network_.addresses_.size() || total_bytes > info_.max_udp_payload) {
    counters_->add(target < network_.addresses_.size() ? Counter::kDropTooLarge
                                                       : Counter::kDropNeighbor);
    tx_cancel(tx);
    return;
  }
  queued_bytes_ -= frame->wire_bytes;
  frame->source = address_;
  frame->target = target;
  frame->source_port = static_cast<uint8_t>(source_of(path));
  frame->ip_bytes = total_bytes + network_.ip_overhead(target);
  frame->wire_bytes = std::max(frame->ip_bytes + config.ethernet_bytes, config.least_wire_bytes);
  frame->sender = this;
  queued_bytes_ += frame->wire_bytes;
  pending_.push(frame);
  tx = TxFrame{};
}

void SimPort::tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
  frame_of(frame)->size = bytes;
  queue(frame, path, bytes);
}

void SimPort::tx_send_shared(TxFrame& tx, uint32_t bytes, PathId path,
                             std::span<const std::byte> payload, PayloadPin& pin) noexcept {
  Frame* const frame = frame_of(tx);
  const uint64_t total = bytes + payload.size();
  frame->size = bytes;
  frame->shared = payload;
  frame->pin = &pin;
  ++readers_of(pin);
  queue(tx, path, static_cast<uint32_t>(std::min<uint64_t>(total, ~uint32_t{0})));
}

void SimPort::tx_cancel(TxFrame& tx) noexcept {
  Frame* const frame = frame_of(tx);
  if (frame->pin != nullptr) --readers_of(*frame->pin);
  queued_bytes_ -= frame->wire_bytes;
  --queued_frames_;
  network_.pool_.release(frame);
  tx = TxFrame{};
}

bool SimPort::pin_busy(PayloadPin& pin) noexcept { return readers_of(pin) != 0; }

void SimPort::tx_flush(uint64_t) noexcept {
  while (Frame* frame = pending_.pop()) network_.transmit(frame, host_.value);
}

void SimPort::departed(Frame* frame) noexcept {
  if (frame->pin != nullptr) {
    if (!is_mapped(frame->shared)) ++network_.unmapped_reads_;
    if (!network_.config_.elide_shared) {
      std::memcpy(frame->data + frame->size, frame->shared.data(), frame->shared.size());
    }
    frame->size += static_cast<uint32_t>(frame->shared.size());
    frame->shared = {};
    --readers_of(*frame->pin);
    frame->pin = nullptr;
  }
  queued_bytes_ -= frame->wire_bytes;
  --queued_frames_;
  frame->sender = nullptr;
  network_.touch(this);
}

bool SimPort::receive(Frame* frame) noexcept {
  if (arrived_.size() >= config_.rx_ring_frames) {
    counters_->add(Counter::kDropNoBuffer);
    return false;
  }
  frame->arrived_ns = (network_.now_ps_ + 999) / 1000;  // when an engine is told of it
  arrived_.push(frame);
  network_.touch(this);
  return true;
}

Result<MemoryKey> SimPort::map(std::span<std::byte> memory) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = begin + memory.size();
  if (memory.empty() || begin % page != 0 || end % page != 0) {
    return Error(Errc::kInvalidArgument, "whole pages can be mapped, and nothing less");
  }
  const auto next = mapped_.lower_bound(end);
  if (next != mapped_.begin() && std::prev(next)->second.end > begin) {
    return Error(Errc::kInvalidArgument, "pages that are mapped already");
  }
  const MemoryKey key(next_key_++);
  mapped_.emplace(begin, Pages{end, key});
  return key;
}

void SimPort::unmap(MemoryKey key) {
  std::erase_if(mapped_, [key](const auto& pages) { return pages.second.key == key; });
  last_begin_ = last_end_ = 0;
}

bool SimPort::is_mapped(std::span<const std::byte> payload) noexcept {
  const auto begin = reinterpret_cast<uintptr_t>(payload.data());
  const uintptr_t end = begin + payload.size();
  if (begin >= last_begin_ && end <= last_end_) return true;
  const auto next = mapped_.upper_bound(begin);
  if (next == mapped_.begin() || std::prev(next)->second.end < end) return false;
  last_begin_ = std::prev(next)->first;
  last_end_ = std::prev(next)->second.end;
  return true;
}

Result<PathId> SimPort::open_path(const Endpoint& remote) {
  if (remote.ip.is_unspecified() || remote.port == 0) {
    return Error(Errc::kInvalidArgument, remote.to_string() + " is no endpoint to send to");
  }
  if (remote.ip.is_v4() != info_.local.ip.is_v4()) {
    return Error(Errc::kInvalidArgument, remote.to_string() + " and " + info_.local.to_string() +
                                             " are of different address families");
  }
  return PathId(network_.intern(remote));
}

Result<PathId> SimPort::open_path_from(PathId path, uint16_t source) {
  if (source >= info_.source_ports.count) {
    return Error(Errc::kInvalidArgument, "the simulated port has no such source port");
  }
  return PathId(target_of(path) | (source + 1U) << kSourceShift);
}

uint32_t SimPort::path_max_payload(PathId) const { return info_.max_udp_payload; }

}  // namespace mercury::sim
