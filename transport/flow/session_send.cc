#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "transport/flow/session_impl.h"
#include "transport/wire/be.h"
#include "transport/wire/control.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/path_data.h"
#include "transport/wire/source_ports.h"

namespace mercury {
namespace {

// Control messages are few and everything waits for them: they may exceed the window by this much,
// so that a full window of datagrams does not hold them up.
constexpr uint64_t kControlInFlightBytes = 32 * 1024;
static_assert(kControlSegmentBytes + wire::kControlHeaderBytes + kPlainBytes <= kBasePayloadBytes);
static_assert(wire::ack_bytes(wire::kMaxAckRanges, wire::kMaxRefusedRanges) + kPlainBytes +
                  wire::kSealBytes <=
              kBasePayloadBytes);

}  // namespace

bool Session::Impl::can_send(uint32_t bytes) const noexcept {
  return state == State::kOpen && gate.can_send(bytes, limit, loss, now_ns_seen);
}

bool Session::Impl::can_send(uint32_t bytes, uint64_t now_ns) noexcept {
  now_ns_seen = std::max(now_ns_seen, now_ns);
  if (state == State::kOpen && loss.packets_in_flight() == 0) {
    gate.begin_burst(bytes, limit, loss, now_ns, (uint64_t{local_number} << 32) + numbers.next());
  }
  return can_send(bytes);
}

uint64_t Session::Impl::on_send_datagram(const SentTag& tag, uint32_t bytes,
                                         uint64_t now_ns) noexcept {
  const uint64_t number = numbers.take();
  const bool takes_turn = turns && bytes <= probe.path_payload();
  loss.on_sent(SentKind::kData, number,
               takes_turn ? tag.on_path(static_cast<uint8_t>(turns->current())) : tag, bytes,
               now_ns);
  gate.on_sent(bytes, limit, loss, now_ns);
  return number;
}

bool Session::Impl::control_due() const noexcept {
  return control_out.waits() && control_out.in_flight_bytes() < kControlInFlightBytes &&
         control_out.next().has_value();
}

bool Session::Impl::has_pending(uint64_t now_ns) const noexcept {
  switch (state) {
    case State::kConnecting:
      return opening.hello_due();
    case State::kClosing:
      return true;
    case State::kClosed:
      return false;
    case State::kOpen:
      break;
  }
  if (opening.answer_due() || acks_out.due(now_ns)) return true;
  if (!opening.confirmed()) return false;  // it may be nobody who asked
  if (path_challenged) return true;
  // The rest is kept until it is acknowledged, and that needs a record.
  return loss.has_room(SentKind::kOwn) &&
         (loss.probes_due() > 0 || liveness.ask_due() || probe.escort_due() || probe.due() != 0 ||
          notices.due() || control_due() || signal_due());
}

uint32_t Session::Impl::build(std::span<std::byte> out, uint64_t now_ns) {
  if (out.size() < kBasePayloadBytes) return 0;
  switch (state) {
    case State::kConnecting:
      return opening.hello_due() ? opening.write_hello(out, now_ns) : 0;
    case State::kClosing:
      return build_farewell(out);
    case State::kClosed:
      return 0;
    case State::kOpen:
      return build_open(out, now_ns);
  }
  return 0;
}

uint32_t Session::Impl::build_open(std::span<std::byte> out, uint64_t now_ns) {
  if (opening.answer_due()) return opening.write_answer(out);
  if (acks_out.due(now_ns)) return build_ack(out, now_ns);
  if (!opening.confirmed()) return 0;
  if (path_challenged) {
    return build_path_data(out, wire::FrameType::kPathResponse,
                           *std::exchange(path_challenged, std::nullopt));
  }
  if (!loss.has_room(SentKind::kOwn)) return 0;
  if (loss.probes_due() > 0) {
    loss.probe_sent();
    return build_ping(out, 0, now_ns);
  }
  if (control_due()) return build_control(out, now_ns);
  if (signal_due()) return build_signal(out, now_ns);
  if (liveness.ask_due()) return build_ping(out, 0, now_ns);
  if (notices.due(Notices::kResetToken)) return build_reset_token(out, now_ns);
  if (notices.due(Notices::kSourcePorts)) return build_source_ports(out, now_ns);
  if (probe.escort_due()) {
    probe.on_escort_sent();
    return build_ping(out, 0, now_ns);
  }
  while (probe.due() > out.size()) probe.give_up_size();
  if (probe.due() == 0) return 0;
  const uint16_t size = probe.due();
  probe.on_sent();
  return build_ping(out, size, now_ns);
}

uint32_t Session::Impl::build_ack(std::span<std::byte> out, uint64_t now_ns) {
  wire::Ack ack;
  wire::Header header;
  header.type = wire::FrameType::kAck;
  header.packet_number = numbers.take();
  acks_out.report(ack, header, now_ns);
  const size_t bytes = wire::encode(ack, out.subspan(head_bytes()));
  count(Counter::kAcksSent);
  return finish_tagged(out, header, bytes);
}

uint32_t Session::Impl::finish_tagged(std::span<std::byte> out, wire::Header header,
                                      size_t body_bytes) noexcept {
  return finish_summed(out, header, body_bytes,
                       wire::crc32c(out.data() + head_bytes(), body_bytes));
}

uint32_t Session::Impl::finish_summed(std::span<std::byte> out, wire::Header header,
                                      size_t body_bytes, uint32_t crc) noexcept {
  header.session = opening.peer_number();
  header.tag = opening.tag().header;
  header.payload_crc = crc ^ opening.tag().payload;
  if (opening.seals() != nullptr) [[unlikely]]
    return finish_sealed(out, header, body_bytes);
  return finish_frame(out, header, static_cast<uint32_t>(body_bytes), header.payload_crc);
}

uint32_t Session::Impl::finish_sealed(std::span<std::byte> out, wire::Header header,
                                      size_t body_bytes) noexcept {
  const std::span<std::byte> body = out.subspan(head_bytes(), body_bytes);
  Seals& seals = *opening.seals();
  header.flags |= seals.flags();
  header.payload_bytes = static_cast<uint16_t>(wire::kSealBytes + body_bytes);
  header.payload_crc ^= seals.crc_mask(header.packet_number);
  wire::encode(header, out.data());
  seals.seal(header.packet_number, kPlainBytes, out.data(), body);
  return head_bytes() + static_cast<uint32_t>(body_bytes);
}

uint32_t Session::Impl::finish_tracked(std::span<std::byte> out, wire::Header header,
                                       size_t body_bytes, const SentTag& tag,
                                       uint64_t now_ns) noexcept {
  header.packet_number = numbers.take();
  const uint32_t bytes = finish_tagged(out, header, body_bytes);
  loss.on_sent(SentKind::kOwn, header.packet_number, tag, bytes, now_ns);
  return bytes;
}

// A PING asks for an acknowledgement now; one will do for all that wait for a sign of life.
uint32_t Session::Impl::build_ping(std::span<std::byte> out, uint16_t probed_bytes,
                                   uint64_t now_ns) {
  if (probed_bytes == 0) liveness.on_asked();  // a probe may be too large to arrive
  const size_t padding = probed_bytes == 0 ? 0 : probed_bytes - head_bytes();
  std::memset(out.data() + head_bytes(), 0, padding);
  wire::Header header;
  header.type = wire::FrameType::kPing;
  header.flags = wire::kFlagAckNow;
  return finish_tracked(out, header, padding, ping_tag(probed_bytes), now_ns);
}

uint32_t Session::Impl::build_reset_token(std::span<std::byte> out, uint64_t now_ns) {
  const wire::Be64 masked(notices.reset_token() ^ opening.own_mask());
  std::memcpy(out.data() + head_bytes(), &masked, sizeof masked);
  notices.on_sent(Notices::kResetToken);
  wire::Header header;
  header.type = wire::FrameType::kResetToken;
  return finish_tracked(out, header, sizeof masked, segment_tag(header.type, 0, 0), now_ns);
}

uint32_t Session::Impl::build_source_ports(std::span<std::byte> out, uint64_t now_ns) {
  wire::encode_source_ports(config.source_ports, out.data() + head_bytes());
  notices.on_sent(Notices::kSourcePorts);
  wire::Header header;
  header.type = wire::FrameType::kSourcePorts;
  header.flags = wire::kFlagAckNow;  // datagrams are spread once it is known
  return finish_tracked(out, header, wire::kSourcePortsBytes, segment_tag(header.type, 0, 0),
                        now_ns);
}

// Not acknowledged: who has not heard the answer asks again.
uint32_t Session::Impl::build_path_data(std::span<std::byte> out, wire::FrameType type,
                                        uint64_t data) noexcept {
  wire::encode_path_data(data, out.data() + head_bytes());
  wire::Header header;
  header.type = type;
  header.packet_number = numbers.take();
  return finish_tagged(out, header, wire::kPathDataBytes);
}

uint32_t Session::Impl::build_control(std::span<std::byte> out, uint64_t now_ns) {
  const StreamSender::Segment segment = *control_out.next();
  std::byte* body = out.data() + head_bytes();
  wire::encode_control_offset(segment.offset, body);
  control_out.read(segment, body + wire::kControlHeaderBytes);
  control_out.on_sent(segment);
  wire::Header header;
  header.type = wire::FrameType::kControl;
  // The last of a burst asks for an answer at once: whoever waits for the message waits for this.
  header.flags = control_due() ? uint16_t{0} : uint16_t{wire::kFlagAckNow};
  return finish_tracked(out, header, wire::kControlHeaderBytes + segment.bytes,
                        segment_tag(header.type, 0, segment.number), now_ns);
}

uint32_t Session::Impl::build_farewell(std::span<std::byte> out) {
  uint32_t bytes = 0;
  if (ending.farewell() == wire::FrameType::kRefuse) {
    bytes = opening.write_refusal(out, ending.error());
  } else {
    bytes = write_close(out);
  }
  if (ending.on_said()) enter_closed();
  return bytes;
}

uint32_t Session::Impl::write_close(std::span<std::byte> out) {
  wire::Header header;
  header.type = wire::FrameType::kClose;
  header.packet_number = numbers.take();
  const wire::Reason reason{local_number, ending.error().code, ending.error().message};
  return finish_tagged(out, header, wire::encode(reason, out.subspan(head_bytes())));
}

uint32_t Session::Impl::repeat_close(std::span<std::byte> out) {
  const bool awaited = state == State::kClosed && opening.peer_number() != 0 && ending.closes();
  return awaited && out.size() >= kBasePayloadBytes ? write_close(out) : 0;
}

}  // namespace mercury
