// SocketRelay: bytes between programs and streams, and how a connection ends.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "shim/socket/relay/socket_relay.h"

namespace mercury {
namespace {

constexpr int kMostEdges = 64;  // that a pass looks at

}  // namespace

uint32_t SocketRelay::run() {
  if (poller_) take_edges();
  lose_patience();
  uint32_t turns = 0;
  size_t carried = 0;
  for (size_t left = line_.size(); left > 0 && carried < kPassBytes; --left, ++turns) {
    const Ref ref = line_.front();
    line_.pop();
    Connection* connection = find(ref);
    if (connection == nullptr) continue;
    connection->queued = false;
    carried += carry(*connection);
  }
  return turns;
}

void SocketRelay::take_edges() {
  std::array<epoll_event, kMostEdges> edges{};
  const int count = epoll_wait(poller_.get(), edges.data(), kMostEdges, 0);
  for (int i = 0; i < count; ++i) on_edges(edges[static_cast<size_t>(i)]);
}

void SocketRelay::on_edges(const epoll_event& event) {
  const Ref ref{static_cast<uint32_t>(event.data.u64), static_cast<uint32_t>(event.data.u64 >> 32)};
  Connection* connection = find(ref);
  if (connection == nullptr) return;
  if ((event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    connection->program_readable = true;
  }
  if ((event.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) connection->program_writable = true;
  // It has closed its end, or both directions of it.
  if ((event.events & EPOLLHUP) != 0 && !connection->end_told) connection->program_gone = true;
  queue(*connection);
}

void SocketRelay::queue(Connection& connection) {
  if (connection.queued) return;
  connection.queued = true;
  line_.push(ref_of(connection));
}

// --- a turn ------------------------------------------------------------------------------------

size_t SocketRelay::carry(Connection& connection) {
  const Ref ref = ref_of(connection);
  size_t carried = 0;
  if (connection.state == State::kOpen) carried += carry_out(connection);
  if (find(ref) == nullptr) return carried;
  if (connection.program_gone && connection.program_ended && !connection.orphaned) {
    orphan(connection);
  }
  if (find(ref) == nullptr) return carried;
  carried += carry_in(connection);
  if (find(ref) == nullptr) return carried;
  const bool out = connection.state == State::kOpen && connection.program_readable &&
                   !connection.program_ended && connection.stream_writable;
  const bool in =
      connection.program_writable && (connection.stream_readable || !connection.to_program.empty());
  if (out || in) queue(connection);
  return carried;
}

size_t SocketRelay::carry_out(Connection& connection) {
  if (!connection.stream_writable || connection.program_ended) return 0;
  size_t carried = connection.to_stream.bytes().size();
  if (carried > 0) {
    const size_t taken =
        host_->write_stream(connection.session, connection.stream, connection.to_stream.bytes());
    connection.stream_writable = taken == carried;
    connection.to_stream.taken(taken);
    counters_.add(Counter::kSocketBytesSent, taken);
    if (!connection.stream_writable) return taken;
  }
  if (!connection.program_readable) return carried;
  const ssize_t got = recv(connection.end.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
  if (got > 0) {
    const std::span<const std::byte> bytes(scratch_.data(), static_cast<size_t>(got));
    const size_t taken = host_->write_stream(connection.session, connection.stream, bytes);
    counters_.add(Counter::kSocketBytesSent, taken);
    connection.stream_writable = taken == bytes.size();
    if (!connection.stream_writable) connection.to_stream.keep(bytes.subspan(taken));
    return carried + bytes.size();
  }
  if (got == 0) {
    connection.program_ended = true;
    host_->finish_stream(connection.session, connection.stream);
  } else if (errno == EAGAIN) {
    connection.program_readable = false;
  } else if (errno != EINTR) {  // it closed with bytes unread: the kernel would send RST
    reset(connection, Errc::kPeerLeft);
  }
  return carried;
}

size_t SocketRelay::carry_in(Connection& connection) {
  size_t carried = 0;
  if (!connection.to_program.empty()) {
    const auto given = give(connection, connection.to_program.bytes());
    if (!given) return 0;
    connection.to_program.taken(*given);
    carried = *given;
  }
  if (connection.to_program.empty() && connection.state == State::kDraining) {
    end(connection, Errc::kOk);
    return carried;
  }
  if (!connection.to_program.empty() || !connection.stream_readable) return carried;
  const StreamRead got = host_->read_stream(connection.session, connection.stream, scratch_);
  connection.stream_readable = got.bytes == scratch_.size();
  if (got.bytes > 0) {
    const std::span<const std::byte> bytes(scratch_.data(), got.bytes);
    const auto given = give(connection, bytes);
    if (!given) return carried;
    if (*given < bytes.size()) connection.to_program.keep(bytes.subspan(*given));
    carried += bytes.size();
  }
  connection.peer_ended = connection.peer_ended || got.end;
  tell_end(connection);
  return carried;
}

// How many bytes the program's end takes. Nothing: the program has closed it, and with it the
// connection.
std::optional<size_t> SocketRelay::give(Connection& connection, std::span<const std::byte> bytes) {
  if (!connection.program_writable) return 0;
  const ssize_t sent =
      send(connection.end.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    reset(connection, Errc::kPeerLeft);
    return std::nullopt;
  }
  const size_t taken = sent < 0 ? 0 : static_cast<size_t>(sent);
  connection.program_writable = taken == bytes.size();
  counters_.add(Counter::kSocketBytesReceived, taken);
  return taken;
}

void SocketRelay::tell_end(Connection& connection) {
  if (!connection.peer_ended || connection.end_told || !connection.to_program.empty()) return;
  connection.end_told = true;
  shutdown(connection.end.get(), SHUT_WR);
}

// --- ends --------------------------------------------------------------------------------------

void SocketRelay::reset(Connection& connection, Errc code) {
  if (connection.stream != StreamId{}) {
    host_->reset_stream(connection.session, connection.stream, code);
  }
  if (connection.state == State::kAsking) return answered(connection, sockets::Answer::kNobody);
  if (connection.id == 0 && connection.asked == 0) return free(connection);
  end(connection, code);
}

void SocketRelay::end(Connection& connection, Errc code) {
  events_.emplace_back(
      event::ConnectionEnded{connection.id, connection.asked, code, std::move(connection.end)});
  free(connection);
}

// The program has closed its end, having read all that had come.
void SocketRelay::orphan(Connection& connection) {
  connection.orphaned = true;
  if (connection.abort_on_close) return reset(connection, Errc::kPeerLeft);
  await_peer(connection);
}

void SocketRelay::await_peer(const Connection& connection) {
  awaited_.push_back({ref_of(connection), now_ns_ + config_.patience_ns});
}

void SocketRelay::lose_patience() {
  while (!awaited_.empty() && awaited_.front().due_ns <= now_ns_) {
    Connection* connection = find(awaited_.front().ref);
    awaited_.pop_front();
    if (connection == nullptr) continue;
    const bool silent = connection->state == State::kAsked && connection->asked == 0;
    if (silent || connection->orphaned) reset(*connection, Errc::kTimedOut);
  }
}

}  // namespace mercury
