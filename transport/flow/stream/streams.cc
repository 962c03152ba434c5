#include "transport/flow/stream/streams.h"

#include <algorithm>
#include <utility>

#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

// So many blocks wait for the next bytes: those of one large window.
constexpr size_t kSpareBlocks = 64;
// Segments of a stream that are sent and not behind it: a program that writes single bytes does not
// fill our memory with records of them.
constexpr size_t kMaxSegments = 1024;
constexpr uint32_t kMostOpened = (uint32_t{1} << 31) - 2;

StreamConfig within_protocol(StreamConfig config) {
  config.max_streams = std::max(config.max_streams, wire::kInitialStreams);
  config.window_bytes = std::max(config.window_bytes, wire::kInitialStreamBytes);
  config.send_bytes = std::max(config.send_bytes, wire::kInitialStreamBytes);
  return config;
}

uint32_t index_of(uint32_t id) { return (id - 1) / 2; }

}  // namespace

Streams::Streams(SessionSlot session, bool active, const StreamConfig& config, StreamEvents& events)
    : session_(session),
      active_(active),
      config_(within_protocol(config)),
      events_(events),
      pool_(kSpareBlocks),
      peer_may_open_(config_.max_streams),
      count_due_(peer_may_open_ > peer_told_) {}

Streams::Stream* Streams::find(uint32_t id) noexcept {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second;
}

Streams::Stream* Streams::find_for_service(StreamId stream) noexcept {
  Stream* found = find(stream.value);
  return found == nullptr || found->gone ? nullptr : found;
}

Streams::Stream& Streams::add(uint32_t id) {
  return streams_.try_emplace(id, &pool_).first->second;
}

// --- the service ---

Result<StreamId> Streams::open() {
  if (opened_ >= kMostOpened) {
    return Error(Errc::kLimit, "the session has opened as many streams as there are numbers");
  }
  if (opened_ >= may_open_ || open_ours_ >= config_.max_streams) {
    wants_open_ = true;
    return Error(Errc::kAgain, "as many streams of the session are open as both sides allow");
  }
  const uint32_t id = 2 * opened_ + (active_ ? 1 : 2);
  ++opened_;
  ++open_ours_;
  add(id);
  return StreamId(id);
}

// What may be kept of a stream at most, as things are.
uint64_t Streams::send_limit_bytes(const Stream& stream) const noexcept {
  const uint64_t left = config_.shared_send_bytes - kept_extra_bytes_ + stream.kept_extra_bytes;
  return wire::kInitialStreamBytes +
         std::min<uint64_t>(config_.send_bytes - wire::kInitialStreamBytes, left / 2);
}

void Streams::note_kept(Stream& stream) noexcept {
  const uint64_t kept = stream.out.kept_bytes();
  const uint64_t extra = kept - std::min<uint64_t>(kept, wire::kInitialStreamBytes);
  kept_extra_bytes_ += extra - stream.kept_extra_bytes;
  stream.kept_extra_bytes = extra;
  note_unsent(stream);
}

void Streams::note_unsent(Stream& stream) noexcept {
  const uint64_t unsent = stream.out.unsent_bytes();
  unsent_bytes_ += unsent - stream.unsent_bytes;
  stream.unsent_bytes = unsent;
}

uint64_t Streams::unsent_room_bytes(const Stream& stream) const noexcept {
  const uint64_t shared = config_.unsent_bytes - std::min(config_.unsent_bytes, unsent_bytes_);
  const uint64_t least = config_.least_unsent_bytes;
  return std::max(shared, least - std::min(least, stream.unsent_bytes));
}

uint64_t Streams::room_bytes(const Stream& stream) const noexcept {
  const uint64_t limit = send_limit_bytes(stream);
  return std::min(limit - std::min(limit, stream.out.kept_bytes()), unsent_room_bytes(stream));
}

size_t Streams::room(StreamId id, size_t most, std::span<iovec> parts) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->out.finished()) return 0;
  uint64_t bytes = std::min<uint64_t>(room_bytes(*stream), most);
  stream->wants_room = stream->wants_room || bytes == 0;
  if (bytes == 0) return 0;
  const uint64_t waiting = stream->out.unsent_bytes();
  const uint64_t rest = full_segment_bytes_ == 0 ? 0 : (waiting + bytes) % full_segment_bytes_;
  if (rest < bytes) bytes -= rest;
  return stream->out.reserve(static_cast<size_t>(bytes), parts);
}

void Streams::wrote(StreamId id, size_t bytes) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->out.finished()) return;
  stream->out.appended(bytes);
  note_kept(*stream);
  queue(id.value, *stream);
}

Streams::Peeked Streams::peek(StreamId id, std::span<iovec> parts) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->code != Errc::kOk) return {};
  Peeked peeked{stream->in.peek(parts), stream->ended()};
  stream->wants_bytes = stream->wants_bytes || peeked.parts == 0;
  if (peeked.end) settle(id.value, *stream);
  return peeked;
}

void Streams::took(StreamId id, size_t bytes) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->code != Errc::kOk || bytes == 0) return;
  stream->in.consume(bytes);
  note_read(id.value, *stream);
}

size_t Streams::write(StreamId id, std::span<const std::byte> bytes) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->out.finished()) return 0;
  const auto take = static_cast<size_t>(std::min<uint64_t>(bytes.size(), room_bytes(*stream)));
  if (take > 0) {
    stream->out.append(bytes.first(take));
    note_kept(*stream);
    queue(id.value, *stream);
  }
  stream->wants_room = stream->wants_room || take < bytes.size();
  return take;
}

StreamRead Streams::read(StreamId id, std::span<std::byte> out) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->code != Errc::kOk) return {};
  StreamRead result{stream->in.read(out), false};
  result.end = stream->ended();
  stream->wants_bytes = stream->wants_bytes || result.bytes < out.size();
  if (result.bytes > 0) note_read(id.value, *stream);
  if (result.end) settle(id.value, *stream);
  return result;
}

void Streams::finish(StreamId id) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->out.finished()) return;
  stream->out.finish();
  queue(id.value, *stream);
}

void Streams::reset(StreamId id, Errc code) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr) return;
  stream->gone = true;
  const bool over = stream->out.all_acknowledged() && stream->ended();
  if (stream->reset == Reset::kNone && !over) stop_sending(id.value, *stream, code);
  stream->in.discard_to(
      std::max(stream->in.highest(), stream->final_bytes == kNever ? 0 : stream->final_bytes));
  note_read(id.value, *stream);
  settle(id.value, *stream);
}

void Streams::prioritise(StreamId id, uint8_t priority) {
  Stream* stream = find_for_service(id);
  if (stream == nullptr || stream->priority == priority) return;
  stream->priority = priority;
  if (!stream->queued) return;
  ready_.erase_if([id](uint32_t other) { return other == id.value; });
  ready_.push(id.value, priority);
}

// What was sent at most is told the peer, who may wait for it.
void Streams::stop_sending(uint32_t id, Stream& stream, Errc code) {
  stream.out.abandon();
  note_kept(stream);
  if (stream.queued) {
    stream.queued = false;
    ready_.erase_if([id](uint32_t other) { return other == id; });
  }
  stream.code = code;
  stream.reset = Reset::kDue;
  signal(id, stream);
}

// --- frames of the peer ---

Streams::Verdict Streams::break_off(const char* why) noexcept {
  broken_ = why;
  return Verdict::kBroken;
}

Streams::Verdict Streams::on_frame(wire::FrameType type, std::span<const std::byte> payload) {
  if (type == wire::FrameType::kStream) {
    const auto piece = wire::decode_stream(payload);
    return piece ? on_bytes(*piece) : Verdict::kDropped;
  }
  if (type == wire::FrameType::kStreamCredit) {
    const auto credit = wire::decode_stream_credit(payload);
    return credit ? on_credit(*credit) : Verdict::kDropped;
  }
  const auto reset = wire::decode_stream_reset(payload);
  return reset ? on_reset(*reset) : Verdict::kDropped;
}

Streams::Stream* Streams::reach(uint32_t id) {
  if (is_ours(id)) {
    if (index_of(id) >= opened_) {
      break_off("a frame of a stream that was never opened");
      return nullptr;
    }
    return find(id);
  }
  if (index_of(id) >= peer_told_) {
    break_off("more streams than were allowed");
    return nullptr;
  }
  // As streams are opened in order, those before it are open too (RFC 9000 section 3.2).
  for (; peer_opened_ <= index_of(id); ++peer_opened_) {
    const uint32_t opened = 2 * peer_opened_ + (active_ ? 2 : 1);
    Stream& stream = add(opened);
    stream.opened_due = true;
    notice(opened, stream);
  }
  note_count();
  return find(id);
}

Streams::Verdict Streams::on_bytes(const wire::StreamPiece& piece) {
  broken_ = "";
  Stream* stream = reach(piece.stream);
  if (stream == nullptr) return *broken_ != 0 ? Verdict::kBroken : Verdict::kTaken;
  const uint64_t end = piece.offset + piece.bytes.size();
  if (end > stream->receive_limit) return break_off("more bytes of a stream than its credit");
  if (stream->final_bytes != kNever
          ? end > stream->final_bytes || (piece.end && end != stream->final_bytes)
          : piece.end && end < stream->in.highest()) {
    return break_off("bytes behind the end of a stream");
  }
  if (stream->gone) {
    stream->in.discard_to(end);
    note_read(piece.stream, *stream);
  } else if (!take_bytes(*stream, piece)) {
    return Verdict::kDropped;
  }
  if (piece.end) stream->final_bytes = end;
  note_arrived(piece.stream, *stream);
  settle(piece.stream, *stream);
  return Verdict::kTaken;
}

bool Streams::take_bytes(Stream& stream, const wire::StreamPiece& piece) {
  if (!borrows_) return stream.in.on_bytes(piece.offset, piece.bytes);
  if (!stream.in.on_lent_bytes(piece.offset, piece.bytes)) return false;
  if (stream.in.has_lent_bytes() && !std::exchange(stream.lent, true)) {
    lent_.push_back(piece.stream);
    events_.on_payload_lent(session_);
  }
  return true;
}

void Streams::keep() {
  for (const uint32_t id : lent_) {
    Stream* stream = find(id);
    if (stream == nullptr) continue;
    stream->lent = false;
    stream->in.keep();
  }
  lent_.clear();
}

Streams::Verdict Streams::on_credit(const wire::StreamCredit& credit) {
  broken_ = "";
  if (credit.stream == 0) {
    may_open_ = std::max(may_open_, credit.limit);
    available_due_ = available_due_ || (wants_open_ && opened_ < may_open_);
    return Verdict::kTaken;
  }
  Stream* stream = reach(credit.stream);
  if (stream == nullptr) return *broken_ != 0 ? Verdict::kBroken : Verdict::kTaken;
  stream->send_limit = std::max(stream->send_limit, credit.limit);
  queue(credit.stream, *stream);
  return Verdict::kTaken;
}

Streams::Verdict Streams::on_reset(const wire::StreamReset& reset) {
  broken_ = "";
  Stream* stream = reach(reset.stream);
  if (stream == nullptr) return *broken_ != 0 ? Verdict::kBroken : Verdict::kTaken;
  const uint64_t sent = reset.sent_bytes;
  if (sent > stream->receive_limit) return break_off("a stream's end beyond its credit");
  if (stream->final_bytes != kNever ? sent != stream->final_bytes : sent < stream->in.highest()) {
    return break_off("a reset contradicts what came of its stream");
  }
  stream->final_bytes = sent;
  // All that was read had come in order: a service that waits for more hears of the reset instead.
  stream->in.discard_to(sent);
  note_read(reset.stream, *stream);
  if (stream->reset == Reset::kNone && !stream->out.all_acknowledged()) {
    stop_sending(reset.stream, *stream, reset.code);
  }
  if (!stream->gone && !stream->closed_due) {
    stream->readable_due = stream->writable_due = false;
    stream->code = reset.code;
    stream->closed_due = true;
    notice(reset.stream, *stream);
  }
  settle(reset.stream, *stream);
  return Verdict::kTaken;
}

void Streams::note_arrived(uint32_t id, Stream& stream) {
  if (stream.gone || !stream.wants_bytes) return;
  if (stream.in.readable() == 0 && !stream.ended()) return;
  stream.wants_bytes = false;
  stream.readable_due = true;
  notice(id, stream);
}

// Bytes were taken out: its share of the shared window is free again, or promised anew.
void Streams::note_read(uint32_t id, Stream& stream) {
  const uint64_t promised = stream.receive_limit - stream.in.consumed();
  forget_extra(stream, promised - std::min<uint64_t>(promised, wire::kInitialStreamBytes));
  if (stream.gone || stream.final_bytes != kNever) return;
  const uint64_t left = config_.shared_window_bytes - extra_bytes_ + stream.extra_bytes;
  const uint64_t extra =
      std::min<uint64_t>(config_.window_bytes - wire::kInitialStreamBytes, left / 2);
  const uint64_t window = wire::kInitialStreamBytes + extra;
  if (promised > window / 2) return;
  stream.receive_limit = stream.in.consumed() + window;
  extra_bytes_ += extra - stream.extra_bytes;
  stream.extra_bytes = extra;
  stream.credit_due = true;
  signal(id, stream);
}

// A stream never has more than it had, but where it is promised more.
void Streams::forget_extra(Stream& stream, uint64_t extra_bytes) noexcept {
  const uint64_t kept = std::min(stream.extra_bytes, extra_bytes);
  extra_bytes_ -= stream.extra_bytes - kept;
  stream.extra_bytes = kept;
}

// --- sending ---

void Streams::signal(uint32_t id, Stream& stream) {
  if (std::exchange(stream.signalled, true)) return;
  signals_.push(id);
}

void Streams::notice(uint32_t id, Stream& stream) {
  if (std::exchange(stream.noticed, true)) return;
  noticed_.push(id);
}

uint64_t Streams::limit_of(const Stream& stream) noexcept {
  return stream.out.segments() < kMaxSegments ? stream.send_limit : 0;
}

void Streams::queue(uint32_t id, Stream& stream) {
  if (stream.queued || !stream.out.next(1, limit_of(stream))) return;
  stream.queued = true;
  ready_.push(id, stream.priority);
}

Streams::Frame Streams::build_signal(std::span<std::byte> body) {
  Frame frame{wire::FrameType::kStreamCredit, wire::kStreamHeaderBytes, 0, 0};
  if (std::exchange(count_due_, false)) {
    peer_told_ = peer_may_open_;
    wire::encode(wire::StreamCredit{0, peer_told_}, body.data());
    return frame;
  }
  frame.stream = signals_.front();
  signals_.pop();
  Stream& stream = *find(frame.stream);
  stream.signalled = stream.credit_due = false;
  if (stream.reset != Reset::kNone) {
    frame.type = wire::FrameType::kStreamReset;
    stream.reset = Reset::kSent;
    wire::encode(wire::StreamReset{frame.stream, stream.code, stream.out.sent_end()}, body.data());
  } else {
    wire::encode(wire::StreamCredit{frame.stream, stream.receive_limit}, body.data());
  }
  return frame;
}

uint32_t Streams::segment_bytes(uint32_t most) const noexcept {
  if (ready_.empty()) return 0;
  const Stream& stream = streams_.find(ready_.front())->second;
  const uint32_t room = most - static_cast<uint32_t>(wire::kStreamHeaderBytes);
  return static_cast<uint32_t>(wire::kStreamHeaderBytes) +
         stream.out.next(room, limit_of(stream))->bytes;
}

Streams::Frame Streams::build_segment(std::span<std::byte> body, uint32_t most) {
  const uint32_t id = ready_.front();
  ready_.pop();
  Stream& stream = *find(id);
  stream.queued = false;
  const uint32_t room = most - static_cast<uint32_t>(wire::kStreamHeaderBytes);
  full_segment_bytes_ = room;
  const StreamSender::Segment segment = *stream.out.next(room, limit_of(stream));
  wire::encode_stream(id, segment.end, segment.offset, body.data());
  const uint32_t crc = stream.out.read_crc32c(wire::crc32c(body.first(wire::kStreamHeaderBytes)),
                                              segment, body.data() + wire::kStreamHeaderBytes);
  stream.out.on_sent(segment);
  note_unsent(stream);
  note_room(id, stream);
  queue(id, stream);  // behind the others
  return {wire::FrameType::kStream,
          static_cast<uint32_t>(wire::kStreamHeaderBytes) + segment.bytes,
          id,
          segment.number,
          segment.end || lacks_room(stream),
          crc};
}

void Streams::on_acked(const Frame& frame) {
  Stream* stream = find(frame.stream);
  if (stream == nullptr) return;
  if (frame.type == wire::FrameType::kStreamReset) {
    stream->reset = Reset::kAcked;
  } else if (frame.type == wire::FrameType::kStream) {
    stream->out.on_acked(frame.segment);
    note_kept(*stream);
    note_room(frame.stream, *stream);
    queue(frame.stream, *stream);
  }
  settle(frame.stream, *stream);
}

// Less than a quarter is free.
bool Streams::lacks_room(const Stream& stream) const noexcept {
  return stream.out.kept_bytes() > send_limit_bytes(stream) / 4 * 3;
}

// One event for many segments and acknowledgements. Who wants room has bytes of his own that wait
// or are on the way, so his own are enough to wait for.
void Streams::note_room(uint32_t id, Stream& stream) {
  if (!stream.wants_room || stream.gone || lacks_room(stream)) return;
  if (unsent_room_bytes(stream) < config_.least_unsent_bytes / 2) return;
  stream.wants_room = false;
  stream.writable_due = true;
  notice(id, stream);
}

void Streams::on_lost(const Frame& frame) {
  if (frame.stream == 0) {
    count_due_ = true;
    return;
  }
  Stream* stream = find(frame.stream);
  if (stream == nullptr) return;
  if (frame.type == wire::FrameType::kStream) {
    stream->out.on_lost(frame.segment);
    queue(frame.stream, *stream);
  } else if (frame.type == wire::FrameType::kStreamReset) {
    if (stream->reset == Reset::kSent) stream->reset = Reset::kDue;
    if (stream->reset == Reset::kDue) signal(frame.stream, *stream);
  } else if (stream->final_bytes == kNever && stream->reset == Reset::kNone) {
    stream->credit_due = true;
    signal(frame.stream, *stream);
  }
}

// --- ending ---

void Streams::settle(uint32_t id, Stream& stream) {
  const bool sent =
      stream.reset == Reset::kNone ? stream.out.all_acknowledged() : stream.reset == Reset::kAcked;
  if (!sent || !stream.ended()) return;
  if (stream.gone) {
    erase(id, stream);
  } else if (!stream.closed_due) {
    stream.closed_due = true;
    notice(id, stream);
  }
}

void Streams::erase(uint32_t id, Stream& stream) {
  const auto is_it = [id](uint32_t other) { return other == id; };
  if (stream.signalled) signals_.erase_if(is_it);
  if (stream.queued) ready_.erase_if(is_it);
  if (stream.noticed) noticed_.erase_if(is_it);
  kept_extra_bytes_ -= stream.kept_extra_bytes;
  unsent_bytes_ -= stream.unsent_bytes;
  forget_extra(stream, 0);
  streams_.erase(id);
  if (is_ours(id)) {
    --open_ours_;
    available_due_ = available_due_ || (wants_open_ && opened_ < may_open_);
    return;
  }
  ++peer_may_open_;
  note_count();
}

// The peer hears of how many it may open not for each that ends, but before it has to wait.
void Streams::note_count() noexcept {
  count_due_ = count_due_ || (peer_may_open_ > peer_told_ &&
                              peer_told_ - peer_opened_ <= config_.max_streams / 2);
}

void Streams::tell() {
  if (std::exchange(available_due_, false)) {
    wants_open_ = false;
    events_.on_streams_available(session_);
  }
  while (!noticed_.empty()) {
    const uint32_t id = noticed_.front();
    noticed_.pop();
    // Each call may end the stream: it is looked up again.
    const auto due = [this, id](bool Stream::*flag) {
      Stream* stream = find(id);
      return stream != nullptr && !stream->gone && std::exchange(stream->*flag, false);
    };
    if (Stream* stream = find(id)) stream->noticed = false;
    if (due(&Stream::opened_due)) events_.on_stream_opened(session_, StreamId(id));
    if (due(&Stream::readable_due)) events_.on_stream_readable(session_, StreamId(id));
    if (due(&Stream::writable_due)) events_.on_stream_writable(session_, StreamId(id));
    if (!due(&Stream::closed_due)) continue;
    Stream* stream = find(id);
    stream->gone = true;
    const Errc code = stream->code;
    settle(id, *stream);
    events_.on_stream_closed(session_, StreamId(id), code);
  }
}

void Streams::close_all(Errc code) {
  const std::unordered_map<uint32_t, Stream> over = std::exchange(streams_, {});
  ready_ = {};
  signals_ = noticed_ = {};
  count_due_ = available_due_ = false;
  kept_extra_bytes_ = unsent_bytes_ = extra_bytes_ = 0;
  opened_ = kMostOpened;  // nothing opens any more
  for (const auto& [id, stream] : over) {
    if (stream.gone) continue;
    if (stream.opened_due) events_.on_stream_opened(session_, StreamId(id));
    // What was over before the session, and not told yet, ends as it was.
    events_.on_stream_closed(session_, StreamId(id), stream.closed_due ? stream.code : code);
  }
}

}  // namespace mercury
