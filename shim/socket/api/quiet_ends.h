// Descriptors of poll() that have nothing to tell but POLLHUP of a pair, which TCP would not say
// and the kernel says at once, each time: the wait goes on without them, and with an epoll in their
// place that says when there is something new of them.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>

namespace mercury::sockets {

// Owner/thread: the one that calls poll(). Has no destructor: a thread may be cancelled while the
// kernel waits, and then loses a descriptor.
class QuietEnds {
 public:
  // Of what poll() was asked, which stays where it is. False: there is no memory, or no descriptor.
  bool open(const pollfd* asked, nfds_t count);
  // Leaves out the descriptor in that place. False: the kernel does not let it wait.
  bool leave_out(nfds_t place);
  // After news of those that are left out. Where somebody has closed the epoll, as a program may
  // that closes all descriptors that it does not know, there is another, and nobody is left out.
  // False: there is none.
  bool drain();
  void close();

  pollfd* asked() { return asked_; }
  nfds_t count() const { return count_ + 1; }

 private:
  static constexpr size_t kFew = 64;  // needs no memory from the kernel

  bool renew();
  bool is_ours() const;

  std::array<pollfd, kFew> few_;
  const pollfd* programs_;
  pollfd* asked_;
  nfds_t count_;  // without the epoll, which is the last
  int epoll_;
};

}  // namespace mercury::sockets
