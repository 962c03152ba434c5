// The simulated port, and a record of what is handed to its NIC before a given tensor's first
// chunk.
//
// Owner/thread: the simulator's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "transport/port/sim/sim_port.h"
#include "transport/wire/header.h"

namespace mercury::goodput {

// Bytes are bytes of the link's time: Ethernet, preamble and gap included.
struct Watch {
  uint64_t now_ns = 0;       // kept by the driver
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
        header.type == wire::FrameType::kPush && header.tensor.value == tensor) {
      waiting = false;
      nic_bytes_ahead = before;
      handed_at_ns = now_ns;
      return;
    }
    ++frames_ahead;
    bytes_ahead += bytes;
  }
};

class WatchedPort {
 public:
  // `watch` null: nothing is recorded. It outlives the port.
  WatchedPort(std::unique_ptr<sim::SimPort> port, Watch* watch)
      : port_(std::move(port)), watch_(watch) {}

  sim::SimPort& sim() { return *port_; }
  const PortInfo& info() const { return port_->info(); }
  uint64_t link_bytes_per_second() const noexcept { return port_->link_bytes_per_second(); }
  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
    return port_->rx_burst(burst, now_ns);
  }
  void rx_release() noexcept { port_->rx_release(); }
  bool tx_alloc(TxFrame& frame) noexcept {
    before_ = port_->tx_queued_bytes();
    return port_->tx_alloc(frame);
  }
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
    const std::span<const std::byte> data(frame.data, bytes);
    port_->tx_send(frame, path, bytes);
    // The frame stays where it was built until the network has delivered it.
    if (watch_ != nullptr) watch_->sent(data, before_, port_->tx_queued_bytes());
  }
  void tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path,
                      std::span<const std::byte> payload, PayloadPin& pin) noexcept {
    port_->tx_send_shared(frame, bytes, path, payload, pin);
  }
  void tx_cancel(TxFrame& frame) noexcept { port_->tx_cancel(frame); }
  bool pin_busy(PayloadPin& pin) noexcept { return port_->pin_busy(pin); }
  void tx_flush(uint64_t now_ns) noexcept { port_->tx_flush(now_ns); }
  Result<MemoryKey> map(std::span<std::byte> memory) { return port_->map(memory); }
  void unmap(MemoryKey key) { port_->unmap(key); }
  Result<PathId> open_path(const Endpoint& remote) { return port_->open_path(remote); }
  void close_path(PathId path) { port_->close_path(path); }
  bool path_ready(PathId path) const { return port_->path_ready(path); }
  uint32_t path_max_payload(PathId path) const { return port_->path_max_payload(path); }
  uint32_t buffers_in_use() const noexcept { return port_->buffers_in_use(); }
  void tick(uint64_t now_ns) { port_->tick(now_ns); }
  int wait_fd() const { return port_->wait_fd(); }
  bool prepare_sleep() noexcept { return port_->prepare_sleep(); }

 private:
  std::unique_ptr<sim::SimPort> port_;
  Watch* watch_;
  uint64_t before_ = 0;  // the NIC's backlog before the frame under construction
};
static_assert(Port<WatchedPort>);

}  // namespace mercury::goodput
