// Sockets that may become Mercury's when they connect, and where they wait in epoll until then: a
// registration belongs to what is behind a descriptor, not to its number, so it is made again when
// something else is put there.
//
// A socket of which not all registrations are known is to stay the kernel's: one that came to this
// program in another way than by socket(), under this number, or waits where there was no room. As
// far as numbers tell: nobody says that one was closed, and it may be another's that came so.
//
// Owner/thread: any thread. A number is a hint, checked before it counts: a socket may have been
// closed, and its number be something else's.
#pragma once

#include <sys/epoll.h>

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
  void add(int fd) { set(fd, Hint::kMayBe); }
  void remove(int fd) { set(fd, Hint::kNone); }
  // It has what no connection of Mercury's could have, and is to stay the kernel's if it listens,
  // too.
  void keep_kernels(int fd) {
    if (may_be(fd)) set(fd, Hint::kKernels);
  }
  // It listens. False for made_here(): it came to this program in another way.
  void listens(int fd) { set(fd, may_be(fd) || made_here(fd) ? Hint::kListens : Hint::kNone); }
  bool made_here(int fd) const { return hint(fd) == Hint::kListens; }
  // False: surely not one. Costs no call of the kernel.
  bool may_be(int fd) const { return hint(fd) == Hint::kMayBe; }
  bool is_kernels(int fd) const { return hint(fd) == Hint::kKernels; }

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

  enum class Hint : uint8_t { kNone, kMayBe, kKernels, kListens };

  static bool has_hint(int fd) { return fd >= 0 && static_cast<size_t>(fd) < kDescriptors; }
  Hint hint(int fd) const {
    return has_hint(fd) ? hints_[static_cast<size_t>(fd)].load(std::memory_order_relaxed)
                        : Hint::kNone;
  }
  void set(int fd, Hint hint) {
    if (has_hint(fd)) hints_[static_cast<size_t>(fd)].store(hint, std::memory_order_relaxed);
  }
  Registration* slot_for(uint64_t cookie, int epoll, int fd);

  QuietMutex mutex_;
  std::atomic<bool> any_registered_{false};  // ever: who has none pays for no look
  std::array<Registration, kMost> registrations_{};
  // As many descriptors as Linux lets a process have unless it is told otherwise. Never searched,
  // so only what is used of it is touched; of the class, as it is zero and would else be in the
  // file.
  static constexpr size_t kDescriptors = 1 << 20;
  static std::array<std::atomic<Hint>, kDescriptors> hints_;
};

}  // namespace mercury::sockets
