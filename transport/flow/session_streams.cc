// What a session does for its streams; sessions without them never come here.
#include "transport/flow/session_impl.h"

namespace mercury {

static_assert(wire::kStreamHeaderBytes + kPlainBytes + wire::kSealBytes < kBasePayloadBytes);

void Session::Impl::start_streams() {
  if (stream_events == nullptr || (opening.features() & wire::kFeatureStreams) == 0) return;
  streams = std::make_unique<Streams>(slot, !opening.passive(), stream_config, *stream_events);
}

void Session::Impl::on_stream_frame(const wire::Header& header, std::span<const std::byte> payload,
                                    uint64_t now_ns, const Arrival& arrival) {
  if (!streams) {
    count(Counter::kDropType);
    return;
  }
  if (state != State::kOpen) {  // its first frame told of a session that nobody wants
    count(Counter::kDropNotOpen);
    return;
  }
  if (!acks_out.is_new(header.packet_number)) {
    count(acks_out.reason_of_drop(header.packet_number));
    return;
  }
  liveness.on_heard(now_ns);
  switch (streams->on_frame(header.type, payload)) {
    case Streams::Verdict::kTaken:
      acks_out.on_received(header.packet_number, (header.flags & wire::kFlagAckNow) != 0, now_ns,
                           arrival);
      streams->tell();
      return;
    case Streams::Verdict::kDropped:
      count(Counter::kDropStream);
      return;
    case Streams::Verdict::kBroken:
      begin_close(wire::FrameType::kClose, Errc::kProtocol, streams->broken());
      return;
  }
}

void Session::Impl::stream_acked(const SentTag& tag) { streams->on_acked(stream_frame(tag)); }
void Session::Impl::stream_lost(const SentTag& tag) { streams->on_lost(stream_frame(tag)); }

// Credit and resets are small, and what they set free waits for them.
uint32_t Session::Impl::build_signal(std::span<std::byte> out, uint64_t now_ns) {
  const Streams::Frame frame = streams->build_signal(out.subspan(head_bytes()));
  wire::Header header;
  header.type = frame.type;
  return finish_tracked(out, header, frame.body_bytes, segment_tag(frame.type, frame.stream, 0),
                        now_ns);
}

uint32_t Session::Impl::segment_bytes() const noexcept {
  if (!streams || state != State::kOpen || !opening.confirmed()) return 0;
  return streams->segment_bytes(probe.path_payload() - head_bytes());
}

bool Session::Impl::can_send_stream(uint64_t now_ns) noexcept {
  const uint32_t body = segment_bytes();
  return body != 0 && can_send(head_bytes() + body, now_ns);
}

// Counted, paced and acknowledged as a datagram is: a stream may be as large as anything else.
uint32_t Session::Impl::build_stream(std::span<std::byte> out, uint64_t now_ns) {
  const uint32_t body = segment_bytes();
  if (body == 0 || out.size() < head_bytes() + body) return 0;
  const uint32_t most = probe.path_payload() - head_bytes();
  const Streams::Frame frame = streams->build_segment(out.subspan(head_bytes()), most);
  wire::Header header;
  header.type = frame.type;
  header.packet_number = on_send_datagram(segment_tag(frame.type, frame.stream, frame.segment),
                                          head_bytes() + body, now_ns);
  // The last of a burst asks if it is awaited and too few are on the way for the peer to answer by
  // itself. An answer costs as much as a short message, which has mostly an answer of its own.
  const bool asks = gate.ask_now() || (frame.awaited && segment_bytes() == 0 &&
                                       loss.packets_in_flight() < config.ack_every_packets);
  header.flags = asks ? uint16_t{wire::kFlagAckNow} : uint16_t{0};
  return finish_summed(out, header, frame.body_bytes, frame.crc);
}

}  // namespace mercury
