// SocketRelay: bytes between programs and streams, and how a connection ends.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "shim/socket/relay/socket_relay.h"

namespace mercury {
namespace {

constexpr int kMostEdges = 64;  // that a pass looks at
// Of a stream's memory: kTurnBytes at least, wherever in a block they begin.
constexpr size_t kTurnParts =
    (SocketRelay::kTurnBytes + kStreamBlockBytes - 2) / kStreamBlockBytes + 1;

// To a program: what is kept, and behind it what a pass has received, which is copied if it does
// not go now. A backlog of one pass's bytes must not stand in its way.
constexpr size_t kInwardParts = SocketRelay::kPassBytes / kStreamBlockBytes + 1 + 32;

size_t room_of(const msghdr& message) {
  size_t bytes = 0;
  for (size_t i = 0; i < message.msg_iovlen; ++i) bytes += message.msg_iov[i].iov_len;
  return bytes;
}

// Whether a read that gave so many bytes gave all, so that more are told by an edge. It also stops
// at descriptors that the program has sent along, which are lost.
bool is_empty(const msghdr& message, size_t bytes) {
  return bytes > 0 && bytes < room_of(message) && (message.msg_flags & MSG_CTRUNC) == 0;
}

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
  if (carried > 0) carried_ns_ = now_ns_;
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
  if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) connection->end_follows = true;
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
  if (connection.state != State::kOpen) return 0;
  const Ref ref = ref_of(connection);
  size_t carried = carry_out(connection);
  if (find(ref) == nullptr) return carried;
  if (connection.program_gone && connection.program_ended && !connection.orphaned) {
    orphan(connection);
    if (find(ref) == nullptr) return carried;
  }
  carried += carry_in(connection);
  if (find(ref) == nullptr) return carried;
  const bool out =
      connection.program_readable && !connection.program_ended && connection.stream_writable;
  const bool in = connection.program_writable && connection.stream_readable;
  if (out || in) queue(connection);
  return carried;
}

// The kernel copies from the program's socket into the stream's memory, and back.
size_t SocketRelay::carry_out(Connection& connection) {
  if (!connection.program_readable || !connection.stream_writable || connection.program_ended) {
    return 0;
  }
  std::array<iovec, kTurnParts> parts;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = host_->stream_room(connection.session, connection.stream, kTurnBytes, parts);
  connection.stream_writable = message.msg_iovlen > 0;
  if (!connection.stream_writable) return 0;
  const ssize_t got = recvmsg(connection.end.get(), &message, MSG_DONTWAIT);
  const int error = errno;
  const size_t bytes = got > 0 ? static_cast<size_t>(got) : 0;
  if (is_empty(message, bytes) && !connection.end_follows) connection.program_readable = false;
  host_->wrote_stream(connection.session, connection.stream, bytes);
  counters_.add(Counter::kSocketBytesSent, bytes);
  if (got == 0) {
    connection.program_ended = true;
    host_->finish_stream(connection.session, connection.stream);
  } else if (got < 0 && error == EAGAIN) {
    connection.program_readable = false;
  } else if (got < 0 && error != EINTR) {  // it closed with bytes unread: the kernel would send RST
    reset(connection, Errc::kPeerLeft);
  }
  return bytes;
}

size_t SocketRelay::carry_in(Connection& connection) {
  if (!connection.program_writable || !connection.stream_readable) return 0;
  std::array<iovec, kInwardParts> parts;
  const Streams::Peeked peeked = host_->peek_stream(connection.session, connection.stream, parts);
  connection.stream_readable = peeked.parts > 0;
  if (!connection.stream_readable) {
    if (peeked.end) tell_end(connection);
    return 0;
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = peeked.parts;
  const ssize_t sent = sendmsg(connection.end.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {  // it has closed
    reset(connection, Errc::kPeerLeft);
    return 0;
  }
  const size_t bytes = sent > 0 ? static_cast<size_t>(sent) : 0;
  connection.program_writable = bytes == room_of(message);
  host_->took_stream(connection.session, connection.stream, bytes);
  counters_.add(Counter::kSocketBytesReceived, bytes);
  return bytes;
}

void SocketRelay::tell_end(Connection& connection) {
  if (std::exchange(connection.end_told, true)) return;
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
  awaited_.push_back({ref_of(connection), now_ns_ + config_.patience_ns, connection.orphaned});
}

bool SocketRelay::is_awaited(const Awaited& awaited) {
  const Connection* connection = find(awaited.ref);
  if (connection == nullptr) return false;
  return awaited.to_finish || connection->state == State::kLeaving ||
         (connection->state == State::kAsked && connection->asked == 0);
}

// Those that nobody waits for any more are dropped before they are due, or each connection that was
// ever made would wake the engine once.
void SocketRelay::lose_patience() {
  while (!awaited_.empty()) {
    const Awaited first = awaited_.front();
    const bool awaited = is_awaited(first);
    if (awaited && first.due_ns > now_ns_) return;
    awaited_.pop_front();
    if (awaited) reset(*find(first.ref), Errc::kTimedOut);
  }
}

}  // namespace mercury
