// A program's connections over Mercury, by the SO_COOKIE of its end: a number that dup, fork and
// close leave alone, so that none of these needs to be told. What has been closed is dropped as the
// table grows.
//
// Owner/thread: any thread. Memory comes from mmap, never from malloc, which a signal's handler may
// have interrupted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "shim/socket/api/option_rows.h"
#include "shim/socket/api/quiet_mutex.h"
#include "shim/socket/connection.h"
#include "transport/base/endpoint.h"

namespace mercury::sockets {

struct OwnConnection {
  uint64_t cookie = 0;  // 0: none
  ConnectionId id = 0;
  Endpoint local;
  Endpoint remote;
  int family = 0;
  bool on_host = false;  // the peer has the pair's other end
  // This side has shut down what it sends, or was reset: when the peer has ended too, all has.
  bool finished = false;
  bool ended = false;  // how it ended has been asked, and told
  bool open = false;   // in a sweep: some descriptor has it
  OptionValues values{};
};

class Connections {
 public:
  constexpr Connections() = default;

  // Whether there ever was one: who has none pays for no look-up.
  bool empty() const { return used_.load(std::memory_order_relaxed) == 0; }
  // Whether there ever was one within this host: who has none is told what the kernel says.
  bool any_on_host() const { return any_on_host_.load(std::memory_order_relaxed); }
  bool add(const OwnConnection& connection);  // false: out of memory
  // Without a lock where it was none lately.
  std::optional<OwnConnection> find(uint64_t cookie);
  // Whether it is one within this host: without a lock where that was asked for lately, as
  // programs change what they wait for with every request.
  bool is_on_host(uint64_t cookie);
  // Changes what is there: if it is.
  void set_ended(uint64_t cookie);
  void set_finished(uint64_t cookie, bool finished);
  void set_value(uint64_t cookie, size_t row, int value);

  // For tests: how many are remembered, closed ones among them.
  size_t size() const { return used_.load(std::memory_order_relaxed); }

  // Around fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Slots {
    OwnConnection* at = nullptr;
    size_t count = 0;  // a power of two

    OwnConnection* find(uint64_t cookie) const;  // its slot, or the free one where it belongs
    void erase(size_t place);
  };

  // What was said of a cookie lately. It changes once, as one becomes a connection's: cookies are
  // not given twice.
  enum class Kind : uint8_t { kNone, kOfOthers, kOnHost };
  static constexpr size_t kLately = 4096;
  static uint64_t answer(uint64_t cookie, Kind kind) {
    return cookie << 2 | static_cast<uint64_t>(kind);
  }
  std::atomic<uint64_t>& lately(uint64_t cookie) { return lately_[cookie % kLately]; }

  void note(uint64_t cookie, const OwnConnection* connection);  // null: it is none
  void sweep();
  bool grow();

  QuietMutex mutex_;
  Slots slots_;
  std::atomic<size_t> used_{0};
  std::atomic<bool> any_on_host_{false};
  // answer(), or 0. Written with the mutex taken.
  std::array<std::atomic<uint64_t>, kLately> lately_{};
};

}  // namespace mercury::sockets
