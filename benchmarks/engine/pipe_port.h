// A port that costs next to nothing: frames change hands by pointer between the ports of one
// thread. What an engine over it takes is the engine's own. Models the concept Port.
//
// A shared payload is copied when it is sent, as drivers do that cannot gather from it later.
// Owner/thread: one, for all ports of a wire. The wire outlives its ports.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/port/port.h"

namespace mercury::bench {

struct PipeFrame {
  std::byte* data = nullptr;
  uint32_t bytes = 0;
  Endpoint source;
};

class PipePort;

// The frames, and who is reached where.
class PipeWire {
 public:
  // With `elide_shared`, payloads that a port shares are counted and not carried, as on the
  // simulated network.
  PipeWire(uint32_t frames, uint32_t max_udp_payload, bool elide_shared = false)
      : max_udp_payload_(max_udp_payload),
        elide_shared_(elide_shared),
        stride_((size_t{max_udp_payload} + 63) / 64 * 64),
        memory_(frames * stride_ + 64),
        frames_(frames) {
    const auto misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % 64;
    for (uint32_t i = 0; i < frames; ++i) {
      frames_[i].data = memory_.data() + (64 - misaligned) + i * stride_;
      free_.push_back(&frames_[i]);
    }
  }
  uint32_t max_udp_payload() const { return max_udp_payload_; }
  // From now on one frame in so many is lost; 0: none.
  void lose_one_in(uint32_t frames) noexcept { lose_one_in_ = frames; }

 private:
  friend class PipePort;
  const uint32_t max_udp_payload_;
  bool loses_this_one() noexcept { return lose_one_in_ != 0 && ++sent_ % lose_one_in_ == 0; }

  const bool elide_shared_;
  uint32_t lose_one_in_ = 0;
  uint64_t sent_ = 0;
  const size_t stride_;
  std::vector<std::byte> memory_;
  std::vector<PipeFrame> frames_;
  std::vector<PipeFrame*> free_;  // the last that was given back is the first to be used again
  std::vector<PipePort*> ports_;
};

class PipePort {
 public:
  PipePort(PipeWire& wire, const Endpoint& local) : wire_(wire) {
    info_ = {.name = "pipe", .local = local, .max_udp_payload = wire.max_udp_payload()};
    arrived_.resize(std::bit_ceil(wire.frames_.size()));  // room for all there are
    lent_.reserve(arrived_.size());
    wire_.ports_.push_back(this);
  }
  ~PipePort() { std::erase(wire_.ports_, this); }
  PipePort(const PipePort&) = delete;
  PipePort& operator=(const PipePort&) = delete;

  const PortInfo& info() const { return info_; }
  uint64_t link_bytes_per_second() const noexcept { return 0; }

  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t) noexcept {
    const auto count = static_cast<uint32_t>(std::min<size_t>(burst.size(), last_ - first_));
    for (uint32_t i = 0; i < count; ++i) {
      PipeFrame* frame = arrived_[first_++ & (arrived_.size() - 1)];
      burst[i].payload = {frame->data, frame->bytes};
      burst[i].source = frame->source;
      lent_.push_back(frame);
    }
    return count;
  }
  void rx_release() noexcept {
    wire_.free_.insert(wire_.free_.end(), lent_.begin(), lent_.end());
    lent_.clear();
  }

  bool tx_alloc(TxFrame& frame) noexcept {
    if (wire_.free_.empty()) return false;
    PipeFrame* taken = wire_.free_.back();
    wire_.free_.pop_back();
    frame = {taken->data, info_.max_udp_payload, 0, taken};
    return true;
  }
  [[gnu::always_inline]] void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
    auto* sent = static_cast<PipeFrame*>(frame.cookie);
    if (wire_.loses_this_one()) return wire_.free_.push_back(sent);
    PipePort& to = *wire_.ports_[path.value];
    sent->bytes = bytes;
    sent->source = info_.local;
    to.arrived_[to.last_++ & (to.arrived_.size() - 1)] = sent;
  }
  void tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path,
                      std::span<const std::byte> payload, PayloadPin&) noexcept {
    if (!wire_.elide_shared_) std::memcpy(frame.data + bytes, payload.data(), payload.size());
    tx_send(frame, path, bytes + static_cast<uint32_t>(payload.size()));
  }
  void tx_cancel(TxFrame& frame) noexcept {
    wire_.free_.push_back(static_cast<PipeFrame*>(frame.cookie));
  }
  bool pin_busy(const PayloadPin&) const noexcept { return false; }
  void tx_flush(uint64_t) noexcept {}

  Result<MemoryKey> map(std::span<std::byte>) { return MemoryKey(); }  // it copies
  void unmap(MemoryKey) {}

  // A path is the port's number on the wire.
  Result<PathId> open_path(const Endpoint& remote) {
    const auto at = std::find_if(wire_.ports_.begin(), wire_.ports_.end(),
                                 [&](const PipePort* p) { return p->info_.local == remote; });
    if (at == wire_.ports_.end()) return Error(Errc::kNotFound, "no such port");
    return PathId(static_cast<uint32_t>(at - wire_.ports_.begin()));
  }
  void close_path(PathId) {}
  bool path_ready(PathId) const { return true; }
  uint32_t path_max_payload(PathId) const { return info_.max_udp_payload; }
  uint32_t buffers_in_use() const noexcept {
    return static_cast<uint32_t>(last_ - first_ + lent_.size());
  }
  void tick(uint64_t) {}
  int wait_fd() const { return -1; }
  bool prepare_sleep() noexcept { return first_ == last_; }

 private:
  PipeWire& wire_;
  PortInfo info_;
  std::vector<PipeFrame*> arrived_;  // a ring; positions wrap by its size, a power of two
  size_t first_ = 0, last_ = 0;
  std::vector<PipeFrame*> lent_;
};

static_assert(Port<PipePort>);

}  // namespace mercury::bench
