// The sockets' service inside an engine: carries bytes between programs' descriptors and streams,
// each way with a bounded amount under way. Models StreamService
// (transport/engine/stream_service.h).
//
// A program that does not read is sent no more than its descriptor takes, so its stream's credit
// runs out and the other program's writes block: no other connection waits for it.
//
// Descriptors are polled edge-triggered, once a pass; all connections with something to do take
// turns of about kTurnBytes outwards, and what is there inwards, as long as the pass has not
// carried kPassBytes.
//
// Owner/thread: the engine's. Connections allocate as they open.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shim/socket/command.h"
#include "shim/socket/relay/relay_connection.h"
#include "transport/base/counters.h"
#include "transport/base/fifo.h"
#include "transport/engine/stream_service.h"

namespace mercury {

struct RelayConfig {
  // Of each session. A fast path needs as much under way as its delay holds.
  StreamConfig streams = {.max_streams = 65536,
                          .window_bytes = 1 << 20,
                          .send_bytes = 1 << 20,
                          .shared_window_bytes = 32 << 20,
                          .shared_send_bytes = 32 << 20,
                          .unsent_bytes = 256 * 1024};
  // Connections of a session's peer that are not accepted: they wait for an answer, have not said
  // whom they ask for, or were refused and are not over. Each may have brought what a stream may.
  uint32_t most_asked = 4096;
  // For a peer to finish a connection that the program has closed, as long as Linux waits, or that
  // was refused; and to say what it has opened a stream for.
  uint64_t patience_ns = 60'000'000'000;
};

class SocketRelay : public NoDatagrams {
 public:
  using Command = SocketCommand;
  using Event = SocketEvent;
  // As many as the kernel takes as two batches of frames (UDP GSO), with their headers.
  static constexpr size_t kTurnBytes = 128'000;
  static constexpr size_t kPassBytes = 256 * 1024;

  SocketRelay(const RelayConfig& config, Counters& counters)
      : config_(config), counters_(counters) {}
  SocketRelay(const SocketRelay&) = delete;
  SocketRelay& operator=(const SocketRelay&) = delete;

  // Readable when a program has written, or has room again: wakes whoever sleeps. -1: there has
  // been no connection yet.
  int wake_fd() const { return poller_.get(); }
  size_t connection_count() const { return connections_; }
  // When bytes of programs were carried last; 0: never.
  uint64_t carried_ns() const { return carried_ns_; }

  // --- StreamService ---
  StreamConfig stream_config() const { return config_.streams; }
  void attach(StreamHost& host) { host_ = &host; }
  void on_session_open(SessionSlot session, Token token) {
    sessions_[token] = session;
    tokens_[session] = token;
  }
  void on_stream_opened(SessionSlot session, StreamId stream);
  void on_stream_readable(SessionSlot session, StreamId stream);
  void on_stream_writable(SessionSlot session, StreamId stream);
  void on_stream_closed(SessionSlot session, StreamId stream, Errc code);
  void on_streams_available(SessionSlot session);

  // --- Service ---
  uint32_t poll(uint64_t now_ns) noexcept {
    now_ns_ = now_ns;
    return connections_ == 0 ? 0 : run();
  }
  uint64_t next_deadline_ns() const noexcept {
    if (connections_ == 0) return kNever;
    if (!line_.empty()) return 0;
    return awaited_.empty() ? kNever : awaited_.front().due_ns;
  }
  void forget(SessionSlot session);
  std::optional<Event> take_event() {
    if (events_.empty()) return std::nullopt;
    std::optional<Event> first(std::move(events_.front()));
    events_.pop_front();
    return first;
  }
  template <class OneCommand>
  void on_command(OneCommand& command, SessionHost&) {
    run(command);
  }

 private:
  using Connection = RelayConnection;
  using State = Connection::State;
  struct Ref {  // a connection, or one that was at its place before
    uint32_t place = 0;
    uint32_t life = 0;
  };
  struct Awaited {
    Ref ref;
    uint64_t due_ns = 0;
    bool to_finish = false;  // else: to say what it has opened a stream for
  };

  void run(command::OpenConnection& request);
  void run(command::AnswerConnection& request);
  void run(const command::AbortConnection& request);
  void run(const command::SetConnection& request);
  void run(const command::DescribeConnection& request);

  Connection& add(State state);
  Ref ref_of(const Connection& connection) const;
  Connection* find(Ref ref);
  Connection* find(SessionSlot session, StreamId stream);
  Connection* find(sockets::ConnectionId id);
  void bind(Connection& connection, SessionSlot session, StreamId stream);
  void unbind(Connection& connection);
  void free(Connection& connection);
  void uncount(Connection& connection);

  // socket_relay_open.cc
  void ask(Connection& connection);
  void read_answer(Connection& connection);
  void read_preamble(Connection& connection);
  void refuse(Connection& connection, sockets::Answer answer);
  void read_away(Connection& connection);
  void answered(Connection& connection, sockets::Answer answer);
  void leave(Connection& connection);
  void start(Connection& connection);
  bool watch(Connection& connection);

  // socket_relay_carry.cc
  uint32_t run();
  void take_edges();
  void on_edges(const epoll_event& event);
  void queue(Connection& connection);
  size_t carry(Connection& connection);
  size_t carry_out(Connection& connection);  // to the stream
  size_t carry_in(Connection& connection);   // to the program
  void tell_end(Connection& connection);
  void reset(Connection& connection, Errc code);
  void end(Connection& connection, Errc code);
  void orphan(Connection& connection);
  void await_peer(const Connection& connection);
  bool is_awaited(const Awaited& awaited);
  void lose_patience();

  const RelayConfig config_;
  Counters& counters_;
  UniqueFd poller_;  // made for the first connection
  StreamHost* host_ = nullptr;
  size_t connections_ = 0;
  std::vector<std::unique_ptr<Connection>> places_;
  std::vector<uint32_t> free_;
  std::unordered_map<Token, SessionSlot> sessions_;
  std::unordered_map<SessionSlot, Token> tokens_;
  std::unordered_map<uint64_t, uint32_t> by_stream_;  // session and stream, to a place
  std::unordered_map<sockets::ConnectionId, uint32_t> by_id_;
  std::unordered_map<uint64_t, uint32_t> by_asked_;
  std::deque<Ref> waiting_;      // for streams
  Fifo<Ref> line_;               // with something to do
  std::deque<Awaited> awaited_;  // their peers are, or were; by time
  std::deque<Event> events_;
  std::unordered_map<SessionSlot, uint32_t> asked_of_;  // how many are `counted`
  uint64_t last_asked_ = 0;
  uint64_t now_ns_ = 0;
  uint64_t carried_ns_ = 0;
};

}  // namespace mercury
