// Pings that are under way: what asks another host whether it is there, and what the way to it is
// like.
//
// A ping is a connection that nobody can have: its source port is 0, which every daemon refuses
// without a word to a listener. So the wire knows nothing of pings, and one takes what setting up a
// connection takes: a round trip between both control planes. It needs no descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "shim/socket/connection.h"
#include "shim/socket/control/deadlines.h"
#include "shim/socket/control/socket_manager.h"

namespace mercury::sockets {

struct Ping {
  SocketManager::PingAnswer answer;
  PingReport report;      // as far as it is known
  uint64_t begin_ns = 0;  // of the wait for a session, then for the answer
  Token token;            // of the session; 0: none yet
  ConnectionId id = 0;    // of what is asked for; 0: nothing yet
};

struct Pings {
  static constexpr size_t kMost = 64;  // an operator's; each waits for seconds at most

  std::map<uint64_t, Ping> all;  // by their number, which is never 0
  Deadlines<uint64_t> deadlines;

  bool is_full() const { return all.size() >= kMost; }
  // The number of the ping that has asked for this connection; 0: none.
  uint64_t find(ConnectionId id) const {
    for (const auto& [number, ping] : all) {
      if (ping.id == id) return number;
    }
    return 0;
  }
};

}  // namespace mercury::sockets
