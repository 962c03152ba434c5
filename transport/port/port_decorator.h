// A port that hands every call on to another one. Who sees or changes what passes derives from it
// and defines those calls anew: they hide these, and whatever is made for the derived port calls
// them.
//
// Owner/thread: the port's.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "transport/port/port.h"

namespace mercury {

template <Port P>
class PortDecorator {
 public:
  explicit PortDecorator(std::unique_ptr<P> port) : port_(std::move(port)) {}

  P& decorated() noexcept { return *port_; }

  const PortInfo& info() const { return port_->info(); }
  uint64_t link_bytes_per_second() const noexcept { return port_->link_bytes_per_second(); }
  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept {
    return port_->rx_burst(burst, now_ns);
  }
  void rx_release() noexcept { port_->rx_release(); }
  bool tx_alloc(TxFrame& frame) noexcept { return port_->tx_alloc(frame); }
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
    port_->tx_send(frame, path, bytes);
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
  Result<PathId> open_path_from(PathId path, uint16_t source) {
    return mercury::open_path_from(*port_, path, source);
  }
  void close_path(PathId path) { port_->close_path(path); }
  bool path_ready(PathId path) const { return port_->path_ready(path); }
  uint32_t path_max_payload(PathId path) const { return port_->path_max_payload(path); }
  uint32_t buffers_in_use() const noexcept { return port_->buffers_in_use(); }
  void tick(uint64_t now_ns) { port_->tick(now_ns); }
  int wait_fd() const { return port_->wait_fd(); }
  bool prepare_sleep() noexcept { return port_->prepare_sleep(); }

 private:
  std::unique_ptr<P> port_;
};

}  // namespace mercury
