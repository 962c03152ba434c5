// Stands for mercury-stackd in tests of a program's side: it speaks request.h on a socket, connects
// programs of this host to each other, and fails in each way that a daemon can.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "shim/channel/unique_fd.h"
#include "shim/socket/request.h"

namespace mercury {

class FakeDaemon {
 public:
  enum class Manner {
    kServes,
    kRefuses,   // kFailed to all that connect, with ECONNREFUSED
    kIsSilent,  // reads, and never answers
    kBabbles,   // answers with bytes that are no reply
    kHangsUp,   // closes the connection on which it is asked
    kNoEnd,     // kConnected without a descriptor
    kWrongEnd,  // kConnected with one that is no stream pair's
    kKernel,    // as a daemon that serves no sockets
  };

  explicit FakeDaemon(std::string path);
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  void behave(Manner manner) { manner_ = manner; }
  // Once, before it answers the next that asks for this.
  void meanwhile(sockets::RequestKind kind, std::function<void()> then);
  // What ENDED says of connections from now on, and INFO.
  void end_with(uint32_t error) { end_ = error; }
  void inform(const sockets::Info& info);
  // The kernel took clients of a listener before the daemon was told of it.
  bool was_late() const { return late_; }

  size_t asked(sockets::RequestKind kind) const;
  size_t connections() const;                      // of programs to it, now
  std::vector<sockets::Request> requests() const;  // all, oldest first
  void wait_for(sockets::RequestKind kind, size_t count) const;

 private:
  struct Knock {
    UniqueFd socket;
    UniqueFd end;
    sockets::Reply reply;
  };
  struct Listener {
    Endpoint local;
    uint64_t cookie = 0;
    int connection = -1;  // that told of it
  };

  void run();
  void serve(int connection);
  void close_connection(int connection);
  void answer(int connection, const sockets::Request& request);
  std::pair<sockets::Reply, UniqueFd> decide(int connection, const sockets::Request& request);
  void listen(int connection, const sockets::Request& request);
  std::pair<sockets::Reply, UniqueFd> connect(const sockets::Request& request);
  std::pair<sockets::Reply, UniqueFd> claim(const sockets::Request& request);

  std::string path_;
  UniqueFd listener_;
  UniqueFd stop_;
  std::atomic<Manner> manner_{Manner::kServes};
  std::atomic<uint32_t> end_{0};
  std::atomic<bool> late_{false};
  mutable std::mutex mutex_;
  sockets::Info info_;
  sockets::RequestKind awaited_{};
  std::function<void()> then_;
  std::vector<sockets::Request> requests_;
  std::map<int, UniqueFd> connections_;
  std::vector<Listener> listeners_;
  std::map<Endpoint, Knock> knocks_;
  std::set<std::pair<Endpoint, Endpoint>> resets_;  // the names of the end whose close() resets
  uint64_t next_id_ = 1;
  std::thread thread_;
};

}  // namespace mercury
