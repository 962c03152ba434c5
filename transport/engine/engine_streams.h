// Engine: streams, for a service that has them. Included by engine.h only.
#pragma once

#include "transport/engine/engine.h"

namespace mercury {

template <Port P, Service S>
Streams* Engine<P, S>::streams_of(SessionSlot slot) noexcept {
  if (!sessions_.in_use(slot) || sessions_.at(slot).closed) return nullptr;
  sessions_.touch(slot);  // whatever is asked for may give it frames to send
  return sessions_.at(slot).session->streams();
}

template <Port P, Service S>
Result<StreamId> Engine<P, S>::open_stream(SessionSlot slot) {
  if (Streams* streams = streams_of(slot)) return streams->open();
  if (!sessions_.in_use(slot) || sessions_.at(slot).session->state() != Session::State::kOpen) {
    return Error(Errc::kClosed, "the session is not open");
  }
  return Error(Errc::kUnsupported, "the session with " + sessions_.at(slot).remote.to_string() +
                                       " carries no streams: one of both HELLOs lacks the feature");
}

template <Port P, Service S>
size_t Engine<P, S>::write_stream(SessionSlot slot, StreamId stream,
                                  std::span<const std::byte> bytes) {
  Streams* streams = streams_of(slot);
  return streams == nullptr ? 0 : streams->write(stream, bytes);
}

template <Port P, Service S>
StreamRead Engine<P, S>::read_stream(SessionSlot slot, StreamId stream, std::span<std::byte> out) {
  Streams* streams = streams_of(slot);
  return streams == nullptr ? StreamRead{} : streams->read(stream, out);
}

template <Port P, Service S>
size_t Engine<P, S>::stream_room(SessionSlot slot, StreamId stream, size_t most,
                                 std::span<iovec> parts) {
  Streams* streams = streams_of(slot);
  return streams == nullptr ? 0 : streams->room(stream, most, parts);
}

template <Port P, Service S>
void Engine<P, S>::wrote_stream(SessionSlot slot, StreamId stream, size_t bytes) {
  if (Streams* streams = streams_of(slot)) streams->wrote(stream, bytes);
}

template <Port P, Service S>
Streams::Peeked Engine<P, S>::peek_stream(SessionSlot slot, StreamId stream,
                                          std::span<iovec> parts) {
  Streams* streams = streams_of(slot);
  return streams == nullptr ? Streams::Peeked{} : streams->peek(stream, parts);
}

template <Port P, Service S>
void Engine<P, S>::took_stream(SessionSlot slot, StreamId stream, size_t bytes) {
  if (Streams* streams = streams_of(slot)) streams->took(stream, bytes);
}

template <Port P, Service S>
void Engine<P, S>::finish_stream(SessionSlot slot, StreamId stream) {
  if (Streams* streams = streams_of(slot)) streams->finish(stream);
}

template <Port P, Service S>
void Engine<P, S>::reset_stream(SessionSlot slot, StreamId stream, Errc code) {
  if (Streams* streams = streams_of(slot)) streams->reset(stream, code);
}

template <Port P, Service S>
void Engine<P, S>::prioritise_stream(SessionSlot slot, StreamId stream, uint8_t priority) {
  if (Streams* streams = streams_of(slot)) streams->prioritise(stream, priority);
}

template <Port P, Service S>
size_t Engine<P, S>::stream_bytes(SessionSlot slot) {
  if (!sessions_.in_use(slot)) return 0;
  const Streams* streams = sessions_.at(slot).session->streams();
  return streams == nullptr ? 0 : streams->block_bytes();
}

template <Port P, Service S>
std::optional<SessionView> Engine<P, S>::view_session(SessionSlot slot) {
  if (!sessions_.in_use(slot)) return std::nullopt;
  const Session& session = *sessions_.at(slot).session;
  if (session.state() != Session::State::kOpen) return std::nullopt;
  return SessionView{session.smoothed_rtt_ns(), session.least_rtt_ns(), session.window_bytes(),
                     session.bytes_in_flight(), session.lost_packets(), session.path_payload()};
}

template <Port P, Service S>
void Engine<P, S>::close_session(SessionSlot slot, Errc code, std::string_view text) {
  if (!sessions_.in_use(slot) || sessions_.at(slot).closed) return;
  sessions_.touch(slot);
  sessions_.at(slot).session->close(code, text, now_ns_);
}

// The service has had its turn: what it has not taken of the frames received is copied.
template <Port P, Service S>
void Engine<P, S>::return_frames() {
  for (const SessionSlot slot : sessions_.touched()) {
    if (!sessions_.in_use(slot)) continue;
    if (Streams* streams = sessions_.at(slot).session->streams()) streams->keep();
  }
  port_.rx_release();
  streams_borrow_ = false;
}

// A session whose streams have segments that may go takes its place in the line.
template <Port P, Service S>
void Engine<P, S>::line_up(SessionSlot slot, SessionEntry& entry) {
  if (entry.closed || !entry.session->can_send_stream(now_ns_)) return;
  const uint8_t priority = entry.session->stream_priority();
  if (entry.line_priority >= priority) return;
  entry.line_priority = static_cast<int8_t>(priority);
  line_.push(slot, priority);
}

template <Port P, Service S>
void Engine<P, S>::leave_line(SessionSlot slot, SessionEntry& entry) {
  line_.erase_if([slot](SessionSlot other) { return other == slot; });
  entry.line_priority = -1;
}

// Whatever the service has asked for meanwhile is not forgotten until the next frame of the peer.
template <Port P, Service S>
void Engine<P, S>::settle_after_sending(SessionSlot slot, SessionEntry& entry) {
  line_up(slot, entry);
  const Session& session = *entry.session;
  const bool pending = session.has_pending(now_ns_);
  sessions_.set_deadline(slot, std::min(session.next_deadline_ns(), pending ? now_ns_ : kNever));
}

// Streams and datagrams take turns at who is first: who was and sent something is not the next
// time, so that neither has all of a link or a window that holds both up.
template <Port P, Service S>
uint32_t Engine<P, S>::send_by_turns() {
  const bool streams_first = streams_first_;
  uint32_t segments = streams_first ? send_streams() : 0;
  const uint32_t datagrams = stalled_ ? 0 : send_datagrams();
  if (!streams_first) segments = send_streams();
  if ((streams_first ? segments : datagrams) > 0) streams_first_ = !streams_first;
  return segments + datagrams;
}

// Each session in the line sends some segments and goes behind the others, as long as the link
// keeps up.
template <Port P, Service S>
uint32_t Engine<P, S>::send_streams() {
  uint32_t sent = 0;
  while (!line_.empty() && sent < tx_burst_ && !stalled_) {
    if (!pacer_.allows(now_ns_)) {
      pacer_.note_waiting();
      paced_ = true;
      break;
    }
    const SessionSlot slot = line_.front();
    const auto priority = static_cast<int8_t>(line_.priority());
    line_.pop();
    SessionEntry& entry = sessions_.at(slot);       // who is released has left
    if (entry.line_priority != priority) continue;  // it went with a higher one
    entry.line_priority = -1;
    sent += send_segments(entry);
    update_block(slot, entry);
    settle_after_sending(slot, entry);
  }
  return sent;
}

template <Port P, Service S>
uint32_t Engine<P, S>::send_segments(SessionEntry& entry) {
  uint32_t sent = 0;
  while (sent < kStreamTurn && pacer_.allows(now_ns_) && entry.session->can_send_stream(now_ns_)) {
    TxFrame frame;
    if (!port_.tx_alloc(frame)) {
      counters_.add(Counter::kTxBackpressure);
      stalled_ = true;
      break;
    }
    const uint32_t bytes = entry.session->build_stream({frame.data, frame.capacity}, now_ns_);
    if (bytes == 0) {  // cut for a path that carried more than the port does now
      port_.tx_cancel(frame);
      entry.session->close(Errc::kProtocol, "a segment of a stream is more than the port carries",
                           now_ns_);
      break;
    }
    if (bytes > entry.whole_bytes) {
      std::copy_n(frame.data, bytes, cut_.data());
      port_.tx_cancel(frame);
      ++sent;
      if (!send_in_parts(entry, bytes)) break;
      continue;
    }
    send_own_frame(frame, entry, bytes);
    ++sent;
  }
  if (sent > 0 && !entry.on_host) pacer_.note_haste(now_ns_);
  return sent;
}

}  // namespace mercury
