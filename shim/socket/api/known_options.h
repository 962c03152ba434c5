// Which options of a TCP socket that this process has made need not be asked of the kernel, as a
// connection takes its place: there are some 60, and most programs set three. Those that it has set
// on no socket are what they were on the last one of the same kind that was asked for all.
//
// What another process, or io_uring, sets on a socket of this one is not seen.
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
enum class SocketKind : uint8_t { kOther, kNew, kNew6, kAccepted, kAccepted6 };
constexpr SocketKind new_socket(int family) {
  return family == AF_INET6 ? SocketKind::kNew6 : SocketKind::kNew;
}
constexpr SocketKind accepted_socket(int family) {
  return family == AF_INET6 ? SocketKind::kAccepted6 : SocketKind::kAccepted;
}

class KnownOptions {
 public:
  constexpr KnownOptions() = default;

  // This process has set it, on whichever socket of the kernel's.
  void set(int level, int name);
  OptionsToAsk to_ask(SocketKind kind) const;
  // One of a kind had these, which was asked for all. `unlike`: see copy_options().
  void learn(SocketKind kind, const OptionValues& values, OptionRows unlike);
  // In the child: another thread of its parent may have been about to learn.
  void forked();

 private:
  struct Known {
    std::atomic<uint64_t> version{0};  // 0: nothing is known; odd: it is being written
    std::atomic<uint64_t> since_ns{0};
    std::atomic<OptionRows> unlike{0};
    std::array<std::atomic<int>, kOptionRows> values{};
  };
  static constexpr size_t kKinds = 5;

  std::atomic<OptionRows> set_{0};
  std::array<Known, kKinds> known_{};
};

}  // namespace mercury::sockets
