// The parts of one session, and what leads from one to another; private to this folder. Each part
// keeps its state and its rules to itself. session.cc opens, closes and keeps time;
// session_receive.cc takes frames; session_send.cc writes them; session_streams.cc does both for
// streams.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/flow/ack_receiver.h"
#include "transport/flow/ack_sender.h"
#include "transport/flow/control_stream.h"
#include "transport/flow/delivery_watch.h"
#include "transport/flow/ending.h"
#include "transport/flow/frame_parts.h"
#include "transport/flow/liveness.h"
#include "transport/flow/loss.h"
#include "transport/flow/mtu_probe.h"
#include "transport/flow/notices.h"
#include "transport/flow/opening.h"
#include "transport/flow/packet_numbers.h"
#include "transport/flow/port_turns.h"
#include "transport/flow/probe_again.h"
#include "transport/flow/refusal_pause.h"
#include "transport/flow/send_gate.h"
#include "transport/flow/send_limit.h"
#include "transport/flow/session.h"
#include "transport/flow/stream/streams.h"

namespace mercury {

inline constexpr size_t kPlainBytes = sizeof(wire::PlainHeader);

// What the session's own packets need to know when they come back. A segment of a stream is found
// by both numbers; stream 0 is the control stream.
inline SentTag segment_tag(wire::FrameType type, uint32_t stream, uint32_t segment) noexcept {
  return {type, 0, stream, segment, 0};
}
inline uint32_t segment_of(const SentTag& tag) noexcept { return tag.word1(); }
inline Streams::Frame stream_frame(const SentTag& tag) noexcept {
  return {tag.type(), 0, tag.word0(), tag.word1()};
}
inline SentTag ping_tag(uint16_t probed_bytes) noexcept {  // 0: not an MTU probe
  return {wire::FrameType::kPing, probed_bytes, 0, 0, 0};
}
inline uint16_t probed_bytes(const SentTag& tag) noexcept { return tag.half_word(); }

struct Session::Impl {
  Impl(SessionSlot slot_, uint32_t local_number_, const Endpoint& remote_,
       const SessionConfig& config_, SentPool& pool, SentPart* part, SessionEvents& events_,
       Counters& counters_);

  // Opening and ending (session.cc).
  void connect(const wire::Hello& hello, const wire::Key& key, uint64_t now_ns);
  void accept(const wire::Hello& hello, const wire::HelloAck& answer, const wire::Key& key,
              uint64_t now_ns);
  void open(uint16_t peer_max_payload, uint64_t now_ns);
  void confirm();  // the peer knows the tag
  void begin_close(wire::FrameType farewell, Errc code, std::string_view text);
  void finish(const Error& error);  // at once, and tells the engine
  void tell_closed(const Error& error);
  void enter_closed() noexcept;

  // Time (session.cc).
  uint64_t next_deadline_ns() const noexcept;
  void on_timer(uint64_t now_ns);
  void on_open_timer(uint64_t now_ns, uint64_t unattended_ns);

  // Receiving (session_receive.cc).
  void on_frame(const wire::Header& header, std::span<const std::byte> payload, uint64_t now_ns,
                const Arrival& arrival);
  [[gnu::cold]] std::optional<Seals::Opened> open_seal(const wire::Header& header,
                                                       std::span<const std::byte> body);
  void on_hello_again(std::span<const std::byte> payload);
  bool shows_hello(const wire::Header& header, std::span<const std::byte> payload);
  void on_hello_ack(std::span<const std::byte> payload, uint64_t now_ns);
  void on_reason(wire::FrameType type, std::span<const std::byte> payload);
  void on_open_frame(const wire::Header& header, std::span<const std::byte> payload,
                     uint64_t now_ns, const Arrival& arrival);
  void on_ack(const wire::Header& header, std::span<const std::byte> payload, uint64_t now_ns,
              const Arrival& arrival);
  bool on_control(std::span<const std::byte> payload);  // false: do not acknowledge
  void deliver_control();
  bool on_reset_token(std::span<const std::byte> payload);
  [[gnu::cold]] bool on_source_ports(std::span<const std::byte> payload);
  [[gnu::cold]] void on_part(const wire::Header& header, std::span<const std::byte> payload,
                             bool marked);
  // From the loss detector.
  [[gnu::always_inline]] inline void packet_acked(const SentRecord& record) noexcept;
  [[gnu::always_inline]] inline void give_back_acked(const SentRecord& record) noexcept;
  [[gnu::cold]] void packet_refused(const SentRecord& record) noexcept;
  [[gnu::cold]] void on_rare_ack(const wire::Ack& ack, uint64_t waited_ns,
                                 uint64_t now_ns) noexcept;
  // Whether a datagram took its turn: what goes in parts leaves from where this side hears.
  bool took_turn(const SentRecord& record) const noexcept {
    return turns && wire::is_datagram(record.tag.type()) && record.bytes <= probe.path_payload();
  }
  [[gnu::cold]] void after_refusals(uint32_t packets, uint64_t now_ns) noexcept;
  void packet_lost(const SentRecord& record, LossCause cause) noexcept;
  void after_progress();

  // Sending (session_send.cc).
  bool can_send(uint32_t bytes) const noexcept;
  bool can_send(uint32_t bytes, uint64_t now_ns) noexcept;
  uint64_t on_send_datagram(const SentTag& tag, uint32_t bytes, uint64_t now_ns) noexcept;
  bool has_pending(uint64_t now_ns) const noexcept;
  bool control_due() const noexcept;
  bool signal_due() const noexcept { return streams && streams->signal_due(); }
  uint32_t build(std::span<std::byte> out, uint64_t now_ns);
  uint32_t build_open(std::span<std::byte> out, uint64_t now_ns);
  uint32_t build_ack(std::span<std::byte> out, uint64_t now_ns);
  uint32_t build_ping(std::span<std::byte> out, uint16_t probed_bytes, uint64_t now_ns);
  uint32_t build_control(std::span<std::byte> out, uint64_t now_ns);
  uint32_t build_reset_token(std::span<std::byte> out, uint64_t now_ns);
  [[gnu::cold]] uint32_t build_source_ports(std::span<std::byte> out, uint64_t now_ns);
  uint32_t build_farewell(std::span<std::byte> out);
  uint32_t write_close(std::span<std::byte> out);
  uint32_t repeat_close(std::span<std::byte> out);
  uint32_t seal_bytes() const noexcept {
    return opening.seals() == nullptr ? 0 : uint32_t{wire::kSealBytes};
  }
  // What stands before the body of each of the session's own frames.
  uint32_t head_bytes() const noexcept { return uint32_t{kPlainBytes} + seal_bytes(); }
  uint32_t finish_tagged(std::span<std::byte> out, wire::Header header, size_t body_bytes) noexcept;
  // The same where the body's CRC is known.
  uint32_t finish_summed(std::span<std::byte> out, wire::Header header, size_t body_bytes,
                         uint32_t crc) noexcept;
  [[gnu::cold]] uint32_t finish_sealed(std::span<std::byte> out, wire::Header header,
                                       size_t body_bytes) noexcept;
  // The same with the next packet number, of a frame whose `tag` is to come back.
  uint32_t finish_tracked(std::span<std::byte> out, wire::Header header, size_t body_bytes,
                          const SentTag& tag, uint64_t now_ns) noexcept;

  // Streams (session_streams.cc): cold where there are none.
  void start_streams();
  [[gnu::cold]] void on_stream_frame(const wire::Header& header, std::span<const std::byte> payload,
                                     uint64_t now_ns, const Arrival& arrival);
  [[gnu::cold]] void stream_acked(const SentTag& tag);
  [[gnu::cold]] void stream_lost(const SentTag& tag);
  [[gnu::cold]] uint32_t build_signal(std::span<std::byte> out, uint64_t now_ns);
  // Body of the next segment of a stream; 0: none waits. None is larger than the path carries.
  uint32_t segment_bytes() const noexcept;
  bool can_send_stream(uint64_t now_ns) noexcept;
  uint32_t build_stream(std::span<std::byte> out, uint64_t now_ns);

  // The path's limit, told once when it is known, and again where it may have shrunk.
  [[gnu::cold]] void doubt_path();
  [[gnu::cold]] void tell_path();
  void follow_path();
  // An address that changes (session.cc, session_receive.cc).
  bool takes_moves() const noexcept {  // who has moved shows it by its seals
    return (opening.features() & wire::kFeatureMoves) != 0 && opening.seals() != nullptr;
  }
  [[gnu::cold]] std::optional<std::span<const std::byte>> open_newest(
      const wire::Header& header, std::span<const std::byte> body) noexcept;
  [[gnu::cold]] void on_path_data(const wire::Header& header, std::span<const std::byte> payload,
                                  uint64_t now_ns);
  [[gnu::cold]] uint32_t build_path_data(std::span<std::byte> out, wire::FrameType type,
                                         uint64_t data) noexcept;
  [[gnu::cold]] void move(const Endpoint& to, uint16_t max_udp_payload,
                          std::optional<uint64_t> reset_token, uint64_t now_ns);
  [[gnu::cold]] void begin_path(uint16_t max_udp_payload);

  bool takes_parts() const noexcept { return (opening.features() & wire::kFeatureParts) != 0; }

  // The release that brought parts took none that are sealed, and has the same feature: to have
  // both, a peer must have what came after sealed parts, too.
  bool surely_takes_parts() const noexcept {
    return takes_parts() &&
           (opening.seals() == nullptr || (opening.features() & wire::kFeatureConfirmation) != 0);
  }

  void count(Counter counter) noexcept { counters.add(counter); }

  const SessionSlot slot;
  const uint32_t local_number;
  Endpoint remote;
  const SessionConfig config;
  SessionEvents& events;
  Counters& counters;
  State state = State::kClosed;
  uint64_t now_ns_seen = 0;  // the latest that was told

  Opening opening;
  Liveness liveness;
  Ending ending;
  Notices notices;
  PortRange peer_ports;

  // Sending.
  PacketNumbers numbers;
  std::unique_ptr<PortTurns> turns;  // null: datagrams leave from one port
  LossDetector loss;
  SendLimit limit;
  SendGate gate;
  RefusalPause refusals;
  AckReceiver acks_in;
  ControlSender control_out;
  DeliveryWatch delivery;
  MtuProbe probe;
  ProbeAgain probe_again;
  bool path_told = false;
  uint16_t largest = 0;       // what both ports can do
  uint16_t path_largest = 0;  // of it, what this one can do on this path
  uint64_t path_number = 0;   // what is below it was sent over another path
  bool moved = false;         // packets sent where the peer was before may be in flight
  uint64_t lost_packets = 0;  // MTU probes not counted

  // Receiving.
  AckSender acks_out;
  ControlReceiver control_in;

  std::unique_ptr<FrameParts> parts;        // null: none has come
  std::optional<uint64_t> path_challenged;  // the peer's challenge, to be answered

  // Streams, once both sides are known to have them.
  StreamConfig stream_config;
  StreamEvents* stream_events = nullptr;
  std::unique_ptr<Streams> streams;
};

}  // namespace mercury
