// Where connections within this host wait in epoll.
//
// One end of a pair says EPOLLHUP as soon as its peer has closed the other; TCP does so once both
// directions have ended, and programs take it for an error. Events name what the program asked them
// to, not the socket; so what was registered is remembered by that. What is left of an event is
// told. Where nothing is left, the kernel would say it again at once, for ever: then its
// registration has EPOLLET, with which the kernel says only what is new, until something is told.
//
// An event that is on its way while another thread takes away what it is about, or gives that other
// data, is told as the kernel has it. So is what was registered by another process or by another
// number of the same epoll, at once where it is not known here. Where it is, and the kernel says
// again and again in one wait what was made quiet, somebody else has changed it: that is told once,
// and asked for again as the program did.
//
// Owner/thread: any thread. What the kernel has and what is remembered change together, under one
// lock. Memory comes from mmap, never from malloc, which a signal's handler may have interrupted.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "shim/socket/api/quiet_mutex.h"

namespace mercury::sockets {

class Registrations {
 public:
  constexpr Registrations() = default;

  // epoll_ctl() of a connection within this host, whose SO_COOKIE this is.
  int control(uint64_t cookie, int epoll, int operation, int fd, epoll_event* event);
  // epoll_ctl() with EPOLL_CTL_ADD of anything else. It may have the number of a connection that
  // has been closed since translate() looked at it, and is not to be asked for in its place.
  int add_other(int epoll, int fd, epoll_event* event);
  // `epoll` has just been made: what waited in one of the same number does so no more.
  void forget(int epoll);
  // Takes out of what epoll_wait() got what TCP would not say. How many are left. `again`: this
  // wait has got something before, which told nothing.
  int translate(int epoll, epoll_event* events, int count, bool again);

  // For tests: how many are remembered, closed ones among them.
  size_t size() const { return used_; }

  // Around fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  using Place = uint32_t;  // in slots_; 0: none
  static constexpr size_t kBuckets = 65536;

  struct Registration {
    uint64_t cookie = 0;  // 0: free
    int epoll = -1;
    int fd = -1;
    epoll_event event{};    // as the program gave it
    bool as_edges = false;  // the kernel has it with EPOLLET, without EPOLLONESHOT
    bool spent = false;     // with EPOLLONESHOT, and it has been told
    uint32_t repeats = 0;   // that told nothing, since a wait began with it
    Place next_by_fd = 0;   // in its bucket; of free ones
    Place next_by_data = 0;
  };

  static Place& bucket(std::array<Place, kBuckets>& buckets, uint64_t key);
  Registration* find(int epoll, int fd);
  Registration* take();  // null: out of memory
  bool grow();
  void remember(uint64_t cookie, int epoll, int fd, const epoll_event& event);
  void erase(Registration& slot);
  template <class Gone>
  void erase_if(Gone gone);
  uint32_t told(int epoll, const epoll_event& event, bool again);
  uint32_t told_of(Registration& slot, uint32_t events);
  static bool quieten(Registration& slot);
  static bool bears_repeat(Registration& slot);
  static void wake(Registration& slot);

  QuietMutex mutex_;
  Registration* slots_ = nullptr;
  size_t count_ = 0;  // of slots_
  size_t used_ = 0;
  Place free_ = 0;
  std::array<Place, kBuckets> by_fd_{};
  std::array<Place, kBuckets> by_data_{};
};

}  // namespace mercury::sockets
