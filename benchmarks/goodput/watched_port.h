// The simulated port, and a record of what is handed to its NIC before a given tensor's first
// chunk.
//
// Owner/thread: the simulator's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "aggregator/frame/chunk_header.h"
#include "transport/port/port_decorator.h"
#include "transport/port/sim/sim_port.h"
#include "transport/wire/header.h"

namespace mercury::goodput {

// Bytes are bytes of the link's time: Ethernet, preamble and gap included.
struct Watch {
  uint64_t now_ns = 0;       // of the pass
  uint32_t frame_bytes = 0;  // of the largest frame seen

  bool waiting = false;
  uint32_t tensor = 0;
  uint32_t frames_ahead = 0;
  uint64_t bytes_ahead = 0;
  uint64_t nic_bytes_ahead = 0;  // of those, in the NIC when the chunk was handed to it
  uint64_t handed_at_ns = 0;

  // `nic_bytes` stand in the NIC now, and so in front of whatever is submitted from here on.
  void begin(uint32_t awaited, uint64_t nic_bytes) {
    waiting = true;
    tensor = awaited;
    bytes_ahead = nic_bytes;
    frames_ahead =
        frame_bytes == 0 ? 0 : static_cast<uint32_t>((nic_bytes + frame_bytes - 1) / frame_bytes);
  }
  // A frame that took the NIC's backlog from `before` to `after`.
  void sent(std::span<const std::byte> frame, uint64_t before, uint64_t after) {
    const auto bytes = static_cast<uint32_t>(after - before);
    frame_bytes = bytes > frame_bytes ? bytes : frame_bytes;
    if (!waiting) return;
    wire::Header header;
    std::span<const std::byte> payload;
    if (wire::decode(frame, header, payload) == wire::DecodeError::kNone &&
        header.type == kPushFrame && ChunkHeader::of(header).tensor.value == tensor) {
      waiting = false;
      nic_bytes_ahead = before;
      handed_at_ns = now_ns;
      return;
    }
    ++frames_ahead;
    bytes_ahead += bytes;
  }
};

class WatchedPort : public PortDecorator<sim::SimPort> {
 public:
  // `watch` null: nothing is recorded. It outlives the port.
  WatchedPort(std::unique_ptr<sim::SimPort> port, Watch* watch)
      : PortDecorator(std::move(port)), watch_(watch) {}

  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
    if (watch_ != nullptr) watch_->now_ns = now_ns;
    return PortDecorator::rx_burst(burst, now_ns);
  }
  bool tx_alloc(TxFrame& frame) noexcept {
    before_ = decorated().tx_queued_bytes();
    return PortDecorator::tx_alloc(frame);
  }
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
    const std::span<const std::byte> data(frame.data, bytes);
    PortDecorator::tx_send(frame, path, bytes);
    // The frame stays where it was built until the network has delivered it.
    if (watch_ != nullptr) watch_->sent(data, before_, decorated().tx_queued_bytes());
  }

 private:
  Watch* watch_;
  uint64_t before_ = 0;  // the NIC's backlog before the frame under construction
};
static_assert(Port<WatchedPort>);

}  // namespace mercury::goodput
