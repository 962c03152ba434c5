// The second service: byte streams that come back. Who is asked to (StartEcho) opens streams on a
// session, writes a pattern, finishes, and checks what it reads; who has a stream opened to it
// writes back what it reads, and finishes when the other side has.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "transport/engine/stream_service.h"

namespace mercury::echo {

struct StartEcho {
  Token token;
  uint32_t streams = 0;
  uint64_t bytes = 0;  // each way, of each stream
};
struct EchoDone {  // of all streams of one StartEcho
  Token token;
  uint32_t intact = 0;  // streams whose bytes all came back, and their end
};

inline std::byte pattern(StreamId stream, uint64_t offset) {
  return static_cast<std::byte>((stream.value * 131 + offset * 7 + (offset >> 8) * 3) & 0xff);
}

class EchoService : public NoDatagrams {
 public:
  using Command = SessionCommandsAnd<StartEcho>;
  using Event = SessionEventsAnd<EchoDone>;
  using Key = std::pair<SessionSlot, StreamId>;

  // One that this side opened, or the other did.
  struct EchoStream {
    bool ours = false;
    Token token;
    uint64_t wanted = 0;  // ours: bytes to write
    uint64_t written = 0;
    uint64_t read = 0;
    bool intact = true;
    bool reads = true;     // a slow reader: what has come stays where it is
    bool echoes = true;    // not ours: else what is read is forgotten
    bool finishes = true;  // says that it has written all
    bool finished = false;
    bool ended = false;                // the peer has
    std::vector<std::byte> unwritten;  // an echo's: read, and without room
    std::optional<Errc> closed;
  };

  StreamConfig config;
  StreamHost* host = nullptr;
  std::map<Key, EchoStream> streams;
  std::map<Token, SessionSlot> sessions;       // by token
  std::function<void(EchoStream&)> on_opened;  // by the peer: before anything is read
  uint32_t available = 0;                      // how often streams were said to be available
  uint32_t forgotten = 0;
  uint32_t ended_after_session = 0;  // told of a stream whose session was forgotten already

  // Carried out in the engine's next pass.
  void post(std::function<void()> what) { posted_.push_back(std::move(what)); }

  EchoStream& open(Token token, uint64_t bytes, bool finishes = true) {
    const SessionSlot session = sessions.at(token);
    const Result<StreamId> id = host->open_stream(session);
    if (!id) {
      refused.push_back(id.error().code);
      static EchoStream none;
      return none = EchoStream();
    }
    EchoStream& stream = streams[{session, *id}];
    stream.ours = true;
    stream.token = token;
    stream.wanted = bytes;
    stream.finishes = finishes;
    pump({session, *id}, stream);
    return stream;
  }
  std::vector<Errc> refused;  // by open_stream
  void pump(Key key) { pump(key, streams.at(key)); }

  // --- StreamService ---
  StreamConfig stream_config() const { return config; }
  void attach(StreamHost& engine) { host = &engine; }
  void on_session_open(SessionSlot session, Token token) { sessions[token] = session; }
  void on_stream_opened(SessionSlot session, StreamId id) {
    EchoStream& stream = streams[{session, id}];
    stream = EchoStream();
    if (on_opened) on_opened(stream);
  }
  void on_stream_readable(SessionSlot session, StreamId id) { pump({session, id}); }
  void on_stream_writable(SessionSlot session, StreamId id) { pump({session, id}); }
  void on_stream_closed(SessionSlot session, StreamId id, Errc code) {
    EchoStream& stream = streams.at({session, id});
    if (stream.closed) ++closed_twice;
    stream.closed = code;
    if (stream.ours) report_done(stream.token);
  }
  uint32_t closed_twice = 0;
  void on_streams_available(SessionSlot) {
    ++available;
    open_more();
  }

  // --- Service ---
  void on_command(const StartEcho& start, SessionHost&) {
    unopened_.push_back(start);
    open_more();
  }
  uint64_t next_deadline_ns() noexcept { return posted_.empty() ? kNever : 0; }
  uint32_t poll(uint64_t) noexcept {
    uint32_t count = 0;
    for (; !posted_.empty(); ++count) {
      const std::function<void()> what = std::move(posted_.front());
      posted_.pop_front();
      what();
    }
    return count;
  }
  void forget(SessionSlot session) {
    ++forgotten;
    for (const auto& [key, stream] : streams) {
      if (key.first == session && !stream.closed) ++ended_after_session;
    }
  }
  std::optional<Event> take_event() {
    if (done_.empty()) return std::nullopt;
    const EchoDone first = done_.front();
    done_.pop_front();
    return first;
  }

 private:
  void pump(Key key, EchoStream& stream) {
    if (stream.closed) return;
    if (stream.reads) read(key, stream);
    stream.ours ? write_pattern(key, stream) : write_back(key, stream);
  }
  void read(Key key, EchoStream& stream) {
    std::byte buffer[3000];
    // An echo reads no more while it cannot write: so its peer's credit runs out.
    while (stream.unwritten.empty() && !stream.ended) {
      const StreamRead got = host->read_stream(key.first, key.second, buffer);
      stream.ended = got.end;
      const std::span<const std::byte> bytes(buffer, got.bytes);
      if (stream.ours) {
        for (const std::byte byte : bytes) {
          stream.intact = stream.intact && byte == pattern(key.second, stream.read++);
        }
      } else if (!stream.echoes) {
        stream.read += got.bytes;
      } else {
        stream.read += got.bytes;
        const size_t taken = host->write_stream(key.first, key.second, bytes);
        stream.written += taken;
        stream.unwritten.assign(bytes.begin() + static_cast<std::ptrdiff_t>(taken), bytes.end());
      }
      if (got.bytes < sizeof buffer) break;
    }
  }
  void write_pattern(Key key, EchoStream& stream) {
    std::byte buffer[5000];
    while (stream.written < stream.wanted) {
      const size_t bytes =
          static_cast<size_t>(std::min<uint64_t>(sizeof buffer, stream.wanted - stream.written));
      for (size_t i = 0; i < bytes; ++i) buffer[i] = pattern(key.second, stream.written + i);
      const size_t taken = host->write_stream(key.first, key.second, {buffer, bytes});
      stream.written += taken;
      if (taken < bytes) return;
    }
    finish(key, stream);
  }
  void write_back(Key key, EchoStream& stream) {
    while (!stream.unwritten.empty()) {
      const size_t taken = host->write_stream(key.first, key.second, stream.unwritten);
      stream.written += taken;
      stream.unwritten.erase(stream.unwritten.begin(),
                             stream.unwritten.begin() + static_cast<std::ptrdiff_t>(taken));
      if (!stream.unwritten.empty()) return;
      if (stream.reads) read(key, stream);  // what waited
    }
    if (stream.ended) finish(key, stream);
  }
  void finish(Key key, EchoStream& stream) {
    if (!stream.finishes || std::exchange(stream.finished, true)) return;
    host->finish_stream(key.first, key.second);
  }
  // As many as the session allows; the rest when others have ended.
  void open_more() {
    for (; !unopened_.empty(); unopened_.pop_front()) {
      StartEcho& next = unopened_.front();
      for (; next.streams > 0; --next.streams) {
        const size_t before = refused.size();
        open(next.token, next.bytes);
        if (refused.size() > before) return;
      }
    }
  }
  void report_done(Token token) {
    for (const StartEcho& start : unopened_) {
      if (start.token == token) return;
    }
    EchoDone done{token, 0};
    for (const auto& [key, stream] : streams) {
      if (!stream.ours || stream.token != token) continue;
      if (!stream.closed) return;
      done.intact += *stream.closed == Errc::kOk && stream.intact && stream.read == stream.wanted &&
                     stream.ended;
    }
    done_.push_back(done);
  }

  std::deque<std::function<void()>> posted_;
  std::deque<EchoDone> done_;
  std::deque<StartEcho> unopened_;
};
static_assert(StreamService<EchoService>);

}  // namespace mercury::echo
