// SocketRelay: its table of connections, and what it is told about them.
#include "shim/socket/relay/socket_relay.h"

#include <algorithm>
#include <utility>

namespace mercury {
namespace {

uint64_t key_of(SessionSlot session, StreamId stream) {
  return uint64_t{session.value} << 32 | stream.value;
}

}  // namespace

// --- the table -------------------------------------------------------------------------------

SocketRelay::Connection& SocketRelay::add(State state) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(places_.size()));
    places_.push_back(std::make_unique<Connection>());
    places_.back()->place = free_.back();
  }
  Connection& connection = *places_[free_.back()];
  free_.pop_back();
  connection.state = state;
  counters_.set(Gauge::kConnections, ++connections_);
  return connection;
}

SocketRelay::Ref SocketRelay::ref_of(const Connection& connection) const {
  return {connection.place, connection.life};
}

SocketRelay::Connection* SocketRelay::find(Ref ref) {
  Connection& connection = *places_[ref.place];
  return connection.life == ref.life ? &connection : nullptr;
}

SocketRelay::Connection* SocketRelay::find(SessionSlot session, StreamId stream) {
  const auto found = by_stream_.find(key_of(session, stream));
  return found == by_stream_.end() ? nullptr : places_[found->second].get();
}

SocketRelay::Connection* SocketRelay::find(sockets::ConnectionId id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : places_[found->second].get();
}

void SocketRelay::bind(Connection& connection, SessionSlot session, StreamId stream) {
  connection.session = session;
  connection.stream = stream;
  by_stream_[key_of(session, stream)] = connection.place;
}

void SocketRelay::unbind(Connection& connection) {
  if (connection.stream == StreamId{}) return;
  by_stream_.erase(key_of(connection.session, connection.stream));
  connection.stream = {};
}

void SocketRelay::uncount(Connection& connection) {
  if (!std::exchange(connection.counted, false)) return;
  const auto asked = asked_of_.find(connection.session);
  if (--asked->second == 0) asked_of_.erase(asked);
}

void SocketRelay::free(Connection& connection) {
  uncount(connection);
  unbind(connection);
  if (connection.id != 0) by_id_.erase(connection.id);
  if (connection.asked != 0) by_asked_.erase(connection.asked);
  const Ref last = ref_of(connection);
  connection = Connection();
  connection.place = last.place;
  connection.life = last.life + 1;
  free_.push_back(last.place);
  counters_.set(Gauge::kConnections, --connections_);
}

// --- what the control plane asks for ---------------------------------------------------------

void SocketRelay::run(command::OpenConnection& request) {
  const auto session = sessions_.find(request.token);
  if (session == sessions_.end()) {
    events_.emplace_back(event::ConnectionAnswered{request.id, sockets::Answer::kNobody});
    return;
  }
  Connection& connection = add(State::kWaiting);
  connection.id = request.id;
  by_id_[request.id] = connection.place;
  connection.token = request.token;
  connection.session = session->second;
  connection.preamble = request.preamble;
  connection.priority = request.preamble.priority;
  connection.end = std::move(request.end);
  ask(connection);
}

void SocketRelay::run(command::AnswerConnection& request) {
  const auto found = by_asked_.find(request.asked);
  if (found == by_asked_.end()) {  // its session has closed, which was reported
    if (request.answer == sockets::Answer::kAccepted) {
      events_.emplace_back(
          event::ConnectionEnded{request.id, 0, Errc::kPeerLost, std::move(request.end)});
    }
    return;
  }
  Connection& connection = *places_[found->second];
  by_asked_.erase(found);
  connection.asked = 0;
  if (request.answer != sockets::Answer::kAccepted) return refuse(connection, request.answer);
  connection.id = request.id;
  by_id_[request.id] = connection.place;
  connection.priority = request.priority;
  connection.end = std::move(request.end);
  host_->prioritise_stream(connection.session, connection.stream, connection.priority);
  const auto answer = static_cast<std::byte>(sockets::Answer::kAccepted);
  host_->write_stream(connection.session, connection.stream, {&answer, 1});
  start(connection);
}

void SocketRelay::run(const command::AbortConnection& request) {
  Connection* connection = find(request.id);
  if (connection == nullptr) return;
  if (connection->state == State::kWaiting) return answered(*connection, sockets::Answer::kNobody);
  reset(*connection, request.code);
}

void SocketRelay::run(const command::SetConnection& request) {
  Connection* connection = find(request.id);
  if (connection == nullptr) return;
  host_->prioritise_stream(connection->session, connection->stream, request.priority);
  connection->priority = request.priority;
  connection->abort_on_close = request.abort_on_close;
}

void SocketRelay::run(const command::DescribeConnection& request) {
  event::ConnectionDescribed described{request.id, request.number, false, {}};
  const Connection* connection = find(request.id);
  if (connection != nullptr) {
    if (const std::optional<SessionView> view = host_->view_session(connection->session)) {
      described.known = true;
      described.info = {view->smoothed_rtt_ns, view->least_rtt_ns, view->window_bytes,
                        view->in_flight_bytes, view->lost_packets, view->path_payload};
    }
  }
  events_.emplace_back(described);
}

// --- what the engine tells -------------------------------------------------------------------

void SocketRelay::on_stream_opened(SessionSlot session, StreamId stream) {
  uint32_t& asked = asked_of_[session];
  if (asked >= config_.most_asked) {  // to the program that asks it is as if nobody listened
    counters_.add(Counter::kConnectionsUnheard);
    return host_->reset_stream(session, stream, Errc::kLimit);
  }
  ++asked;
  Connection& connection = add(State::kAsked);
  connection.counted = true;
  const auto token = tokens_.find(session);
  if (token != tokens_.end()) connection.token = token->second;
  bind(connection, session, stream);
  await_peer(connection);
}

void SocketRelay::on_stream_readable(SessionSlot session, StreamId stream) {
  Connection* connection = find(session, stream);
  if (connection == nullptr) return;
  connection->stream_readable = true;
  switch (connection->state) {
    case State::kAsking:
      return read_answer(*connection);
    case State::kAsked:
      return read_preamble(*connection);
    case State::kLeaving:
      return read_away(*connection);
    case State::kOpen:
      return queue(*connection);
    case State::kFree:
    case State::kWaiting:
      return;
  }
}

void SocketRelay::on_stream_writable(SessionSlot session, StreamId stream) {
  Connection* connection = find(session, stream);
  if (connection == nullptr) return;
  connection->stream_writable = true;
  queue(*connection);
}

void SocketRelay::on_stream_closed(SessionSlot session, StreamId stream, Errc code) {
  Connection* connection = find(session, stream);
  if (connection == nullptr) return;
  unbind(*connection);
  switch (connection->state) {
    case State::kAsking:
      return answered(*connection, sockets::Answer::kNobody);
    case State::kOpen:
      return end(*connection, code);
    case State::kAsked:
      if (connection->asked != 0)
        return end(*connection, code == Errc::kOk ? Errc::kPeerLeft : code);
      return free(*connection);
    case State::kFree:
    case State::kWaiting:
    case State::kLeaving:
      return free(*connection);
  }
}

void SocketRelay::on_streams_available(SessionSlot session) {
  for (size_t left = waiting_.size(); left > 0; --left) {
    const Ref ref = waiting_.front();
    waiting_.pop_front();
    Connection* connection = find(ref);
    if (connection == nullptr || connection->state != State::kWaiting) continue;
    if (connection->session == session) {
      ask(*connection);
    } else {
      waiting_.push_back(ref);
    }
  }
}

// Its streams end one by one; those that wait for one have none.
void SocketRelay::forget(SessionSlot session) {
  if (const auto token = tokens_.extract(session)) sessions_.erase(token.mapped());
  for (const Ref ref : std::exchange(waiting_, {})) {
    Connection* connection = find(ref);
    if (connection == nullptr || connection->state != State::kWaiting) continue;
    if (connection->session == session) {
      answered(*connection, sockets::Answer::kNobody);
    } else {
      waiting_.push_back(ref);
    }
  }
}

}  // namespace mercury
