// Numbers of connections, and why those ended that did not end in order.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "shim/socket/connection.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury::sockets {

// The upper half is random for each life of the daemon, the lower half counts; its top bit says
// that both programs are on this host.
class ConnectionIds {
 public:
  explicit ConnectionIds(uint64_t random) : life_(random >> 32 << 32) {}
  ConnectionId next(bool within) {
    last_ = last_ % kMostCount + 1;
    return life_ | (within ? kWithinBit : 0) | last_;
  }
  bool is_of_this_life(ConnectionId id) const { return id >> 32 << 32 == life_; }
  static bool is_within(ConnectionId id) { return (id & kWithinBit) != 0; }

 private:
  static constexpr uint64_t kWithinBit = 1ULL << 31;
  static constexpr uint64_t kMostCount = kWithinBit - 1;
  const uint64_t life_;
  uint64_t last_ = 0;
};

class Ends {
 public:
  explicit Ends(size_t most) : most_(most) {}
  void keep(ConnectionId id, int error);  // an errno; the oldest makes room
  int of(ConnectionId id) const;          // 0: in order, or not known any more

 private:
  const size_t most_;
  std::unordered_map<ConnectionId, int> errors_;
  std::deque<ConnectionId> oldest_first_;
};

// Connections within this host of which one program wants the other to see a reset as it closes.
// The programs have both ends, so the daemon is asked once that has happened.
class Resets {
 public:
  explicit Resets(size_t most) : of_sides_{Ends(most), Ends(most)} {}
  // Of the program whose end of the connection has these names.
  void set(ConnectionId id, const Endpoint& local, const Endpoint& remote, bool resets) {
    of_sides_[side_of(local, remote)].keep(id, resets ? ECONNRESET : 0);
  }
  // Of its peer: an errno, or 0.
  int by_peer_of(ConnectionId id, const Endpoint& local, const Endpoint& remote) const {
    return of_sides_[side_of(remote, local)].of(id);
  }

 private:
  static size_t side_of(const Endpoint& local, const Endpoint& remote) {
    return local < remote ? 1 : 0;
  }

  std::array<Ends, 2> of_sides_;
};

// What read() is to say of it.
int errno_of_end(Errc code);

}  // namespace mercury::sockets
