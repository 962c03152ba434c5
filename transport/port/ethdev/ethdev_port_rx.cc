// Receiving: from the device, from other engines, and from oneself before sleep.
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <unistd.h>

#include <algorithm>

#include "transport/port/ethdev/eal.h"
#include "transport/port/ethdev/ethdev_port.h"
#include "transport/port/ethdev/nd.h"
#include "transport/port/ethdev/vlan.h"

namespace mercury::ethdev {
namespace {

// A pass that finds nothing takes no longer.
constexpr uint64_t kNoWaitNs = 2'000;

std::span<const std::byte> bytes_of_frame(const rte_mbuf* frame) {
  return {rte_pktmbuf_mtod(frame, const std::byte*), rte_pktmbuf_data_len(frame)};
}

}  // namespace

uint32_t EthdevPort::rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
  if (!registered_) [[unlikely]] {
    register_thread();
    registered_ = true;
  }
  if (slept_) [[unlikely]]
    wake_up();
  const auto room = static_cast<uint32_t>(std::min(burst.size(), held_.size() - held_count_));
  uint32_t filled = 0;
  if (stash_count_ > 0) [[unlikely]] {
    const uint32_t count = std::min(stash_count_, room);
    filled = receive(std::span(stash_).first(count), burst, filled, now_ns, since_drained(now_ns));
    std::copy(stash_.begin() + count, stash_.begin() + stash_count_, stash_.begin());
    stash_count_ -= count;
  }
  // Half of the room for what others hand over, so that a busy device does not starve it.
  filled = take_inbox(burst, filled, (room + 1) / 2, now_ns);
  if (owns_queue_ && filled < room && device_->link_up()) {
    std::array<rte_mbuf*, kBurst> fresh;
    const auto wanted = static_cast<uint16_t>(std::min(room - filled, kBurst));
    bool drained = false;
    const uint16_t count = take(fresh.data(), wanted, drained);
    const uint32_t waited_most_ns = since_drained(now_ns);
    if (drained) drained_ns_ = now_ns;
    filled = receive(std::span(fresh).first(count), burst, filled, now_ns, waited_most_ns);
  }
  return filled;
}

// The device does not say when a frame came: after the queue had nothing left, and before this
// pass.
uint32_t EthdevPort::since_drained(uint64_t now_ns) const noexcept {
  const uint64_t ns = drained_ns_ == 0 ? 0 : now_ns - drained_ns_;
  return ns < kNoWaitNs ? 0 : static_cast<uint32_t>(std::min<uint64_t>(ns, UINT32_MAX));
}

uint16_t EthdevPort::take(rte_mbuf** frames, uint16_t most, bool& drained) noexcept {
  const uint16_t count = rte_eth_rx_burst(dpdk_port_, lane_.queue, frames, most);
  drained = count < most;
  return vlan_ == 0 ? count : keep_own_vlan({frames, count});
}

uint16_t EthdevPort::keep_own_vlan(std::span<rte_mbuf*> frames) noexcept {
  uint16_t kept = 0;
  for (rte_mbuf* frame : frames) {
    if (take_tag(frame) == vlan_) {
      frames[kept++] = frame;
    } else {
      counters_.add(Counter::kDropVlan);
      rte_pktmbuf_free(frame);
    }
  }
  return kept;
}

// Sorts frames: ours into `burst`, others' into their inboxes, the rest answered or dropped.
uint32_t EthdevPort::receive(std::span<rte_mbuf*> frames, std::span<RxFrame> burst, uint32_t filled,
                             uint64_t now_ns, uint32_t waited_most_ns) noexcept {
  for (rte_mbuf* frame : frames) {
    ParsedFrame parsed;
    FrameClass kind = FrameClass::kDropped;
    parsed.reason = Counter::kDropTruncated;
    // Drivers that can only fill buffers of some sizes spread a frame over two. What does not fit
    // into one of ours is larger than any frame of our MTU.
    if (frame->nb_segs == 1 || rte_pktmbuf_linearize(frame) == 0) [[likely]] {
      kind = parse_frame(bytes_of_frame(frame), device_->local(), parsed, burst[filled]);
    }
    if (kind == FrameClass::kUdp && parsed.engine == engine_) [[likely]] {
      burst[filled].at_most = waited_most_ns != 0;
      burst[filled].waited_ns = waited_most_ns;
      ++filled;
      held_[held_count_++] = frame;
    } else if (kind == FrameClass::kUdp) {
      hand_off(frame, parsed.engine);
    } else if (kind == FrameClass::kDropped) {
      counters_.add(parsed.reason);
      rte_pktmbuf_free(frame);
    } else {
      answer(frame, kind, now_ns);
    }
  }
  return filled;
}

uint32_t EthdevPort::take_inbox(std::span<RxFrame> burst, uint32_t filled, uint32_t limit,
                                uint64_t now_ns) noexcept {
  if (filled >= limit || rte_ring_empty(lane_.inbox)) [[likely]]
    return filled;
  std::array<rte_mbuf*, kBurst> handed;
  const unsigned count =
      rte_ring_sc_dequeue_burst(lane_.inbox, reinterpret_cast<void**>(handed.data()),
                                std::min(limit - filled, kBurst), nullptr);
  return receive(std::span(handed).first(count), burst, filled, now_ns);
}

void EthdevPort::hand_off(rte_mbuf* frame, uint16_t engine) noexcept {
  Lane& target = device_->lane(engine);
  if (rte_ring_mp_enqueue(target.inbox, frame) != 0) {
    counters_.add(Counter::kDropHandoffFull);
    rte_pktmbuf_free(frame);
    return;
  }
  counters_.add(Counter::kHandoffs);
  target.wake();
}

void EthdevPort::answer(rte_mbuf* frame, FrameClass kind, uint64_t now_ns) noexcept {
  const auto bytes = bytes_of_frame(frame);
  ControlAnswer result;
  if (!device_->config().is_shared()) {  // otherwise the kernel answers
    const std::span room(rte_pktmbuf_mtod(frame, std::byte*),
                         bytes.size() + rte_pktmbuf_tailroom(frame));
    result = answer_control(kind, bytes, device_->local(), room);
  } else {
    counters_.add(Counter::kDropNotMercury);
  }
  if (result.learned) device_->neighbours().learn(*result.learned, now_ns);
  // Whoever floods us with questions gets at most half of the room, and never an engine's.
  const bool crowded = pending_last_ - pending_first_ + building_ >= kPending / 2;
  if (result.reply_bytes == 0 || crowded) {
    rte_pktmbuf_free(frame);
    return;
  }
  rte_pktmbuf_data_len(frame) = static_cast<uint16_t>(result.reply_bytes);
  rte_pktmbuf_pkt_len(frame) = result.reply_bytes;
  queue(frame, Path{});
}

void EthdevPort::rx_release() noexcept {
  if (held_count_ == 0) return;
  rte_pktmbuf_free_bulk(held_.data(), held_count_);
  held_count_ = 0;
}

void EthdevPort::wake_up() noexcept {
  slept_ = false;
  lane_.asleep.store(false, std::memory_order_relaxed);
  uint64_t rings = 0;
  [[maybe_unused]] const ssize_t got = ::read(lane_.doorbell, &rings, sizeof(rings));
}

bool EthdevPort::prepare_sleep() noexcept {
  if (pending_last_ != pending_first_ || foreign_last_ != foreign_first_ || stash_count_ != 0) {
    return false;
  }
  slept_ = true;
  lane_.asleep.exchange(true, std::memory_order_acq_rel);  // pairs with Lane::wake
  bool waiting =
      !rte_ring_empty(lane_.inbox) || (lane_.outbox != nullptr && !rte_ring_empty(lane_.outbox));
  if (owns_queue_ && !waiting && device_->link_up()) {
    bool drained = false;
    stash_count_ = take(stash_.data(), kBurst, drained);
    waiting = stash_count_ != 0;
  }
  if (waiting) wake_up();
  return !waiting;
}

}  // namespace mercury::ethdev
