// The connections of this host that the control plane has to do with: those with other hosts, until
// their engine says that they are over, and those within this host until they are accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "shim/socket/control/ends.h"
#include "shim/socket/control/socket_manager.h"

namespace mercury::sockets {

// A request whose answer is to come.
struct Asker {
  SocketProgram program = 0;
  SocketManager::Answer answer;
};

struct Connection {
  enum class State : uint8_t {
    kKnocking,   // its listener is being told; within this host: `asker` waits
    kUnclaimed,  // its listener has been told, and has not accepted it
    kAsking,     // another host's answer is awaited, and so does `asker`
    kOpen,       // with another host
  };
  State state = State::kKnocking;
  bool within = false;  // both programs are on this host
  ConnectionId id = 0;
  Endpoint source;  // who has connected
  Endpoint destination;
  uint8_t priority = 0;
  bool abort_on_close = false;
  std::optional<Asker> asker;
  UniqueFd end;            // for who accepts it; kAsking: for `asker`
  UniqueFd asker_end;      // kKnocking: for `asker`
  bool in_engine = false;  // an engine has the other end of it

  // Its listener, the address of the kernel's connection that tells it, and the own end of that.
  uint64_t cookie = 0;
  Endpoint knocked_at;
  Endpoint knocked_from;
  unsigned knocks = 0;

  // With another host.
  LaneId lane;
  Token token;
  uint64_t asked = 0;  // by it: the relay's number
  bool over = false;   // its end came before it was accepted

  // Descriptors of this daemon that it has, or is about to have.
  static constexpr size_t kMostDescriptors = 3;
  size_t descriptors() const;
};

// The connections of each of something, which may have all there are.
template <class Key>
class IdsOf {
 public:
  void add(const Key& key, ConnectionId id) { all_.emplace(key, id); }
  void erase(const Key& key, ConnectionId id) { all_.erase({key, id}); }
  bool any(const Key& key) const {
    const auto first = all_.lower_bound({key, 0});
    return first != all_.end() && first->first == key;
  }
  std::vector<ConnectionId> of(const Key& key) const {
    std::vector<ConnectionId> ids;
    for (auto it = all_.lower_bound({key, 0}); it != all_.end() && it->first == key; ++it) {
      ids.push_back(it->second);
    }
    return ids;
  }

 private:
  std::set<std::pair<Key, ConnectionId>> all_;
};

class Connections {
 public:
  Connections(size_t most, size_t most_descriptors, uint64_t random)
      : most_(most), most_descriptors_(most_descriptors), ids_(random) {}

  // One more that is set up may not find all descriptors that it needs.
  bool is_full() const {
    return all_.size() >= most_ || descriptors() + Connection::kMostDescriptors > most_descriptors_;
  }
  const ConnectionIds& ids() const { return ids_; }
  Connection& add(Connection connection);              // gives it its number
  ConnectionId next_id() { return ids_.next(false); }  // of none of these
  Connection* find(ConnectionId id);
  Connection* find_asked(LaneId lane, uint64_t asked);
  void erase(ConnectionId id);

  // Its listener knows. Who accepts it names these addresses.
  void announce(Connection& connection, const Endpoint& from);
  Connection* find_announced(const Endpoint& from, const Endpoint& at);
  void claimed(Connection& connection);
  void accepted(Connection& connection);  // by the other host
  // An engine gets one end of it, and has closed it, whether the connection is known still or not.
  void to_engine(Connection& connection);
  void from_engine(ConnectionId id);
  // Its asker's, to be answered.
  Asker take_asker(Connection& connection);

  bool is_taken(const Endpoint& source, const Endpoint& destination) const;
  // A port from which there is no connection to `destination`; none: all are taken.
  std::optional<uint16_t> free_port(const IpAddress& source, const Endpoint& destination);

  std::vector<ConnectionId> asked_by(SocketProgram program) const { return askers_.of(program); }
  std::vector<ConnectionId> on_session(Token token) const { return on_session_.of(token); }
  bool uses(Token token) const { return on_session_.any(token); }
  size_t size() const { return all_.size(); }
  size_t unclaimed() const { return announced_.size(); }
  size_t descriptors() const { return descriptors_ + left_in_engine_.size(); }
  size_t with_other_hosts() const { return all_.size() - within_; }
  uint64_t within_total() const { return within_total_; }

 private:
  using Pair = std::pair<Endpoint, Endpoint>;
  static constexpr uint16_t kFirstPort = 32768, kLastPort = 60999;  // the kernel's own choice

  template <class Change>
  void change(Connection& connection, Change change);

  const size_t most_;
  const size_t most_descriptors_;
  ConnectionIds ids_;
  uint16_t last_port_ = kLastPort;
  size_t within_ = 0;
  uint64_t within_total_ = 0;
  size_t descriptors_ = 0;                           // of all_
  std::unordered_set<ConnectionId> left_in_engine_;  // erased; the engine's end is open still
  std::unordered_map<ConnectionId, Connection> all_;
  std::set<Pair> taken_;                    // source, destination; of those from this host
  std::map<Pair, ConnectionId> announced_;  // from, at
  std::map<std::pair<LaneId, uint64_t>, ConnectionId> asked_;
  IdsOf<SocketProgram> askers_;
  IdsOf<Token> on_session_;
};

}  // namespace mercury::sockets
