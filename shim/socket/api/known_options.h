// Which options of a TCP socket that this process has made need not be asked of the kernel, as a
// connection takes its place: there are some 60, and most programs set three. Those that it has set
// on no socket are what a socket has that this library makes to look at it: nobody else ever has
// that one, so that it says what the kernel begins with.
//
// What another process, or io_uring, sets on a socket of this one is not seen; nor is it taken for
// what others have.
//
// Owner/thread: any thread, also in signal handlers: nobody waits here. A child of fork has what
// its parent knew.
#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shim/socket/api/option_rows.h"

namespace mercury::sockets {

// kOther: who made it, and what was set on it, nobody here knows.
enum class SocketKind : uint8_t { kOther, kNew, kAccepted };

class KnownOptions {
 public:
  constexpr KnownOptions() = default;

  // This process has set it, on whichever socket of the kernel's.
  void set(int level, int name);
  // Those that it has set by now.
  OptionRows were_set() const { return set_.load(std::memory_order_acquire); }
  // Asks a socket of its own where it knows nothing, or nothing new.
  OptionsToAsk to_ask(SocketKind kind, int family);
  // A new socket that nobody else has had these. `unlike`: see unlike_new().
  void learn(int family, const OptionValues& values, OptionRows unlike);
  // In the child: another thread of its parent may have been about to learn.
  void forked();

 private:
  struct Known {
    std::atomic<uint64_t> version{0};  // 0: nothing is known; odd: it is being written
    std::atomic<uint64_t> since_ns{0};
    std::atomic<OptionRows> unlike{0};
    std::array<std::atomic<int>, kOptionRows> values{};
  };

  Known& of(int family) { return known_[family == AF_INET6 ? 1 : 0]; }
  OptionsToAsk known(const Known& of_family) const;
  void look(int family);

  std::atomic<OptionRows> set_{0};
  std::array<Known, 2> known_{};
};

}  // namespace mercury::sockets
