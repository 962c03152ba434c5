#include "shim/socket/control/connections.h"

namespace mercury::sockets {

// Being set up it has what tells its listener and both ends, or is about to; established, its
// program has its own end, and within the host both programs have theirs.
size_t Connection::descriptors() const {
  const size_t engines = in_engine ? 1 : 0;
  switch (state) {
    case State::kKnocking:
      return kMostDescriptors;
    case State::kUnclaimed:
      return 2 + engines;
    case State::kAsking:
      return 1 + engines;
    case State::kOpen:
      break;
  }
  return engines;
}

template <class Change>
void Connections::change(Connection& connection, Change change) {
  descriptors_ -= connection.descriptors();
  change();
  descriptors_ += connection.descriptors();
}

Connection& Connections::add(Connection connection) {
  do {
    connection.id = ids_.next(connection.within);
  } while (all_.count(connection.id) > 0);
  const ConnectionId id = connection.id;
  if (connection.within) {
    ++within_;
    ++within_total_;
  } else {
    on_session_.add(connection.token, id);
  }
  if (connection.asked != 0) {
    asked_[{connection.lane, connection.asked}] = id;
  } else {
    taken_.emplace(connection.source, connection.destination);
  }
  if (connection.asker) askers_.add(connection.asker->program, id);
  descriptors_ += connection.descriptors();
  return all_.emplace(id, std::move(connection)).first->second;
}

Connection* Connections::find(ConnectionId id) {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : &found->second;
}

Connection* Connections::find_asked(LaneId lane, uint64_t asked) {
  const auto found = asked_.find({lane, asked});
  return found == asked_.end() ? nullptr : find(found->second);
}

void Connections::erase(ConnectionId id) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  if (connection->within) {
    --within_;
  } else {
    on_session_.erase(connection->token, id);
  }
  if (connection->asked != 0) {
    asked_.erase({connection->lane, connection->asked});
  } else {
    taken_.erase({connection->source, connection->destination});
  }
  if (connection->asker) take_asker(*connection);
  if (connection->state == Connection::State::kUnclaimed) claimed(*connection);
  descriptors_ -= connection->descriptors();
  if (connection->in_engine) left_in_engine_.insert(id);
  all_.erase(id);
}

void Connections::announce(Connection& connection, const Endpoint& from) {
  change(connection, [&] { connection.state = Connection::State::kUnclaimed; });
  connection.knocked_from = from;
  announced_[{from, connection.knocked_at}] = connection.id;
}

Connection* Connections::find_announced(const Endpoint& from, const Endpoint& at) {
  const auto found = announced_.find({from, at});
  return found == announced_.end() ? nullptr : find(found->second);
}

void Connections::claimed(Connection& connection) {
  accepted(connection);
  const auto found = announced_.find({connection.knocked_from, connection.knocked_at});
  if (found != announced_.end() && found->second == connection.id) announced_.erase(found);
}

void Connections::accepted(Connection& connection) {
  change(connection, [&] { connection.state = Connection::State::kOpen; });
}

void Connections::to_engine(Connection& connection) {
  change(connection, [&] { connection.in_engine = true; });
}

void Connections::from_engine(ConnectionId id) {
  left_in_engine_.erase(id);
  Connection* connection = find(id);
  if (connection != nullptr) change(*connection, [&] { connection->in_engine = false; });
}

Asker Connections::take_asker(Connection& connection) {
  askers_.erase(connection.asker->program, connection.id);
  Asker asker = std::move(*connection.asker);
  connection.asker.reset();
  return asker;
}

bool Connections::is_taken(const Endpoint& source, const Endpoint& destination) const {
  return taken_.count({source, destination}) > 0;
}

std::optional<uint16_t> Connections::free_port(const IpAddress& source,
                                               const Endpoint& destination) {
  for (unsigned tries = kLastPort - kFirstPort + 1U; tries > 0; --tries) {
    last_port_ = last_port_ == kLastPort ? kFirstPort : static_cast<uint16_t>(last_port_ + 1);
    if (!is_taken({source, last_port_}, destination)) return last_port_;
  }
  return std::nullopt;
}

}  // namespace mercury::sockets
