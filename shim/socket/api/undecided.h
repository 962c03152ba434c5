// Sockets that may become Mercury's when they connect, and where they wait in epoll until then: a
// registration belongs to what is behind a descriptor, not to its number, so it is made again when
// something else is put there.
//
// A socket of which not all registrations are known is to stay the kernel's: one that came to this
// program in another way than by socket(), under this number, or waits where there was no room.
//
// Owner/thread: any thread. Nobody says that a socket was closed, and its number may be something
// else's by now: what is known of a number is known of the socket that has the cookie beside it.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shim/socket/api/quiet_mutex.h"

namespace mercury::sockets {

class Undecided {
 public:
  constexpr Undecided() = default;

  // `fd` is a new stream socket; or its fate is decided.
  void add(int fd, int family, uint64_t cookie) {
    set(fd, cookie, family == AF_INET6 ? Hint::kNew6 : Hint::kNew);
  }
  void remove(int fd) { set(fd, 0, Hint::kNone); }
  // It has what no connection of Mercury's could have, and is to stay the kernel's if it listens,
  // too.
  void keep_kernels(int fd) {
    if (may_be(fd)) set(fd, cookie(fd), Hint::kKernels);
  }
  // It listens. False for made_here(): it came to this program in another way.
  void listens(int fd, uint64_t cookie);
  bool made_here(int listener) const;
  // False: surely not one. Costs no call of the kernel.
  bool may_be(int fd) const { return is_new(hint(fd)); }
  // AF_UNSPEC: it is none of those that were added, under this number.
  int family_of_new(int fd, uint64_t cookie) const;
  bool is_kernels(int fd, uint64_t of) const {
    return hint(fd) == Hint::kKernels && cookie(fd) == of;
  }

  // epoll_ctl() did this with it. Where there is no room to note it, it is none any more.
  void registered(int epoll, int operation, int fd, const epoll_event* event);

  // Takes `fd` out of every epoll where it waits, and puts back what has its number by then.
  // The cookie that it has, for put_back(); 0: it waits nowhere.
  uint64_t take_out(int fd);
  void put_back(int fd, uint64_t cookie);

  // Around fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // Between epoll_ctl() and connect() is no wait; so few sockets are there at a time.
  static constexpr size_t kMost = 256;

  struct Registration {
    uint64_t cookie = 0;  // 0: free
    int epoll = -1;
    int fd = -1;
    bool taken_out = false;
    epoll_event event{};
  };

  enum class Hint : uint8_t { kNone, kNew, kNew6, kKernels, kListens };
  // A cookie and its hint, below: the kernel counts cookies, and does not come so far.
  static constexpr int kHintBits = 3;

  static bool has_hint(int fd) { return fd >= 0 && static_cast<size_t>(fd) < kDescriptors; }
  static bool is_new(Hint hint) { return hint == Hint::kNew || hint == Hint::kNew6; }
  uint64_t known(int fd) const {
    return has_hint(fd) ? hints_[static_cast<size_t>(fd)].load(std::memory_order_relaxed) : 0;
  }
  Hint hint(int fd) const { return static_cast<Hint>(known(fd) & ((1 << kHintBits) - 1)); }
  uint64_t cookie(int fd) const { return known(fd) >> kHintBits; }
  void set(int fd, uint64_t cookie, Hint hint) {
    if (!has_hint(fd)) return;
    hints_[static_cast<size_t>(fd)].store(cookie << kHintBits | static_cast<uint64_t>(hint),
                                          std::memory_order_relaxed);
  }
  Registration* slot_for(uint64_t cookie, int epoll, int fd);

  QuietMutex mutex_;
  std::atomic<bool> any_registered_{false};  // ever: who has none pays for no look
  std::array<Registration, kMost> registrations_{};
  // As many descriptors as Linux lets a process have unless it is told otherwise. Never searched,
  // so only what is used of it is touched; of the class, as it is zero and would else be in the
  // file.
  static constexpr size_t kDescriptors = 1 << 20;
  static std::array<std::atomic<uint64_t>, kDescriptors> hints_;
};

}  // namespace mercury::sockets
