// Connections within this host, and how the listener of any connection is told and whoever accepts
// it gets it.
#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "shim/channel/seqpacket.h"
#include "shim/socket/control/addresses.h"
#include "shim/socket/control/manager_state.h"

namespace mercury {

using sockets::Asker;
using sockets::Connection;
using sockets::ConnectionId;
using sockets::Listener;
using sockets::ReplyKind;
using sockets::Request;

namespace {

// Of what is written and not read, each way. With a fifth of it, which the kernel gives by itself,
// a program and the engine wait for each other so often that bulk is slower by a sixth.
constexpr int kPairBytes = 512 * 1024;  // the kernel doubles it, for its own

int room_of(int end) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  return getsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0 ? bytes : 0;
}

// What a socket gets that asks for as much without CAP_NET_ADMIN: it may be less than it had.
int room_without_privilege() {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe) return 0;
  setsockopt(probe.get(), SOL_SOCKET, SO_SNDBUF, &kPairBytes, sizeof kPairBytes);
  return room_of(probe.get());
}

}  // namespace

// Unlocked again: a program that asks whether it has set a size has not. Without CAP_NET_ADMIN it
// is what net.core.wmem_max allows, which a socket may have more than already.
void sockets::enlarge(int end) {
  const int now = room_of(end);
  if (now >= 2 * kPairBytes) return;
  constexpr int kNotLocked = 0;
  if (setsockopt(end, SOL_SOCKET, SO_SNDBUFFORCE, &kPairBytes, sizeof kPairBytes) != 0) {
    if (room_without_privilege() <= now) return;
    setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kPairBytes, sizeof kPairBytes);
  }
  setsockopt(end, SOL_SOCKET, SO_BUF_LOCK, &kNotLocked, sizeof kNotLocked);
}

std::optional<sockets::Pair> sockets::make_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return std::nullopt;
  for (const int end : ends) {
    enlarge(end);
    attach::refuse_descriptors(end);
  }
  return Pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void SocketManager::State::connect_within(Asker asker, const Request& request) {
  const Endpoint& remote = request.remote;
  if (listeners.find(remote) == nullptr || connections.is_full()) return kernel(asker.answer);
  // As the kernel's: from the address that is connected to.
  Endpoint source = request.local;
  if (source.ip.is_unspecified()) {
    source.ip = is_loopback(remote.ip) ? sockets::loopback_of(remote.ip) : remote.ip;
  }
  if (source.port == 0) source.port = connections.free_port(source.ip, remote).value_or(0);
  if (source.port == 0 || connections.is_taken(source, remote)) return kernel(asker.answer);
  std::optional<sockets::Pair> pair = sockets::make_pair();
  if (!pair) return kernel(asker.answer);
  Connection connection;
  connection.within = true;
  connection.source = source;
  connection.destination = remote;
  connection.asker = std::move(asker);
  connection.asker_end = std::move(pair->first);
  connection.end = std::move(pair->second);
  knock(connections.add(std::move(connection)).id);
}

void SocketManager::State::knock(ConnectionId id) {
  Connection& connection = *connections.find(id);
  const Endpoint& destination = connection.destination;
  const Listener* listener = listeners.find(destination);
  if (listener == nullptr) return refuse(connection, sockets::Answer::kNobody);
  if (!local.knock || ++connection.knocks > kMostKnocks) {
    return refuse(connection, sockets::Answer::kRefused);
  }
  connection.cookie = listener->cookie;
  // Where the kernel would take it, so that it finds the same listener; an address that only an
  // engine has is none of the kernel's.
  connection.knocked_at = destination;
  if (!is_local(destination.ip)) {
    connection.knocked_at.ip = sockets::loopback_of(destination.ip);
  }
  const auto shares = [this, local = listener->local, v6_only = listener->v6_only](
                          uint64_t cookie) { return listeners.shares(local, v6_only, cookie); };
  local.knock(id, {connection.knocked_at, connection.cookie, listener->soon, shares},
              [this, id](const Result<Endpoint>& from) { on_knock(id, from); });
}

void SocketManager::State::on_knock(ConnectionId id, const Result<Endpoint>& from) {
  Connection* connection = connections.find(id);
  if (connection == nullptr || connection->state != Connection::State::kKnocking) return;
  if (from) {
    connections.announce(*connection, *from);
    return accept(*connection);
  }
  if (from.error().code != Errc::kNotFound) {
    return refuse(*connection, sockets::Answer::kRefused);
  }
  listeners.forget(connection->cookie);
  knock(id);  // others may listen there
}

void SocketManager::State::accept(Connection& connection) {
  const ConnectionId id = connection.id;
  if (connection.within) {
    const Asker asker = connections.take_asker(connection);
    return asker.answer({.kind = ReplyKind::kConnected,
                         .value = sockets::kBothEndsHere,
                         .id = id,
                         .local = connection.source,
                         .remote = connection.destination},
                        std::move(connection.asker_end));
  }
  std::optional<sockets::Pair> pair = sockets::make_pair();
  if (!pair) {
    end_knock(id);
    return refuse(connection, sockets::Answer::kRefused);
  }
  connection.end = std::move(pair->first);
  connections.to_engine(connection);
  host.send(connection.lane,
            command::AnswerConnection{connection.asked, sockets::Answer::kAccepted, id,
                                      connection.priority, std::move(pair->second)});
}

void SocketManager::State::refuse(Connection& connection, sockets::Answer why) {
  const ConnectionId id = connection.id;
  if (connection.within) {
    const Asker asker = connections.take_asker(connection);
    connections.erase(id);
    return kernel(asker.answer);
  }
  host.send(connection.lane, command::AnswerConnection{connection.asked, why, 0, 0, UniqueFd()});
  connections.erase(id);
}

void SocketManager::State::claim(const Request& request, const Answer& answer) {
  Connection* connection = connections.find_announced(request.remote, request.local);
  if (connection == nullptr) return kernel(answer);
  const sockets::Reply reply{.kind = ReplyKind::kConnected,
                             .value = connection->within ? sockets::kBothEndsHere : 0,
                             .id = connection->id,
                             .local = connection->destination,
                             .remote = connection->source};
  UniqueFd end = std::move(connection->end);
  end_knock(connection->id);
  connections.claimed(*connection);
  // Until now it had that of who connected, whose business this side's is not.
  if (!connection->within && !connection->over && connection->priority != request.priority) {
    connection->priority = request.priority;
    tell_engine(*connection);
  }
  if (connection->within || connection->over) connections.erase(connection->id);
  answer(reply, std::move(end));
}

void SocketManager::State::knock_gone(KnockId id) {
  const Connection* connection = connections.find(id);
  if (connection == nullptr || connection->state != Connection::State::kUnclaimed) return;
  if (connection->within) {
    ends.keep(id, ECONNRESET);
  } else if (!connection->over) {
    host.send(connection->lane, command::AbortConnection{id, Errc::kClosed});
  }
  connections.erase(id);
}

}  // namespace mercury
