#include <algorithm>
#include <cstring>

#include "transport/flow/session_impl.h"
#include "transport/wire/be.h"
#include "transport/wire/control.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/path_data.h"
#include "transport/wire/source_ports.h"

namespace mercury {

void Session::Impl::on_frame(const wire::Header& header, std::span<const std::byte> payload,
                             uint64_t now_ns, const Arrival& arrival) {
  now_ns_seen = now_ns;
  if (state == State::kClosing || state == State::kClosed) {
    count(Counter::kDropNotOpen);
    return;
  }
  const bool tagged = wire::is_tagged(header.type);
  if (tagged && (state == State::kConnecting || header.tag != opening.tag().header)) {
    count(Counter::kDropHeaderCrc);
    return;
  }
  uint32_t crc = header.payload_crc;
  if (tagged && opening.seals() != nullptr) [[unlikely]] {
    const std::optional<Seals::Opened> opened = open_seal(header, payload);
    if (!opened) return;
    payload = opened->payload;
    crc ^= opened->crc_mask;
  }
  if ((wire::crc32c(payload) ^ (tagged ? opening.tag().payload : 0)) != crc) {
    count(Counter::kDropPayloadCrc);
    return;
  }
  if (tagged && !opening.confirmed()) confirm();
  switch (header.type) {
    case wire::FrameType::kHello:
      on_hello_again(payload);
      return;
    case wire::FrameType::kHelloAck:
      if (shows_hello(header, payload)) on_hello_ack(payload, now_ns);
      return;
    case wire::FrameType::kRefuse:
      if (shows_hello(header, payload)) on_reason(header.type, payload);
      return;
    case wire::FrameType::kClose:
      on_reason(header.type, payload);
      return;
    case wire::FrameType::kAck:
    case wire::FrameType::kPing:
    case wire::FrameType::kControl:
    case wire::FrameType::kResetToken:
    case wire::FrameType::kPathChallenge:
    case wire::FrameType::kPathResponse:
    case wire::FrameType::kSourcePorts:
      on_open_frame(header, payload, now_ns, arrival);
      return;
    case wire::FrameType::kStream:
    case wire::FrameType::kStreamCredit:
    case wire::FrameType::kStreamReset:
      on_stream_frame(header, payload, now_ns, arrival);
      return;
    case wire::FrameType::kPart:
      on_part(header, payload, arrival.ecn_ce);
      return;
    case wire::FrameType::kReset:  // the engine's to take, as datagrams
    case wire::FrameType::kDatagram0:
    case wire::FrameType::kDatagram1:
      count(Counter::kDropType);
      return;
  }
}

// Nothing: its seal does not fit, and the drop is counted.
std::optional<Seals::Opened> Session::Impl::open_seal(const wire::Header& header,
                                                      std::span<const std::byte> body) {
  if (!acks_out.is_new(header.packet_number)) {
    count(acks_out.reason_of_drop(header.packet_number));
    return std::nullopt;
  }
  const auto opened = opening.seals()->open(header, body);
  if (!opened) count(Counter::kDropSeal);
  return opened;
}

void Session::Impl::confirm() {
  opening.confirm();
  if ((opening.features() & wire::kFeatureResets) != 0 && config.reset_token) {
    notices.tell_reset_token(*config.reset_token);
  }
  if ((opening.features() & wire::kFeatureSourcePorts) != 0 && config.source_ports.count > 0) {
    notices.tell(Notices::kSourcePorts);
  }
  count(Counter::kSessionsOpened);
  events.on_open(slot);
}

void Session::Impl::on_hello_again(std::span<const std::byte> payload) {
  const std::optional<wire::Hello> again = wire::decode_hello(payload);
  if (!again || !opening.on_hello_again(*again)) count(Counter::kDropHandshake);
}

// Whether an answer comes from one who has seen our HELLO.
bool Session::Impl::shows_hello(const wire::Header& header, std::span<const std::byte> payload) {
  if (opening.knows_hello(header)) return true;
  count(Counter::kDropForgedAnswer);
  opening.note_hearsay(header, payload);
  return false;
}

void Session::Impl::on_hello_ack(std::span<const std::byte> payload, uint64_t now_ns) {
  const std::optional<wire::HelloAck> answer = wire::decode_hello_ack(payload);
  if (!answer || opening.passive()) {
    count(Counter::kDropHandshake);
    return;
  }
  if (state != State::kConnecting) return;  // the answer to a HELLO that was said twice
  const std::optional<uint64_t> round_trip_ns = opening.round_trip_ns(now_ns);
  if (!opening.confirms(*answer, payload)) {
    count(Counter::kDropForgedAnswer);
    return;
  }
  if (Status answered = opening.on_answer(*answer); !answered) {
    begin_close(wire::FrameType::kClose, answered.error().code, answered.error().message);
    return;
  }
  if (round_trip_ns) loss.rtt().hint(*round_trip_ns);
  open(answer->max_udp_payload, now_ns);
  liveness.ask();  // a frame with the tag: the peer waits for one
  confirm();
}

void Session::Impl::on_reason(wire::FrameType type, std::span<const std::byte> payload) {
  const std::optional<wire::Reason> reason = wire::decode_reason(payload);
  const bool refuse = type == wire::FrameType::kRefuse;
  // REFUSE answers our HELLO; CLOSE comes from the number that we talk to, if we know it yet.
  const bool expected =
      reason && (refuse ? state == State::kConnecting && reason->session == local_number
                        : reason->session == opening.peer_number());
  if (!expected) {
    count(Counter::kDropHandshake);
    return;
  }
  if (refuse && reason->code == Errc::kRetry) {
    if (!opening.take_token(reason->text)) count(Counter::kDropHandshake);
    return;
  }
  if (refuse) count(Counter::kSessionsRefused);
  finish(Error(reason->code, reason->text));
}

void Session::Impl::on_open_frame(const wire::Header& header, std::span<const std::byte> payload,
                                  uint64_t now_ns, const Arrival& arrival) {
  if (state != State::kOpen) {
    count(Counter::kDropNotOpen);
    return;
  }
  if (!acks_out.is_new(header.packet_number)) {
    count(acks_out.reason_of_drop(header.packet_number));
    return;
  }
  liveness.on_heard(now_ns);
  const bool ack_now = (header.flags & wire::kFlagAckNow) != 0;
  switch (header.type) {
    case wire::FrameType::kAck:
      acks_out.on_ack_received(header.packet_number, now_ns);
      on_ack(header, payload, now_ns, arrival);
      if (streams && state == State::kOpen) streams->tell();
      return;
    case wire::FrameType::kControl:
      if (!on_control(payload)) {
        count(Counter::kDropControl);
        return;
      }
      acks_out.on_received(header.packet_number, ack_now, now_ns, arrival);
      deliver_control();
      return;
    case wire::FrameType::kPathChallenge:
    case wire::FrameType::kPathResponse:
      on_path_data(header, payload, now_ns);
      return;
    case wire::FrameType::kResetToken:
    case wire::FrameType::kSourcePorts:
      if (header.type == wire::FrameType::kResetToken ? !on_reset_token(payload)
                                                      : !on_source_ports(payload)) {
        count(Counter::kDropHandshake);
        return;
      }
      acks_out.on_received(header.packet_number, ack_now, now_ns, arrival);
      return;
    default:
      acks_out.on_received(header.packet_number, ack_now, now_ns, arrival);
      return;
  }
}

bool Session::Impl::on_reset_token(std::span<const std::byte> payload) {
  wire::Be64 masked;
  if ((opening.features() & wire::kFeatureResets) == 0 || payload.size() != sizeof masked) {
    return false;
  }
  std::memcpy(&masked, payload.data(), sizeof masked);
  events.on_reset_token(slot, masked.value() ^ opening.peer_mask());
  return true;
}

// They are told again where that was not heard, and never others.
bool Session::Impl::on_source_ports(std::span<const std::byte> payload) {
  const std::optional<PortRange> ports = wire::decode_source_ports(payload);
  if (!ports || (opening.features() & wire::kFeatureSourcePorts) == 0) return false;
  if (peer_ports.count > 0) return peer_ports == *ports;
  peer_ports = *ports;
  events.on_source_ports(slot, peer_ports);
  return true;
}

std::optional<std::span<const std::byte>> Session::Impl::open_newest(
    const wire::Header& header, std::span<const std::byte> body) noexcept {
  const bool newest = state == State::kOpen && opening.confirmed() && takes_moves() &&
                      header.tag == opening.tag().header &&
                      header.packet_number > acks_out.largest() &&
                      acks_out.is_new(header.packet_number);
  if (!newest) return std::nullopt;
  const std::optional<Seals::Opened> opened = opening.seals()->open(header, body);
  return opened ? std::optional(opened->payload) : std::nullopt;
}

// From the peer, where it is known to be. A response from there is one that came too late.
void Session::Impl::on_path_data(const wire::Header& header, std::span<const std::byte> payload,
                                 uint64_t now_ns) {
  const std::optional<uint64_t> data = wire::decode_path_data(payload);
  if (!data || !takes_moves()) {
    count(Counter::kDropType);
    return;
  }
  acks_out.on_ack_received(header.packet_number, now_ns);
  if (header.type == wire::FrameType::kPathChallenge) path_challenged = data;
}

// What becomes whole is checked as a frame that came so.
void Session::Impl::on_part(const wire::Header& header, std::span<const std::byte> payload,
                            bool marked) {
  const std::optional<wire::Part> part = wire::decode_part(payload);
  if (!part || part->total > largest || !takes_parts()) {
    count(Counter::kDropType);
    return;
  }
  if (!acks_out.is_new(header.packet_number)) {
    count(acks_out.reason_of_drop(header.packet_number));
    return;
  }
  if (parts == nullptr) parts = std::make_unique<FrameParts>();
  std::optional<FrameParts::Whole> whole = parts->add(header.packet_number, *part, marked);
  if (!whole) return;
  if (wire::may_be_cut(whole->bytes, local_number, header.packet_number)) {
    events.on_whole(slot, std::move(whole->bytes), whole->marked);
  } else {
    count(Counter::kDropType);
  }
}

void Session::Impl::on_ack(const wire::Header& header, std::span<const std::byte> payload,
                           uint64_t now_ns, const Arrival& arrival) {
  wire::Ack ack;
  if (!wire::decode(payload, ack)) {
    count(Counter::kDropControl);
    return;
  }
  count(Counter::kAcksReceived);
  if (!numbers.cover(ack)) {
    begin_close(wire::FrameType::kClose, Errc::kProtocol,
                "acknowledgement of a packet that was never sent");
    return;
  }
  if (acks_in.begin(header.packet_number, ack, loss.bytes_in_flight(), now_ns)) {
    limit.take_grants(header.grant, header.idle_grant);
  }
  const uint64_t delay_ns = uint64_t{ack.delay_us} * 1000;
  const uint64_t spurious = loss.spurious_losses();
  const bool refusing = ack.refused != 0 || refusals.holding();
  if (refusing || moved || turns) [[unlikely]] {
    on_rare_ack(ack, arrival.waited_ns, now_ns);
  } else {
    loss.on_ack(std::span(ack.ranges, ack.count), delay_ns, now_ns, *this, arrival.waited_ns);
  }
  delivery.on_ack(std::span(ack.ranges, ack.count), now_ns);
  if (loss.spurious_losses() != spurious) {
    counters.add(Counter::kSpuriousLosses, loss.spurious_losses() - spurious);
  }
  const AckSample& sample = acks_in.end(delay_ns, (header.flags & wire::kFlagAtMost) != 0, arrival);
  limit.on_ack(sample);
  if (refusing) [[unlikely]]
    after_refusals(sample.packets, now_ns);
  after_progress();
}

// One that refuses datagrams, or that may be of packets sent where the peer was before, or from
// several ports.
void Session::Impl::on_rare_ack(const wire::Ack& ack, uint64_t waited_ns,
                                uint64_t now_ns) noexcept {
  struct Sink {  // looks for what is taken again; while nothing is refused nobody does
    void packet_acked(const SentRecord& record) noexcept {
      if (wire::is_datagram(record.tag.type())) session.refusals.on_taken(record.sent_ns);
      if (session.loss.sent_before_move(record.number)) {
        session.give_back_acked(record);
      } else {
        if (session.took_turn(record)) session.turns->on_arrived(record.number);
        session.packet_acked(record);
      }
    }
    void packet_refused(const SentRecord& record) noexcept { session.packet_refused(record); }
    void packet_lost(const SentRecord& record, LossCause cause) noexcept {
      session.packet_lost(record, cause);
    }
    Impl& session;
  } sink{*this};
  if (turns) turns->on_acked(std::span(ack.ranges, ack.count));
  const uint64_t delay_ns = uint64_t{ack.delay_us} * 1000;
  loss.on_refused(std::span(ack.refused_ranges, ack.refused), ack.ranges[0].last, delay_ns, now_ns,
                  sink, waited_ns);
  loss.on_ack(std::span(ack.ranges, ack.count), delay_ns, now_ns, sink, waited_ns);
  if (!moved) return;
  acks_in.forget_marks();  // of which some may be the other path's
  moved = loss.any_before_move();
}

void Session::Impl::after_refusals(uint32_t packets, uint64_t now_ns) noexcept {
  refusals.on_ack_end(packets, loss.rtt().smoothed_ns(), now_ns);
  if (refusals.holding()) gate.hold(refusals.until_ns());
  if (refusals.holding() != limit.held()) limit.hold(refusals.holding());
}

bool Session::Impl::on_control(std::span<const std::byte> payload) {
  const std::optional<wire::ControlPiece> piece = wire::decode_control(payload);
  return piece && control_in.on_bytes(piece->offset, piece->bytes);
}

void Session::Impl::deliver_control() {
  std::vector<std::byte> message;
  while (state == State::kOpen) {
    switch (control_in.next_message(message)) {
      case ControlReceiver::Next::kMessage:
        events.on_control(slot, message);
        break;
      case ControlReceiver::Next::kNone:
        return;
      case ControlReceiver::Next::kBad:
        begin_close(wire::FrameType::kClose, Errc::kProtocol,
                    "a control message longer than any can be");
        return;
    }
  }
}

void Session::Impl::packet_acked(const SentRecord& record) noexcept {
  acks_in.on_acked(record);
  delivery.on_delivered(record.bytes);
  give_back_acked(record);
}

// Of the path it says nothing.
void Session::Impl::give_back_acked(const SentRecord& record) noexcept {
  if (wire::is_datagram(record.tag.type())) {
    events.on_acked(slot, record.tag);
  } else if (record.tag.type() == wire::FrameType::kControl) {
    control_out.on_acked(segment_of(record.tag));
  } else if (wire::is_stream(record.tag.type())) {
    stream_acked(record.tag);
  } else if (record.tag.type() == wire::FrameType::kSourcePorts) {
    events.on_source_ports_known(slot);
  } else if (probed_bytes(record.tag) != 0 && record.number >= path_number) {
    probe.on_acked(probed_bytes(record.tag));
  }
}

// It arrived, so of the path it says what an acknowledged one says.
void Session::Impl::packet_refused(const SentRecord& record) noexcept {
  if (!wire::is_datagram(record.tag.type())) {  // nobody refuses these
    packet_lost(record, LossCause::kOvertaken);
    return;
  }
  if (!loss.sent_before_move(record.number)) {
    if (took_turn(record)) turns->on_arrived(record.number);
    acks_in.on_acked(record);
    delivery.on_delivered(record.bytes);
  }
  refusals.on_refused(record.sent_ns);
  count(Counter::kDatagramsSentBack);
  events.on_refused(slot, record.tag);
}

void Session::Impl::packet_lost(const SentRecord& record, LossCause cause) noexcept {
  const bool ping = record.tag.type() == wire::FrameType::kPing;
  const bool here = !loss.sent_before_move(record.number);  // else nothing of this path did it
  if (ping && probed_bytes(record.tag) != 0) {
    if (record.number < path_number) return;
    probe.on_lost(probed_bytes(record.tag), here && cause == LossCause::kOvertaken);
    return;
  }
  ++lost_packets;
  if (here) {
    limit.on_lost(cause == LossCause::kSilence, now_ns_seen);
    if (!ping) delivery.on_lost(record.number, record.bytes, record.sent_ns, now_ns_seen);
    if (took_turn(record) && turns->on_lost(record.number, now_ns_seen)) {
      count(Counter::kSourcePortsLeftOut);
    }
  }
  if (wire::is_datagram(record.tag.type())) {
    events.on_lost(slot, record.tag);
  } else if (record.tag.type() == wire::FrameType::kControl) {
    control_out.on_lost(segment_of(record.tag));
  } else if (record.tag.type() == wire::FrameType::kResetToken) {
    notices.on_lost(Notices::kResetToken);
  } else if (record.tag.type() == wire::FrameType::kSourcePorts) {
    const bool again = notices.on_ports_lost(here && cause == LossCause::kOvertaken);
    if (!again) count(Counter::kSourcePortsUnheard);
  } else if (!ping) {
    stream_lost(record.tag);
  }
}

}  // namespace mercury
