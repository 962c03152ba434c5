// Connections with programs of other hosts, which engines carry.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "shim/socket/control/addresses.h"
#include "shim/socket/control/manager_state.h"

namespace mercury {

using sockets::Asker;
using sockets::Connection;
using sockets::ConnectionId;
using sockets::Peer;
using sockets::Preamble;
using sockets::ReplyKind;
using sockets::Request;
using sockets::Waiting;

void SocketManager::State::connect_to_host(Asker asker, const Request& request, uint64_t now_ns) {
  Peer* peer = connections.is_full() ? nullptr : peers.reach(request.remote.ip, now_ns);
  if (peer == nullptr) return kernel(asker.answer);
  Waiting waiting{std::move(asker), request};
  if (peer->state == Peer::State::kOpen) return open(*peer, std::move(waiting), now_ns);
  peer->waiting.push_back(std::move(waiting));
}

// What getsockname is to say: of the family that is connected to, or the kernel does it.
std::optional<Endpoint> SocketManager::State::source_for(const Request& request, LaneId lane) {
  const bool v4 = request.remote.ip.is_v4();
  Endpoint source = request.local;
  if (source.ip.is_unspecified()) {
    source.ip = host.lanes[lane.value].ip;
    for (const IpAddress& own : policy.addresses) {
      if (source.ip.is_v4() != v4 && own.is_v4() == v4) source.ip = own;
    }
  }
  if (source.ip.is_v4() != v4) return std::nullopt;
  if (source.port == 0) source.port = connections.free_port(source.ip, request.remote).value_or(0);
  if (source.port == 0 || connections.is_taken(source, request.remote)) return std::nullopt;
  return source;
}

void SocketManager::State::open(const Peer& peer, Waiting waiting, uint64_t now_ns) {
  const std::optional<Endpoint> source = source_for(waiting.request, peer.lane);
  std::optional<sockets::Pair> pair;
  if (source && !connections.is_full()) pair = sockets::make_pair();
  if (!pair) return kernel(waiting.asker.answer);
  Connection connection;
  connection.state = Connection::State::kAsking;
  connection.source = *source;
  connection.destination = waiting.request.remote;
  connection.priority = waiting.request.priority;
  connection.asker = std::move(waiting.asker);
  connection.end = std::move(pair->first);
  connection.lane = peer.lane;
  connection.token = peer.token;
  Connection& added = connections.add(std::move(connection));
  connections.to_engine(added);
  const ConnectionId id = added.id;
  answers.add(now_ns + peers.patience_ns(peer, now_ns), id);
  host.send(peer.lane,
            command::OpenConnection{
                peer.token, id, Preamble{waiting.request.priority, *source, waiting.request.remote},
                std::move(pair->second)});
}

void SocketManager::State::settle(sockets::Peers::Settled settled, uint64_t now_ns) {
  for (Waiting& waiting : settled.waiting) {
    if (waiting.ping != 0 && settled.peer != nullptr) {
      ask_ping(*settled.peer, waiting.ping, now_ns);
    } else if (waiting.ping != 0) {
      end_ping(waiting.ping, settled.outcome, settled.why);
    } else if (settled.peer != nullptr) {
      open(*settled.peer, std::move(waiting), now_ns);
    } else {
      kernel(waiting.asker.answer);
    }
  }
}

void SocketManager::State::on_session_closed(const event::SessionClosed& closed, uint64_t now_ns) {
  on_ping_session_closed(closed);
  settle(peers.on_closed(closed, now_ns), now_ns);
  for (const ConnectionId id : connections.on_session(closed.token)) {
    Connection* connection = connections.find(id);
    if (connection == nullptr) continue;
    if (connection->state == Connection::State::kAsking) {
      give_up(*connection);
    } else if (connection->state == Connection::State::kKnocking) {
      end_knock(id);  // the relay has no use for an answer
      connections.erase(id);
    }
  }
}

// Nothing that only programs of this host are to reach, and nobody who says to be one of them.
bool SocketManager::State::is_for_this_host(const Preamble& preamble) const {
  const IpAddress& to = preamble.destination.ip;
  const IpAddress& from = preamble.source.ip;
  return is_here(to) && !is_loopback(to) && sockets::may_speak(policy, from) && !is_here(from) &&
         preamble.source.port != 0;
}

void SocketManager::State::on_asked(LaneId lane, const event::ConnectionAsked& asked) {
  const auto refuse_with = [&](sockets::Answer why) {
    host.send(lane, command::AnswerConnection{asked.asked, why, 0, 0, UniqueFd()});
  };
  const Preamble& preamble = asked.preamble;
  if (!is_for_this_host(preamble) || listeners.find(preamble.destination) == nullptr) {
    return refuse_with(sockets::Answer::kNobody);
  }
  if (connections.is_full()) return refuse_with(sockets::Answer::kRefused);
  Connection connection;
  connection.source = preamble.source;
  connection.destination = preamble.destination;
  connection.priority = preamble.priority;
  connection.lane = lane;
  connection.token = asked.token;
  connection.asked = asked.asked;
  knock(connections.add(std::move(connection)).id);
}

void SocketManager::State::on_answered(const event::ConnectionAnswered& answered, uint64_t now_ns) {
  if (const uint64_t ping = pings.find(answered.id)) return on_ping_answered(ping, now_ns);
  if (answered.answer != sockets::Answer::kAccepted) connections.from_engine(answered.id);
  Connection* connection = connections.find(answered.id);
  if (connection == nullptr || connection->state != Connection::State::kAsking) return;
  peers.on_answer(connection->token);
  const Asker asker = connections.take_asker(*connection);
  if (answered.answer != sockets::Answer::kAccepted) {
    connections.erase(answered.id);
    return kernel(asker.answer);
  }
  connections.accepted(*connection);
  asker.answer({.kind = ReplyKind::kConnected,
                .id = answered.id,
                .local = connection->source,
                .remote = connection->destination},
               std::move(connection->end));
}

void SocketManager::State::on_ended(LaneId lane, const event::ConnectionEnded& ended) {
  connections.from_engine(ended.id);
  if (const uint64_t ping = ended.id == 0 ? 0 : pings.find(ended.id)) {
    return end_ping(ping, PingReport::Outcome::kLost, "the session has ended");
  }
  Connection* connection =
      ended.id != 0 ? connections.find(ended.id) : connections.find_asked(lane, ended.asked);
  if (connection == nullptr || connection->within || connection->over) return;
  const ConnectionId id = connection->id;
  if (connection->state == Connection::State::kAsking) return give_up(*connection);
  if (connection->state == Connection::State::kKnocking) {
    end_knock(id);
    return connections.erase(id);
  }
  if (const int error = sockets::errno_of_end(ended.code)) ends.keep(id, error);
  // One that is not accepted yet is there to be accepted all the same, and then at its end.
  connection->over = true;
  if (connection->state == Connection::State::kOpen) connections.erase(id);
}

void SocketManager::State::on_described(const event::ConnectionDescribed& described) {
  if (const auto ping = pings.all.find(described.number); ping != pings.all.end()) {
    ping->second.report.info = described.info;
    return;
  }
  auto waiting = infos.extract(described.number);
  if (waiting.empty()) return;
  const Answer& answer = waiting.mapped().answer;
  if (!described.known) return failed(answer, ENOTCONN);
  answer({.kind = ReplyKind::kDone, .id = described.id, .info = described.info}, {});
}

void SocketManager::State::give_up(Connection& connection) {
  const Asker asker = connections.take_asker(connection);
  connections.erase(connection.id);
  kernel(asker.answer);
}

bool SocketManager::State::is_asking(ConnectionId id) {
  const Connection* connection = connections.find(id);
  return connection != nullptr && connection->state == Connection::State::kAsking;
}

void SocketManager::State::drop_settled_deadlines() {
  answers.drop_settled([this](ConnectionId id) { return !is_asking(id); });
  info_deadlines.drop_settled([this](uint64_t number) { return infos.count(number) == 0; });
  pings.deadlines.drop_settled([this](uint64_t number) { return pings.all.count(number) == 0; });
}

void SocketManager::State::on_timer(uint64_t now_ns) {
  settle(peers.on_timer(now_ns), now_ns);
  on_ping_timer(now_ns);
  while (const std::optional<ConnectionId> due = answers.take_due(now_ns)) {
    if (!is_asking(*due)) continue;
    Connection& connection = *connections.find(*due);
    host.send(connection.lane, command::AbortConnection{*due, Errc::kTimedOut});
    peers.on_late(connection.token, now_ns);
    give_up(connection);
  }
  while (const std::optional<uint64_t> due = info_deadlines.take_due(now_ns)) {
    auto waiting = infos.extract(*due);
    if (!waiting.empty()) failed(waiting.mapped().answer, ENOTCONN);
  }
}

}  // namespace mercury
