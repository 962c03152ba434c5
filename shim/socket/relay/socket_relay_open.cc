// SocketRelay: how a connection begins.
#include <array>
#include <span>

#include "shim/socket/relay/socket_relay.h"

namespace mercury {

// --- ours --------------------------------------------------------------------------------------

void SocketRelay::ask(Connection& connection) {
  const Result<StreamId> stream = host_->open_stream(connection.session);
  if (!stream) {
    if (stream.error().code == Errc::kAgain) return waiting_.push_back(ref_of(connection));
    return answered(connection, sockets::Answer::kNobody);
  }
  bind(connection, connection.session, *stream);
  connection.state = State::kAsking;
  host_->prioritise_stream(connection.session, connection.stream, connection.priority);
  // A new stream has room for it.
  host_->write_stream(connection.session, connection.stream, sockets::encode(connection.preamble));
}

void SocketRelay::read_answer(Connection& connection) {
  std::byte byte{};
  const StreamRead got = host_->read_stream(connection.session, connection.stream, {&byte, 1});
  if (got.bytes == 0) {  // its end, or nothing yet
    if (got.end) reset(connection, Errc::kProtocol);
    return;
  }
  const std::optional<sockets::Answer> answer = sockets::decode_answer(byte);
  if (!answer) return reset(connection, Errc::kProtocol);
  events_.emplace_back(event::ConnectionAnswered{connection.id, *answer});
  if (*answer == sockets::Answer::kAccepted) return start(connection);
  leave(connection);
}

// Of a connection that never was: the program's end is the control plane's still.
void SocketRelay::answered(Connection& connection, sockets::Answer answer) {
  events_.emplace_back(event::ConnectionAnswered{connection.id, answer});
  free(connection);
}

// --- the peer's --------------------------------------------------------------------------------

void SocketRelay::read_preamble(Connection& connection) {
  if (connection.asked != 0) return;  // what follows is the programs'
  const std::span<std::byte> rest =
      std::span(connection.preamble_bytes).subspan(connection.preamble_read);
  const StreamRead got = host_->read_stream(connection.session, connection.stream, rest);
  connection.preamble_read = static_cast<uint8_t>(connection.preamble_read + got.bytes);
  if (got.bytes < rest.size()) {
    if (got.end) reset(connection, Errc::kProtocol);
    return;
  }
  const auto preamble = sockets::decode_preamble(std::span(connection.preamble_bytes));
  if (!preamble) return reset(connection, Errc::kProtocol);
  connection.preamble = *preamble;
  connection.asked = ++last_asked_;
  by_asked_[connection.asked] = connection.place;
  events_.emplace_back(event::ConnectionAsked{connection.token, connection.asked, *preamble});
}

void SocketRelay::refuse(Connection& connection, sockets::Answer answer) {
  const auto byte = static_cast<std::byte>(answer);
  host_->write_stream(connection.session, connection.stream, {&byte, 1});
  leave(connection);
}

// --- both --------------------------------------------------------------------------------------

void SocketRelay::leave(Connection& connection) {
  if (connection.id != 0) by_id_.erase(connection.id);
  connection.id = 0;
  connection.end.reset();
  connection.state = State::kLeaving;
  host_->finish_stream(connection.session, connection.stream);
  await_peer(connection);
  read_away(connection);
}

void SocketRelay::read_away(Connection& connection) {
  std::array<std::byte, 4096> unwanted;
  while (host_->read_stream(connection.session, connection.stream, unwanted).bytes ==
         unwanted.size()) {
  }
}

// From now on bytes are the programs'.
void SocketRelay::start(Connection& connection) {
  uncount(connection);
  connection.state = State::kOpen;
  connection.program_readable = connection.program_writable = true;
  connection.stream_readable = connection.stream_writable = true;
  if (!watch(connection)) return reset(connection, Errc::kSystem);
  queue(connection);
}

bool SocketRelay::watch(Connection& connection) {
  if (!poller_) poller_.reset(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = uint64_t{connection.life} << 32 | connection.place;
  return epoll_ctl(poller_.get(), EPOLL_CTL_ADD, connection.end.get(), &event) == 0;
}

}  // namespace mercury
