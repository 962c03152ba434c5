// A program's listeners: what the daemon has been told, and is told again after a restart.
//
// All are told on one connection, which forked children keep open with their parent: a server that
// becomes a daemon by fork, or whose parent ends, goes on listening. A child never speaks on it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "shim/socket/api/daemon.h"
#include "shim/socket/api/quiet_mutex.h"
#include "shim/socket/request.h"

namespace mercury::sockets {

class Listeners {
 public:
  constexpr Listeners() = default;

  // Of the listener's SO_COOKIE, with its own name.
  struct Own {
    uint64_t cookie = 0;
    Endpoint local;
    bool v6_only = false;
  };
  // 0, Asked::error, or ENONET (is_other_namespace); it is remembered either way.
  int add(const char* path, const Own& own);
  void remember(const Own& own);
  // It is about to listen, or does not after all: nothing of it is remembered. As add().
  int announce(const char* path, const Own& own) { return say(path, own, Listening::kSoon); }
  int withdraw(const char* path, const Own& own) { return say(path, own, Listening::kNot); }
  // If the daemon has gone since they were told, they are told once more, about once a second. For
  // each client; so it looks only every 10 ms.
  void refresh(const char* path);
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  // Around fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void forked();

 private:
  // More listeners than a program has. Those beyond are told once.
  static constexpr size_t kMost = 1024;

  bool is_told() const;
  int say(const char* path, const Own& own, Listening listening);
  int ask(const Own& own, Listening listening);
  int tell(const char* path, const Own& own);
  void keep(const Own& own);
  int open(const char* path);
  void drop_closed();

  QuietMutex mutex_;
  DaemonLink link_;
  bool inherited_ = false;  // link_ is the parent's
  uint64_t next_try_ns_ = 0;
  std::atomic<uint64_t> looked_ns_{0};
  std::atomic<size_t> count_{0};
  std::array<Own, kMost> own_{};
};

}  // namespace mercury::sockets
