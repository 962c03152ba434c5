// One session: two engines that exchange datagrams, control messages and byte streams, of one job
// or of none. Sans-I/O: it is told what arrived and what time it is, and is asked what to send.
//
// Packet numbers never repeat (64 bits). Acknowledgements carry ranges. Loss is declared by packet
// and time thresholds, a probe covers the tail (RFC 9002, RFC 8985), and what is lost is reported
// as the datagram that it carried: its service decides whether to send that again, in a new packet.
//
// Owner/thread: one engine. The datapath calls (noexcept) do not allocate for datagrams: records of
// packets in flight come from the engine's SentPool in blocks and go back as they are acknowledged,
// so an idle session holds none.
//
// Paper: RFC 9002 (loss recovery), RFC 8985 (reordering), RFC 8899 (path MTU).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "transport/base/arrival.h"
#include "transport/base/counters.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/base/types.h"
#include "transport/flow/frame_tag.h"
#include "transport/flow/sent_tag.h"
#include "transport/flow/stream/stream_events.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"

namespace mercury {

enum class WindowKind : uint8_t { kAdaptive, kFixed };  // congestion.h

struct SessionConfig {
  WindowKind window = WindowKind::kAdaptive;
  uint64_t window_bytes = 1024 * 1024;        // adaptive: the largest; fixed: always
  uint64_t delay_target_ns = 10'000'000;      // adaptive: queueing that is tolerated; 0 = any
  uint64_t max_ack_delay_ns = 500'000;        // an acknowledgement waits no longer
  uint32_t ack_every_packets = 8;             // nor for more packets than this
  uint64_t initial_rtt_ns = 10'000'000;       // before the first sample
  uint64_t min_probe_timeout_ns = 2'000'000;  // virtual devices on busy cores stall this long
  uint64_t handshake_timeout_ns = 10'000'000'000;
  uint64_t peer_timeout_ns = 10'000'000'000;  // nothing heard for so long: the peer is lost
  uint16_t max_udp_payload = 1472;      // this port's limit for the path: probing begins there
  uint64_t first_packet_number = 0;     // tests begin near where counters wrap
  std::optional<uint64_t> reset_token;  // of the session; told to peers with kFeatureResets
  wire::Versions versions;              // that it answers; its own HELLO says them itself
  PortRange source_ports;               // of datagrams; told to peers with kFeatureSourcePorts
};

// What a session tells its engine. Called from within on_frame, on_timer, reset and move only; they
// may call the session's send_control and close and its accessors, nothing else, and must not
// destroy it.
class SessionEvents {
 public:
  virtual void on_acked(SessionSlot, const SentTag&) noexcept = 0;  // datagrams only
  virtual void on_lost(SessionSlot, const SentTag&) noexcept = 0;  // datagrams only: schedule again
  // Datagrams only: it arrived, and the peer's service could not take it: schedule again. The
  // session itself sees to it that this is not soon where all are refused.
  virtual void on_refused(SessionSlot, const SentTag&) noexcept = 0;
  virtual void on_window_open(
      SessionSlot) noexcept = 0;  // can_send() became true after it was false
  // The peer knows the key: active side, HELLO_ACK arrived (its proof is the control plane's to
  // check); passive side, the first frame, other than a datagram, with the session's tag.
  virtual void on_open(SessionSlot) = 0;
  // Refused, closed by either side, lost, timed out. Exactly once for each session that connect()
  // or accept() was called on; what was in flight is neither acknowledged nor lost any more.
  virtual void on_closed(SessionSlot, const Error&) = 0;
  // The peer's: who shows it later is the peer, and does not know the session any more.
  virtual void on_reset_token(SessionSlot, uint64_t token) = 0;
  // From these ports, too, the peer's datagrams will come. Once for each session at most.
  virtual void on_source_ports(SessionSlot, const PortRange& ports) = 0;
  // The peer knows this side's (SessionConfig::source_ports): datagrams may come from them.
  virtual void on_source_ports_known(SessionSlot) = 0;
  virtual void on_control(SessionSlot,
                          std::span<const std::byte> message) = 0;  // one whole message
  // Probing ended: the largest frame that goes whole, and that goes in parts (the same where none
  // do), less the seal where frames have one.
  virtual void on_path_payload(SessionSlot, uint16_t max_udp_payload, uint16_t in_parts) = 0;
  // From now on frames above so many bytes do not arrive whole: they are to be sent in parts.
  virtual void on_path_changed(SessionSlot, uint16_t frame_bytes) = 0;
  // A frame that came in parts, not checked: a datagram, or one for on_frame, which may be called.
  virtual void on_whole(SessionSlot, std::vector<std::byte> frame, bool marked) = 0;

 protected:
  ~SessionEvents() = default;
};

class SentPool;  // sent_pool.h
struct SentPart;
class Streams;  // stream/streams.h
class Seals;    // frame_keys.h

class Session {
 public:
  enum class State : uint8_t { kConnecting, kOpen, kClosing, kClosed };

  // `local_number` is what the peer puts in every frame to this session (never 0); `remote` stands
  // in error messages. `part` is its job's in `pool`; null: the session belongs to no job. `pool`,
  // `events` and `counters` outlive the session.
  Session(SessionSlot slot, uint32_t local_number, const Endpoint& remote,
          const SessionConfig& config, SentPool& pool, SentPart* part, SessionEvents& events,
          Counters& counters);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Active side: sends HELLO (again, with back-off) until HELLO_ACK, REFUSE or handshake_timeout.
  // `key` is the job's.
  void connect(const wire::Hello& hello, const wire::Key& key, uint64_t now_ns);
  // Passive side: the control plane has accepted this HELLO. Without a version in common the
  // session refuses instead (kVersionMismatch). Whoever repeats somebody's HELLO gets no further:
  // without a frame that carries the tag within handshake_timeout the session ends.
  void accept(const wire::Hello& hello, const wire::HelloAck& answer, const wire::Key& key,
              uint64_t now_ns);
  // Before either: the session carries streams if both its HELLO and the answer have
  // wire::kFeatureStreams. `events` outlives it.
  void carry_streams(const StreamConfig& config, StreamEvents& events);
  // build() then writes CLOSE with `code` and `text`, three times as nothing acknowledges it (once
  // on the passive side before on_open; nothing, if the peer is not known yet); after that only
  // kClosed, and on_closed with the same from on_timer, which is then due at once.
  void close(Errc code, std::string_view text, uint64_t now_ns);

  // The peer has shown its reset token: the session ends as one of a peer that is lost. False: it
  // ends already.
  bool reset(uint64_t now_ns);

  State state() const noexcept;
  uint32_t local_number() const noexcept;
  uint32_t peer_number() const noexcept;  // 0 until it is known
  FrameTag tag() const noexcept;          // once the state is kOpen
  bool answered() const noexcept;         // passive side: HELLO_ACK has been built
  bool confirmed() const noexcept;        // the peer has shown that it knows the tag
  Seals* seals() const noexcept;          // the same; null: its frames have none
  const wire::HelloAck& answer()
      const noexcept;  // sent (passive) or received (active, since on_open)

  // --- receiving -----------------------------------------------------------------------------
  // For every decoded frame of this session except datagrams: HELLO again (the engine knows it by
  // source and the number in its body), HELLO_ACK, REFUSE, CLOSE, ACK, PING, CONTROL, STREAM,
  // STREAM_CREDIT, STREAM_RESET, PART, PATH_CHALLENGE, PATH_RESPONSE, SOURCE_PORTS. Checks tag and
  // payload CRC itself; what is wrong is dropped under its counter. A peer that acknowledges what
  // was never sent, announces an impossible control message, or takes more of a stream than he may,
  // is closed with kProtocol.
  void on_frame(const wire::Header& header, std::span<const std::byte> payload, uint64_t now_ns,
                const Arrival& arrival = {});
  // For datagrams: first is_new (false: duplicate or not open, drop it), then received when the
  // datagram was taken, or is not needed any more; without it the peer will send it again.
  bool is_new(uint64_t packet_number) const noexcept;
  Counter reason_of_drop(uint64_t packet_number) const noexcept;  // of one that is not
  void received(uint64_t packet_number, bool ack_now, uint64_t now_ns,
                const Arrival& arrival = {}) noexcept;
  // The datagram arrived, its payload is as it was sent, and it is to come again later: the peer is
  // told so. False: the peer knows no refusals (kFeatureRefusals of both sides), or there are too
  // many; it will take the datagram for lost.
  bool refused(uint64_t packet_number, uint64_t now_ns, const Arrival& arrival = {}) noexcept;
  // How much the peer may have in flight towards this side, now and when it begins again after a
  // pause, in units of wire::kGrantUnitBytes; 0 = no bound. Travels on every acknowledgement.
  void set_grant(uint16_t now_units, uint16_t idle_units) noexcept;

  // --- sending -------------------------------------------------------------------------------
  // Whether a datagram frame of `bytes` fits now, as far as is known without a clock (state kOpen
  // only): into the window and the peer's grant; where these are below one frame, one at a time, at
  // intervals that keep their rate. After false, on_window_open says when to ask again.
  bool can_send(uint32_t bytes) const noexcept;
  // The same, asked for a frame that is ready to leave: after a pause the peer's idle grant counts,
  // and below one frame the first waits a random part of its interval, so that many senders that
  // begin at once do not arrive at once.
  bool can_send(uint32_t bytes, uint64_t now_ns) noexcept;
  // A datagram frame leaves: its packet number. `bytes` is the UDP payload, for which can_send was
  // true.
  uint64_t on_send_datagram(const SentTag& tag, uint32_t bytes, uint64_t now_ns) noexcept;
  // Datagrams leave from so many ports in turn (port_turns.h), the first of them where this side
  // hears, which has its turn. Again where the peer has moved: nothing is known of its paths.
  void take_turns(uint32_t ports);
  // A pass has sent. The port from which datagrams leave from now on; none: the same as before.
  std::optional<uint32_t> next_turn(uint64_t now_ns) noexcept;
  // Flags for the header of the datagram that on_send_datagram was called for last: kFlagAckNow at
  // each quarter of the window and where it is full, so that a small window does not wait for
  // ack_every_packets.
  uint16_t datagram_flags() const noexcept;
  // Whether build() has something: acknowledgement due, handshake, control bytes, probe, close.
  bool has_pending(uint64_t now_ns) const noexcept;
  // Writes the session's next own frame into `out` (at least 1232 bytes; what the port carries, or
  // MTU probes end there); returns its bytes, 0 when nothing is pending.
  uint32_t build(std::span<std::byte> out, uint64_t now_ns) noexcept;
  // After on_closed: CLOSE once more, for whoever goes on sending, if this side ended the session
  // or gave it up. 0: nobody can wait for it. `out` as build's.
  uint32_t repeat_close(std::span<std::byte> out);
  // After that: for whoever answers with it and must know the peer's frames, and opens none.
  // seals() is then null.
  std::unique_ptr<Seals> take_seals() noexcept;
  // --- an address that changes ---------------------------------------------------------------
  // The payload of a decoded frame of any type that has come from another address than the peer's,
  // valid until the next frame, if it is the peer's and newer than all that were taken. Only of
  // frames with seals, where both sides have kFeatureMoves, it is known. `body`: seal and payload.
  std::optional<std::span<const std::byte>> open_newest(const wire::Header& header,
                                                        std::span<const std::byte> body) noexcept;
  // A PATH_CHALLENGE for there; `out` as build's. Its bytes.
  uint32_t build_challenge(std::span<std::byte> out, uint64_t data) noexcept;
  // The peer has answered from there. `max_udp_payload`: this port's limit for the path there;
  // `reset_token`: of the session, for this address.
  void move(const Endpoint& remote, uint16_t max_udp_payload, std::optional<uint64_t> reset_token,
            uint64_t now_ns);
  // Queues one control message (at most kMaxControlMessage bytes) on the ordered control stream;
  // while connecting it waits for the session to open. Errors: kInvalidArgument (too long), kLimit
  // (more than 1 MiB unacknowledged), kClosed.
  Status send_control(std::span<const std::byte> message);
  static constexpr size_t kMaxControlMessage = 256 * 1024;

  // --- streams -------------------------------------------------------------------------------
  // Of an open session that carries them, else null: the calls of a service (Streams).
  Streams* streams() noexcept;
  // Whether a segment of a stream waits and may go: streams share window, grant and pace with
  // datagrams, first come, first served.
  bool can_send_stream(uint64_t now_ns) noexcept;
  uint8_t stream_priority() const noexcept;  // of the segment that goes next
  // As build(), of one segment; 0 also if it does not fit `out`.
  uint32_t build_stream(std::span<std::byte> out, uint64_t now_ns) noexcept;

  // --- time ----------------------------------------------------------------------------------
  // When on_timer is next due: 0 at once, kNever never. Changes with every call above.
  uint64_t next_deadline_ns() const noexcept;
  void on_timer(uint64_t now_ns) noexcept;  // loss, probes, keepalive, peer timeout, retries

  uint64_t smoothed_rtt_ns() const noexcept;
  uint64_t least_rtt_ns() const noexcept;  // 0 before the first sample
  uint64_t window_bytes()
      const noexcept;  // of congestion control and the peer's grant, the smaller
  uint64_t bytes_in_flight() const noexcept;
  uint16_t path_payload() const noexcept;  // probed so far
  // Of the path from the peer to here: frames that came marked (it wraps), and whether since this
  // was last asked some seem lost, which later ones have overtaken and which have not come; from
  // several source ports, not for as long as one may be late.
  uint32_t marked_frames() const noexcept;
  bool take_missing(uint64_t now_ns) noexcept;
  uint64_t lost_packets() const noexcept;  // MTU probes not counted

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mercury
