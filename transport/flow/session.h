// One session: two engines that exchange the chunks and control messages of one job. Sans-I/O: it is
// told what arrived and what time it is, and is asked what to send.
//
// Packet numbers never repeat (64 bits). Acknowledgements carry ranges. Loss is declared by packet
// and time thresholds, a probe covers the tail (RFC 9002, RFC 8985), and what is lost is reported as
// the chunk that it carried: the scheduler sends the chunk again, in a new packet, at its own
// priority.
//
// Owner/thread: one engine. The datapath calls (noexcept) do not allocate: records of packets in
// flight come from the engine's SentPool in blocks and go back as they are acknowledged, so an idle
// session holds none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"

namespace mercury {

struct SessionConfig {
  uint64_t window_bytes = 256 * 1024;          // fixed congestion window (congestion.h)
  uint64_t max_ack_delay_ns = 500'000;         // an acknowledgement waits no longer
  uint32_t ack_every_packets = 8;              // nor for more packets than this
  uint64_t initial_rtt_ns = 10'000'000;        // before the first sample
  uint64_t min_probe_timeout_ns = 2'000'000;   // virtual devices on busy cores stall this long
  uint64_t handshake_timeout_ns = 10'000'000'000;
  uint64_t peer_timeout_ns = 10'000'000'000;   // nothing heard for so long: the peer is lost
  uint16_t max_udp_payload = 1472;             // this port's limit for the path: where probing begins
};

// What a packet carried, kept until it is acknowledged or lost.
struct SentTag {
  wire::FrameType type = wire::FrameType::kPing;  // kPush, kResult: a chunk; others are the session's own
  uint16_t priority = 0;
  uint32_t round = 0;
  uint32_t tensor = 0;
  uint32_t chunk = 0;
};

// What a session tells its engine. Called from within on_frame and on_timer.
class SessionEvents {
 public:
  virtual void on_acked(SessionSlot, const SentTag&) noexcept = 0;  // chunks only
  virtual void on_lost(SessionSlot, const SentTag&) noexcept = 0;   // chunks only: schedule again
  virtual void on_window_open(SessionSlot) noexcept = 0;  // can_send() became true after it was false
  virtual void on_open(SessionSlot) = 0;                  // active side: HELLO_ACK arrived
  virtual void on_closed(SessionSlot, const Error&) = 0;  // refused, closed by peer, lost, timed out
  virtual void on_control(SessionSlot, std::span<const std::byte> message) = 0;  // one whole message
  virtual void on_path_payload(SessionSlot, uint16_t max_udp_payload) = 0;       // probing ended

 protected:
  ~SessionEvents() = default;
};

class SentPool;  // sent_pool.h

class Session {
 public:
  enum class State : uint8_t { kConnecting, kOpen, kClosing, kClosed };

  // `local_number` is what the peer puts in every frame to this session (never 0).
  Session(SessionSlot slot, uint32_t local_number, const SessionConfig& config, SentPool& pool,
          SessionEvents& events);
  ~Session();

  // Active side: sends HELLO (again, with back-off) until HELLO_ACK, REFUSE or handshake_timeout.
  void connect(const wire::Hello& hello, uint64_t now_ns);
  // Passive side: the control plane has accepted this HELLO.
  void accept(const wire::Hello& hello, const wire::HelloAck& answer, uint64_t now_ns);
  // Sends CLOSE with `code` and `text`; after that only kClosed.
  void close(Errc code, std::string_view text, uint64_t now_ns);

  State state() const noexcept;
  uint32_t local_number() const noexcept;
  uint32_t peer_number() const noexcept;

  // --- receiving -----------------------------------------------------------------------------
  // For every decoded frame of this session except chunks: HELLO again, HELLO_ACK, REFUSE, CLOSE,
  // ACK, PING, CONTROL. Checks the payload CRC itself.
  void on_frame(const wire::Header& header, std::span<const std::byte> payload, uint64_t now_ns);
  // For chunks: first is_new (false: duplicate, drop it), then, when the chunk was taken, received.
  bool is_new(uint64_t packet_number) const noexcept;
  void received(uint64_t packet_number, bool ack_now, uint64_t now_ns) noexcept;

  // --- sending -------------------------------------------------------------------------------
  // Whether a chunk frame of `bytes` fits the window now (state kOpen only).
  bool can_send(uint32_t bytes) const noexcept;
  // A chunk frame leaves: its packet number. `bytes` is the UDP payload.
  uint64_t on_send_chunk(const SentTag& tag, uint32_t bytes, uint64_t now_ns) noexcept;
  // Whether build() has something: acknowledgement due, handshake, control bytes, probe, close.
  bool has_pending(uint64_t now_ns) const noexcept;
  // Writes the session's next own frame into `out`; returns its bytes, 0 when nothing is pending.
  uint32_t build(std::span<std::byte> out, uint64_t now_ns) noexcept;
  // Queues one control message (at most kMaxControlMessage bytes) on the ordered control stream.
  // Errors: kLimit (more than 1 MiB unacknowledged), kClosed.
  Status send_control(std::span<const std::byte> message);
  static constexpr size_t kMaxControlMessage = 256 * 1024;

  // --- time ----------------------------------------------------------------------------------
  uint64_t next_deadline_ns() const noexcept;  // kNever when there is none
  void on_timer(uint64_t now_ns) noexcept;     // loss, probes, keepalive, peer timeout, retries

  uint64_t smoothed_rtt_ns() const noexcept;
  uint64_t bytes_in_flight() const noexcept;
  uint16_t path_payload() const noexcept;  // probed so far
  uint64_t lost_packets() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mercury
