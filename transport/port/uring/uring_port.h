// A port over a UDP socket driven through io_uring: for hosts without a DPDK device, without root
// and without hugepages. The same bytes on the wire as ethdev, so both kinds of host talk to each
// other.
//
// Receiving: one multishot RECVMSG over a ring of provided buffers, with UDP GRO, so that one
// completion brings many frames. Sending: frames queued in one pass leave as few SENDMSG,
// equal-sized ones of one path joined by UDP GSO, all submitted by one system call. So frames of
// one path may overtake those of others, and a few of them those that are more urgent
// (kMostOvertakingBytes). Sends copy:
// with zero-copy send (SENDMSG_ZC) a frame costs the sending thread 1.2 to 2.1 times as much CPU
// over loopback and over veth, alone or joined, of 1,400 and of 8,900 bytes, for the kernel pins
// pages, answers twice, and copies every payload all the same before a local socket gets it
// (benchmarks/goodput/uring_zero_copy_bench; not measured: a NIC).
//
// Each source port has a socket, by which frames of its paths leave; what comes there is dropped.
// It may hold as much as the other one, which is a bound and takes no memory, and over IPv6 the
// kernel gives it a flow label of its own (sysctl net.ipv6.auto_flowlabels).
//
// What the kernel has no room for stays here, in order for each path: while a send waits for room
// in the socket, no other is started, and tx_alloc fails once all frames are in use.
//
// Owner/thread: one engine. Made and destroyed on any thread, driven by one in between. Pinned
// payloads outlive the port.
#pragma once

#include <liburing.h>
#include <netinet/in.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "transport/base/counters.h"
#include "transport/base/mapped_memory.h"
#include "transport/port/port.h"
#include "transport/port/traffic_classes.h"
#include "transport/port/uring/socket.h"

namespace mercury::uring {

struct UringConfig {
  Endpoint local;          // port 0: any
  PortRange source_ports;  // PortInfo::source_ports
  uint32_t mtu = 0;        // largest IP packet; 0 = what the interface carries, at most 9000
  uint64_t link_bytes_per_second = 0;  // see Port
  TrafficClasses classes;              // of what is sent
  uint32_t tx_frames = 512;            // frames that may be under way; a power of two
  uint32_t rx_buffers = 64;            // each takes a GRO batch; a power of two
};

class UringPort {
 public:
  // Errors: kInvalidArgument (no address: peers must know one; sizes that are no powers of two),
  // kSystem (address in use or not of this machine), kPermission, kNoMemory, kUnsupported (io_uring
  // is switched off: names the sysctl; kernel before 6.0), each with what to do.
  static Result<std::unique_ptr<UringPort>> create(const UringConfig& config, Counters& counters);
  ~UringPort();
  UringPort(const UringPort&) = delete;
  UringPort& operator=(const UringPort&) = delete;

  const PortInfo& info() const { return info_; }
  uint64_t link_bytes_per_second() const noexcept { return link_rate_; }
  // How long frames have waited is known where `now_ns` is CLOCK_MONOTONIC's: when the pass began,
  // which counts itself what it takes.
  uint32_t rx_burst(std::span<RxFrame> burst, uint64_t now_ns) noexcept;
  void rx_release() noexcept;
  bool tx_alloc(TxFrame& frame) noexcept;
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept;
  void tx_send_shared(TxFrame& frame, uint32_t bytes, PathId path,
                      std::span<const std::byte> payload, PayloadPin& pin) noexcept;
  void tx_cancel(TxFrame& frame) noexcept;
  bool pin_busy(PayloadPin& pin) noexcept;
  void tx_flush(uint64_t now_ns) noexcept;
  // Nothing to do: SENDMSG takes payloads from wherever they lie, and copies them. Registered
  // buffers serve sends without a copy, which do not pay (above).
  Result<MemoryKey> map(std::span<std::byte>) { return MemoryKey(); }
  void unmap(MemoryKey) {}
  Result<PathId> open_path(const Endpoint& remote);
  Result<PathId> open_path_from(PathId like, uint16_t source);
  void close_path(PathId path);
  bool path_ready(PathId) const { return true; }
  uint32_t path_max_payload(PathId) const { return info_.max_udp_payload; }
  uint32_t buffers_in_use() const noexcept {
    return static_cast<uint32_t>(frames_.size() - free_frames_.size() + consumed_.size()) +
           received_count_;
  }
  void tick(uint64_t now_ns);
  // The ring itself: readable when a completion, of a receive or of a send, waits. Completions run
  // on the sleeping thread, so that epoll_wait may also end with EINTR: that is a wake-up.
  int wait_fd() const { return ring_.ring_fd; }
  bool prepare_sleep() noexcept;

 private:
  struct Frame {  // queued or under way
    std::byte* data = nullptr;
    uint32_t bytes = 0;
    PathId path;
    std::span<const std::byte> payload;
    PayloadPin* pin = nullptr;
    uint8_t class_byte = kEcnCapable;  // as the socket's, or of its traffic class
    bool alone = false;                // the kernel refused the batch that it was in
    uint32_t priority = 0;             // as it says (TrafficClasses::priority_of)
    uint32_t overtaken_bytes = 0;      // less urgent ones of other paths that went before it
    uint32_t total() const { return bytes + static_cast<uint32_t>(payload.size()); }
  };
  struct SendOp;     // one SENDMSG and its frames
  struct Received {  // a filled buffer, consumed frame by frame
    uint16_t buffer = 0;
    std::span<const std::byte> rest;
    Endpoint source;
    ReceivedFacts facts;
  };
  // Its place is used again when it is closed and no frame means it any more: one that waits for
  // the socket, or is on its way to the kernel, is not sent to another.
  struct Path {
    bool open = false;
    int socket = -1;
    uint32_t frames = 0;  // queued or under way
    sockaddr_storage address{};
    socklen_t address_bytes = 0;
    uint32_t segment_limit = ~uint32_t{0};  // larger frames were refused in a batch
  };

  explicit UringPort(Counters& counters);
  uint32_t take_path();  // whose number is free, closed
  Status open_socket(const UringConfig& config);
  Status open_ring(const UringConfig& config);
  Status open_buffers();
  void stop() noexcept;
  void arm_receive() noexcept;
  void submit() noexcept;
  void reap() noexcept;
  void on_received(const io_uring_cqe& cqe) noexcept;
  void on_sent(SendOp& op, int result) noexcept;
  bool retry_alone(SendOp& op, int error) noexcept;
  void free_frame(uint32_t index) noexcept;
  bool start_sends() noexcept;
  bool start_send(uint32_t first) noexcept;
  template <class Value>
  static void add_control(SendOp& op, int level, int type, Value value) noexcept;
  bool overtake(size_t first, size_t at) noexcept;
  uint32_t gather(SendOp& op, uint32_t first) noexcept;
  void recycle(uint16_t buffer) noexcept;

  Counters& counters_;
  PortInfo info_;
  uint64_t link_rate_ = 0;
  TrafficClasses classes_;
  int socket_ = -1;
  std::vector<int> sources_;  // sockets of the source ports
  uint64_t next_missed_ns_ = 0;
  uint32_t missed_ = 0;  // by the socket, as far as counted; wraps around
  io_uring ring_{};
  bool ring_open_ = false;

  // Receiving.
  MappedMemory ring_memory_;
  io_uring_buf_ring* buffer_ring_ = nullptr;  // in it
  MappedMemory rx_memory_;
  uint32_t rx_buffers_ = 0;
  msghdr rx_message_{};
  bool armed_ = false;
  std::vector<Received> received_;  // a ring of rx_buffers_
  uint32_t received_head_ = 0;
  uint32_t received_count_ = 0;
  std::vector<uint16_t> consumed_;  // buffers to give back by rx_release
  uint64_t drained_ns_ = 0;         // when nothing was left to receive

  // Sending.
  bool gso_ = true;
  std::unique_ptr<std::byte[]> tx_memory_;
  uint32_t frame_capacity_ = 0;
  std::vector<Frame> frames_;
  std::vector<uint32_t> free_frames_;
  std::vector<uint32_t> queue_;  // frames in order of tx_send
  std::vector<uint32_t> retry_;  // frames of refused batches, to be sent alone before queue_
  std::unique_ptr<SendOp[]> ops_;
  std::vector<uint32_t> free_ops_;
  uint32_t ops_in_flight_ = 0;
  std::deque<Path> paths_;  // the kernel reads their addresses: they stay where they are
  std::vector<uint32_t> free_paths_;
};

static_assert(Port<UringPort>);

}  // namespace mercury::uring
