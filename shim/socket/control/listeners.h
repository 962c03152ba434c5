// Who listens where: the sockets of the kernel that programs of this host have said of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shim/socket/control/socket_manager.h"
#include "transport/base/endpoint.h"

namespace mercury::sockets {

struct Listener {
  SocketProgram program = 0;  // for as long as it lasts
  Endpoint local;
  uint64_t cookie = 0;
  bool v6_only = false;
  bool soon = false;    // it is about to listen
  bool missed = false;  // the kernel did not name it when it was last asked who listens
};

class Listeners {
 public:
  explicit Listeners(size_t most) : most_(most) {}
  // False: there are too many. The same socket of the same program again replaces what was said.
  bool add(const Listener& listener);
  // Who would get a connection to `destination`: one that listens at this address before one that
  // listens at all. Null: nobody. Until the next change.
  const Listener* find(const Endpoint& destination) const;
  // Whether the socket with this cookie listens at the very same address (SO_REUSEPORT).
  bool shares(const Endpoint& local, bool v6_only, uint64_t cookie) const;
  void forget(uint64_t cookie);  // whichever programs have it
  void forget(SocketProgram program, uint64_t cookie);
  void forget_program(SocketProgram program);
  // Forgets those that listen no more: not about to, and not in `open` twice in a row, as the
  // kernel's list may lack one while others come and go.
  void keep(const std::unordered_set<uint64_t>& open);
  size_t size() const { return size_; }
  bool full() const { return size_ >= most_; }

 private:
  template <class Which>
  void erase_if(Which which);

  const size_t most_;
  size_t size_ = 0;
  std::unordered_map<uint16_t, std::vector<Listener>> by_port_;
};

}  // namespace mercury::sockets
