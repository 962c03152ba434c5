// A port on the simulated network: one endpoint of one host. Models the concept Port.
//
// The NIC: frames serialise at the uplink's rate in the order of tx_flush; the bytes handed over
// and not yet sent are bounded (tx_queue_bytes), and each frame that leaves is a network event, so
// room never appears unseen. A shared payload is read when its frame has been serialised: until
// then pin_busy() holds, and a change of the payload would be seen on the wire. It must lie in
// mapped memory then: what does not is carried all the same, and counted
// (SimNetwork::unmapped_reads).
//
// Owner/thread: the SimNetwork's thread. The network outlives its ports; pinned payloads outlive
// the port.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "transport/port/port.h"
#include "transport/port/sim/sim_network.h"

namespace mercury::sim {

struct SimPortConfig {
  uint32_t rx_ring_frames = 4'096;
  uint64_t tx_queue_bytes = 0;        // on the wire; 0 = two of the largest frames
  PortRange source_ports;             // PortInfo::source_ports
  bool report_rate = true;            // else it says none: for links whose rate changes
  bool flush_is_system_call = false;  // PortInfo::flush_is_system_call
  uint32_t tag = 0;                   // the caller's, e.g. which engine drives the port
  Counters* counters = nullptr;       // the engine's; null = the port's own
};

class SimPort {
 public:
  // kExists: another port is bound to `local`; kInvalidArgument: no such host, no address, or port
  // 0.
  static Result<std::unique_ptr<SimPort>> create(SimNetwork& network, HostId host,
                                                 const Endpoint& local,
                                                 const SimPortConfig& config = {});
  ~SimPort();
  SimPort(const SimPort&) = delete;
  SimPort& operator=(const SimPort&) = delete;

  const PortInfo& info() const { return info_; }
  uint64_t link_bytes_per_second() const noexcept { return reported_rate_; }
  // As a NIC whose link has agreed on another rate; 0: it does not say.
  void report_rate(uint64_t bytes_per_second) { reported_rate_ = bytes_per_second; }
  HostId host() const { return host_; }
  uint32_t tag() const { return config_.tag; }
  uint64_t tx_queued_bytes() const { return queued_bytes_; }  // handed over and not yet sent
  bool rx_waiting() const { return !arrived_.empty(); }
  uint32_t rx_waiting_frames() const { return arrived_.size(); }

  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept;
  void rx_release() noexcept;
  bool tx_alloc(TxFrame& frame) noexcept;
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept;
  void tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path,
                      std::span<const std::byte> payload, PayloadPin& pin) noexcept;
  void tx_cancel(TxFrame& frame) noexcept;
  bool pin_busy(PayloadPin& pin) noexcept;
  void tx_flush(uint64_t now_ns) noexcept;

  // kInvalidArgument: not whole pages, or some of them are mapped already.
  Result<MemoryKey> map(std::span<std::byte> memory);
  void unmap(MemoryKey key);
  Result<PathId> open_path(const Endpoint& remote);
  Result<PathId> open_path_from(PathId path, uint16_t source);
  // A path is the network's number of the endpoint, and above that which source port it leaves
  // from, 0 for the port's own.
  void close_path(PathId) {}
  bool path_ready(PathId) const { return true; }
  uint32_t path_max_payload(PathId path) const;
  uint32_t buffers_in_use() const noexcept {
    return queued_frames_ + arrived_.size() + lent_.size();
  }
  void tick(uint64_t) {}
  int wait_fd() const { return -1; }
  bool prepare_sleep() noexcept { return arrived_.empty(); }

 private:
  friend class SimNetwork;
  SimPort(SimNetwork& network, HostId host, const Endpoint& local, const SimPortConfig& config);

  // Paths' numbers: 2^26 endpoints, and more source ports than may be told.
  static constexpr uint32_t kSourceShift = 26;
  static constexpr uint32_t target_of(PathId path) noexcept {
    return path.value & ((1U << kSourceShift) - 1);
  }
  static constexpr uint32_t source_of(PathId path) noexcept { return path.value >> kSourceShift; }
  void queue(TxFrame& frame, PathId path, uint32_t total_bytes) noexcept;
  // For the network: the NIC has read the frame (gathers, unpins) and no longer counts it.
  void departed(Frame* frame) noexcept;
  bool receive(Frame* frame) noexcept;  // false: the ring is full
  bool is_mapped(std::span<const std::byte> payload) noexcept;

  SimNetwork& network_;
  HostId host_;
  uint32_t address_;
  uint32_t seen_;                  // by other hosts: its address, or what a translator shows
  std::vector<uint32_t> sources_;  // its source ports, as other hosts see them
  SimPortConfig config_;
  PortInfo info_;
  uint64_t reported_rate_ = 0;
  Counters own_counters_;
  Counters* counters_;
  uint32_t mtu_bytes_;
  uint64_t queued_bytes_ = 0;
  uint32_t queued_frames_ = 0;
  struct Pages {
    uintptr_t end = 0;
    MemoryKey key;
  };
  std::map<uintptr_t, Pages> mapped_;  // by where they begin
  uintptr_t last_begin_ = 0;           // the pages that were read last
  uintptr_t last_end_ = 0;
  uint32_t next_key_ = 0;
  FrameList pending_;  // sent since the last flush
  FrameList arrived_;
  FrameList lent_;  // shown by rx_burst, until rx_release
  bool touched_ = false;
};

static_assert(Port<SimPort>);

}  // namespace mercury::sim
