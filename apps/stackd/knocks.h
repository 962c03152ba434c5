// Tells listeners of this host of connections: by one of the kernel's to where they listen, which
// carries nothing. Whoever accepts it asks the daemon what it announces
// (shim/socket/control/socket_manager.h).
//
// Owner/thread: the control thread, whose io_context this runs on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "apps/stackd/listening_socket.h"
#include "shim/channel/unique_fd.h"
#include "shim/socket/control/socket_manager.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury {

class Knocks {
 public:
  using Reply = std::function<void(Result<Endpoint>)>;
  // `gone`: what a knock was told of will not be accepted. Called from within accepted() alone of
  // these.
  Knocks(boost::asio::io_context& io, std::function<void(KnockId)> gone)
      : io_(io), gone_(std::move(gone)), watching_(io) {}
  Knocks(const Knocks&) = delete;
  Knocks& operator=(const Knocks&) = delete;

  // SocketManager::Local's. One that finds the listener's queue full, or a listener that is not
  // there yet, tries again for a while.
  void start(KnockId id, const KnockTarget& target, Reply reply);
  void end(KnockId id);
  // Somebody has accepted a connection from `from` at `at`, which may be a knock's. What has not
  // been seen of it yet is seen now: that it is connected, and its reply comes; or that it has
  // broken, as when its listener went, and its port may be an ordinary client's by now.
  void accepted(const Endpoint& from, const Endpoint& at);
  size_t size() const { return knocks_.size(); }
  std::optional<std::unordered_set<uint64_t>> listening() { return listening_.cookies(); }
  void clear();

 private:
  struct Knock {
    explicit Knock(boost::asio::io_context& io) : socket(io), timer(io) {}
    int descriptor() { return unwatched ? unwatched.get() : socket.native_handle(); }
    KnockTarget target;
    Endpoint from;
    Reply reply;  // until it is connected
    uint64_t deadline_ns = 0;
    UniqueFd unwatched;                            // until something is waited for,
    boost::asio::posix::stream_descriptor socket;  // and then
    boost::asio::steady_timer timer;
  };
  struct Young {
    uint64_t since_ns = 0;
    KnockId id = 0;
    std::weak_ptr<Knock> knock;
  };
  using Key = std::pair<Endpoint, Endpoint>;  // from, at

  Status connect(KnockId id, Knock& knock);
  void name(KnockId id, Knock& knock, const Endpoint& from);
  void forget_name(KnockId id, const Knock& knock);
  void attempt(KnockId id);
  void wait(KnockId id, std::chrono::milliseconds again);
  void connected(KnockId id);
  void watch(KnockId id, const std::shared_ptr<Knock>& knock);
  void watch_later();
  void finish(KnockId id, Result<Endpoint> result);
  Knock* find(KnockId id);

  boost::asio::io_context& io_;
  const std::function<void(KnockId)> gone_;
  // Handlers hold it weakly: a knock that has ended, or whose number is another's, is not theirs.
  std::unordered_map<KnockId, std::shared_ptr<Knock>> knocks_;
  std::map<Key, KnockId> by_name_;
  // Connected at once, and most are accepted at once: whether they break is looked for later.
  std::deque<Young> young_;
  boost::asio::steady_timer watching_;  // runs while some are there
  ListeningSockets listening_;
  // Handlers that are no knock's hold this weakly.
  const std::shared_ptr<char> here_ = std::make_shared<char>();
};

}  // namespace mercury
