// One engine's port over a DPDK device: models `Port` (transport/port/port.h).
//
// Owner/thread: the engine that drives it; created on any thread. Frames that arrive here for
// another engine's UDP port are handed to that engine's inbox (device.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/base/counters.h"
#include "transport/port/ethdev/device.h"
#include "transport/port/ethdev/ip.h"
#include "transport/port/ethdev/pools.h"
#include "transport/port/port.h"

struct rte_mbuf;

namespace mercury::ethdev {

class EthdevPort {
 public:
  static constexpr uint32_t kBurst = 64;     // frames per call to the driver
  static constexpr uint32_t kPending = 512;  // frames that wait for room in the device

  // The port of engine `engine` (0 .. config().engines - 1), once for each. The counters must
  // outlive it. Errors: kInvalidArgument, kSystem.
  static Result<std::unique_ptr<EthdevPort>> open(std::shared_ptr<Device> device, uint16_t engine,
                                                  Counters& counters);
  ~EthdevPort();
  EthdevPort(const EthdevPort&) = delete;
  EthdevPort& operator=(const EthdevPort&) = delete;

  const PortInfo& info() const { return info_; }
  uint64_t link_bytes_per_second() const noexcept { return device_->link_bytes_per_second(); }

  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept;
  void rx_release() noexcept;

  bool tx_alloc(TxFrame& frame) noexcept;
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept;
  void tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path,
                      std::span<const std::byte> payload, PayloadPin& pin) noexcept;
  void tx_cancel(TxFrame& frame) noexcept;
  bool pin_busy(PayloadPin& pin) noexcept;
  void tx_flush(uint64_t now_ns) noexcept;

  // For NICs that read payloads where they lie; nothing is to be done where they are copied, by the
  // driver or here. Errors: Device::map_memory.
  Result<MemoryKey> map(std::span<std::byte> memory);
  void unmap(MemoryKey key);

  Result<PathId> open_path(const Endpoint& remote);
  Result<PathId> open_path_from(PathId like, uint16_t source);
  ReturnWay return_way(const RxFrame& frame) const noexcept;
  Result<PathId> open_answer_path(const Endpoint& remote, ReturnWay way);
  Result<PathId> open_tentative_path(const Endpoint& remote, ReturnWay way);
  void settle_path(PathId path);
  void close_path(PathId path);
  bool path_ready(PathId path) const;
  uint32_t path_max_payload(PathId path) const;
  // Those that nobody has any more are among them where the driver keeps none and no other engine
  // takes from the pool.
  uint32_t buffers_in_use() const noexcept;
  void tick(uint64_t now_ns);

  int wait_fd() const { return wait_fd_; }
  bool prepare_sleep() noexcept;

 private:
  struct Path {
    Endpoint remote;
    HeaderTemplate header;
    uint64_t mac = 0;        // in the header; 0: none yet
    uint32_t neighbour = 0;  // entry of Device::neighbours()
    uint16_t loop_engine = 0;
    bool fixed = false;     // its header is as it stays, whatever neighbours say
    bool seeks = false;     // until one is found: its peer has shown that it is there
    bool borrowed = false;  // the header has the address of a frame, until its neighbour answers
    bool loops = false;     // to an engine of this very device: over its inbox
    bool open = false;
  };

  EthdevPort(std::shared_ptr<Device> device, uint16_t engine, Counters& counters);
  Status open_wait_fd();
  Result<PathId> open_path(const Endpoint& remote, ReturnWay way);
  PathId add_path(const Path& path);

  // `waited_most_ns`: how long the frames may have lain in the device's queue.
  uint32_t receive(std::span<rte_mbuf*> frames, std::span<RxFrame> burst, uint32_t filled,
                   uint64_t now_ns, uint32_t waited_most_ns = 0) noexcept;
  uint32_t take_inbox(std::span<RxFrame> burst, uint32_t filled, uint32_t limit,
                      uint64_t now_ns) noexcept;
  // From the device, those of the port's VLAN.
  uint16_t take(rte_mbuf** frames, uint16_t most, bool& drained) noexcept;
  uint32_t since_drained(uint64_t now_ns) const noexcept;
  [[gnu::cold, gnu::noinline]] uint16_t keep_own_vlan(std::span<rte_mbuf*> frames) noexcept;
  void hand_off(rte_mbuf* frame, uint16_t engine) noexcept;
  [[gnu::cold]] void answer(rte_mbuf* frame, FrameClass kind, uint64_t now_ns) noexcept;
  [[gnu::cold]] void wake_up() noexcept;

  static bool has_neighbour(const Path& path) noexcept { return !path.loops && !path.fixed; }
  void let_go(const Path& path);  // of its neighbour, if it has one
  static void settle_at(Path& path, uint32_t neighbour);
  // True if frames to the path can be addressed; brings its MAC address up to date.
  bool address(Path& path) noexcept;
  // Headers in front of the frame, of which `more` follows what it holds.
  void head(TxFrame& frame, uint32_t bytes, std::span<const std::byte> more, const Path& path,
            bool offload) noexcept;
  // The device fills in the checksum: what it must be told.
  bool leave_checksum(rte_mbuf* frame, const Path& path) const noexcept;
  void end_loans();
  void queue(rte_mbuf* frame, const Path& path) noexcept;
  void queue_raw(std::span<const std::byte> frame);
  void reroute(uint64_t now_ns);
  void count_missed(uint64_t now_ns);
  void flush_own() noexcept;
  void flush_outbox() noexcept;
  void flush_to_owner() noexcept;
  void drop_pending() noexcept;

  const std::shared_ptr<Device> device_;
  Counters& counters_;
  Lane& lane_;
  const uint16_t engine_;
  const uint16_t dpdk_port_;
  const bool owns_queue_;
  const bool lends_;         // payloads to the NIC, which reads them after the call
  const size_t page_bytes_;  // that no segment of a payload may cross; 0: none
  const TrafficClasses classes_;
  const uint16_t vlan_;  // 0: none
  PortInfo info_;
  int wait_fd_ = -1;
  uint64_t drained_ns_ = 0;  // when the device's queue had nothing left
  bool slept_ = false;
  bool registered_ = false;

  // Received and lent to the engine until rx_release.
  std::array<rte_mbuf*, 256> held_{};
  uint32_t held_count_ = 0;
  // Received by prepare_sleep, for the next rx_burst.
  std::array<rte_mbuf*, kBurst> stash_{};
  uint32_t stash_count_ = 0;
  // To be sent, in order: pending_[first .. last).
  std::array<rte_mbuf*, kPending> pending_{};
  uint32_t pending_first_ = 0;
  uint32_t pending_last_ = 0;
  uint32_t building_ = 0;  // frames between tx_alloc and tx_send
  BufferStock spare_;      // for tx_alloc
  BufferStock tails_;      // for the payloads of tx_send_shared
  // Taken from the outbox, not yet taken by the device.
  std::array<rte_mbuf*, kBurst> foreign_{};
  uint32_t foreign_first_ = 0;
  uint32_t foreign_last_ = 0;

  std::vector<std::span<std::byte>> mapped_;  // by MemoryKey; empty: free
  std::vector<Path> paths_;
  std::vector<uint32_t> free_paths_;
  uint64_t next_reroute_ns_ = 0;
  size_t next_reroute_ = 0;  // the path that it looks at next
  uint64_t next_missed_ns_ = 0;
  uint64_t missed_ = 0;  // by the device, as far as counted
};

static_assert(Port<EthdevPort>);

}  // namespace mercury::ethdev
