// A program's connections to its daemon: one request at a time on each, as many as threads ask at
// once, few of them kept.
//
// Owner/thread: any thread, also in signal handlers; no memory is allocated but for texts that
// nobody reads. After fork the child opens its own (forked()).
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "shim/channel/unique_fd.h"
#include "shim/socket/request.h"

namespace mercury::sockets {

struct Asked {
  // 0: answered. ECONNREFUSED: no daemon is there, or this program may not speak to it. ENETDOWN:
  // it does not answer in time, or not as the protocol has it. EMFILE: out of descriptors. EINTR:
  // as OnSignal::kGiveUp has it.
  int error = 0;
  bool sent = true;  // false: the connection had ended before, and nobody has heard of it
  Reply reply;
  UniqueFd end;  // with kConnected, and only then
};

// What a signal does to a question, if its handler is one that ends waits (no SA_RESTART): nothing;
// or ends it, once it has lasted for a tenth of a second.
enum class OnSignal : uint8_t { kWaitOn, kGiveUp };

// All that this program asks for is the kernel's.
bool is_other_namespace(const Asked& asked);

// What a kFailed says; ECONNREFUSED if that is no errno.
int errno_in(const Reply& reply);

// One connection. The descriptor is checked before each use: programs close what they do not know
// (closefrom), and open something else under its number.
class DaemonLink {
 public:
  constexpr DaemonLink() = default;

  // Moved away from where programs expect their own descriptors.
  // 0 or Asked::error. Both wait for 5 s at most, whatever signals come.
  int open(const char* path, OnSignal on_signal = OnSignal::kWaitOn);
  // After an error it is closed.
  Asked ask(const Request& request, OnSignal on_signal = OnSignal::kWaitOn);
  bool is_own() const;   // it is there still
  bool is_open() const;  // and the daemon has not closed it
  void close();
  void forget() { fd_ = -1; }  // it is another process's now, and stays open there and here
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  uint64_t cookie_ = 0;
};

class Daemon {
 public:
  constexpr Daemon() = default;

  Asked ask(const char* path, const Request& request, OnSignal on_signal = OnSignal::kWaitOn);
  // When this process has seen last that a daemon which it had spoken to was gone, by now_ns(); 0:
  // never.
  uint64_t lost_ns() const { return lost_ns_.load(std::memory_order_relaxed); }
  // One for later, while this process may still open it: a server's child gives up its user.
  void prepare(const char* path);

  // In the child of a fork: its copies are closed.
  void forked();

 private:
  static constexpr size_t kKept = 4;  // most threads of most programs never ask at once
  static constexpr pid_t kNobody = 0, kMoving = -1;

  // Who sets `owner` to kMoving has the link until it sets it again: nobody waits, so no handler
  // of a signal has to be kept away.
  struct Kept {
    DaemonLink link;
    std::atomic<pid_t> owner{kNobody};
  };

  DaemonLink take(pid_t own);
  Asked unanswered(Asked asked);  // notes it if it is
  void give_back(DaemonLink link, pid_t own);
  void note_loss();

  std::array<Kept, kKept> kept_{};
  // Until then nobody waits for a daemon that has not answered.
  std::atomic<uint64_t> silent_until_ns_{0};
  std::atomic<uint64_t> lost_ns_{0};
};

}  // namespace mercury::sockets
