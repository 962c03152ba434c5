// What a service of byte streams is told by its engine and may ask of it, beyond what every service
// is (service.h). Sessions carry streams where both sides' HELLOs have wire::kFeatureStreams
// (flow/stream/streams.h); an engine whose service is no StreamService never does.
//
// Owner/thread: the engine's. Streams allocate as they open and as their windows grow, so this is
// no part of the datapath of datagrams. Calls that name a stream which is over, or a session that
// has closed, take and give nothing: the service has been told, or will be in this pass.
#pragma once

#include <concepts>
#include <optional>
#include <span>
#include <string_view>

#include "transport/engine/service.h"
#include "transport/flow/stream/streams.h"

namespace mercury {

// What a session has measured of its path, and has under way.
struct SessionView {
  uint64_t smoothed_rtt_ns = 0;
  uint64_t least_rtt_ns = 0;
  uint64_t window_bytes = 0;
  uint64_t in_flight_bytes = 0;
  uint64_t lost_packets = 0;
  uint16_t path_payload = 0;
};

// At any time from within Engine::poll_once, but not from block() and unblock().
class StreamHost : public SessionHost {
 public:
  // Errors: kAgain, kLimit (Streams::open), kUnsupported (the session carries none), kClosed.
  virtual Result<StreamId> open_stream(SessionSlot session) = 0;
  // How many bytes were taken; if not all, on_stream_writable says when there is room again.
  virtual size_t write_stream(SessionSlot session, StreamId stream,
                              std::span<const std::byte> bytes) = 0;
  // What has come in order. As long as nobody reads, the peer sends no more than the stream's
  // credit. Read until there is less than was asked for: then on_stream_readable says when to go
  // on.
  virtual StreamRead read_stream(SessionSlot session, StreamId stream,
                                 std::span<std::byte> out) = 0;
  // Both without a copy (Streams::room and peek).
  virtual size_t stream_room(SessionSlot session, StreamId stream, size_t most,
                             std::span<iovec> parts) = 0;
  virtual void wrote_stream(SessionSlot session, StreamId stream, size_t bytes) = 0;
  virtual Streams::Peeked peek_stream(SessionSlot session, StreamId stream,
                                      std::span<iovec> parts) = 0;
  virtual void took_stream(SessionSlot session, StreamId stream, size_t bytes) = 0;
  virtual void finish_stream(SessionSlot session, StreamId stream) = 0;  // nothing more is written
  virtual void reset_stream(SessionSlot session, StreamId stream, Errc code) = 0;
  // Below kStreamPriorities: of all sessions' streams of this engine those of the highest go first.
  virtual void prioritise_stream(SessionSlot session, StreamId stream, uint8_t priority) = 0;
  // Memory that the session's streams hold for bytes.
  virtual size_t stream_bytes(SessionSlot session) = 0;
  // Nothing: it is not open.
  virtual std::optional<SessionView> view_session(SessionSlot session) = 0;
  // CLOSE is sent, and all streams of the session end with `code`.
  virtual void close_session(SessionSlot session, Errc code, std::string_view text) = 0;

 protected:
  ~StreamHost() = default;
};

// The part of Service that a service of streams alone has no use for: of datagrams it has none.
class NoDatagrams {
 public:
  Taken on_datagram(SessionSlot, const wire::Header&, std::span<const std::byte>,
                    uint64_t) noexcept {
    return Taken::kNo;
  }
  bool next(OutgoingDatagram&) noexcept { return false; }
  bool wants_to_send() const noexcept { return false; }
  void charge(JobSlot, uint32_t) noexcept {}
  void on_acked(SessionSlot, const SentTag&) noexcept {}
  void on_lost(SessionSlot, const SentTag&) noexcept {}
  void block(SessionSlot) noexcept {}
  void unblock(SessionSlot) noexcept {}
  bool awaits_nic() noexcept { return false; }

 protected:
  ~NoDatagrams() = default;
};

// clang-format off
// (Version 14 does not know concepts.)
template <class S>
concept StreamService = Service<S> && requires(S service, SessionSlot session, Token token,
                                               StreamId stream, Errc code, StreamHost& host) {
  // How much the streams of a session may hold. Asked as it opens.
  { service.stream_config() } -> std::same_as<StreamConfig>;
  // Before the first call. The host lives as long as the engine.
  { service.attach(host) };
  // A session that carries streams has opened: Connect's or Accept's token. forget() ends it.
  { service.on_session_open(session, token) };
  // StreamEvents' of flow/stream/stream_events.h.
  { service.on_stream_opened(session, stream) };
  { service.on_stream_readable(session, stream) };
  { service.on_stream_writable(session, stream) };
  { service.on_stream_closed(session, stream, code) };
  { service.on_streams_available(session) };
};
// clang-format on

}  // namespace mercury
