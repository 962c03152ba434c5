// What compilers call instead of read() and its like where they know how much there is room for
// (_FORTIFY_SOURCE). The C library's end the program if more is asked for.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>

namespace mercury {

struct Chk {
  ssize_t (*read)(int fd, void* data, size_t bytes, size_t room);
  ssize_t (*recv)(int fd, void* data, size_t bytes, size_t room, int flags);
  ssize_t (*recvfrom)(int fd, void* data, size_t bytes, size_t room, int flags, sockaddr* from,
                      socklen_t* length);
  int (*poll)(pollfd* fds, nfds_t count, int timeout_ms, size_t room);
  int (*ppoll)(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
               size_t room);
};

const Chk& next_chk();

}  // namespace mercury
