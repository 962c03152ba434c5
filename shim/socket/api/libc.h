// The C library's own functions: all that this folder asks of the kernel goes through this table,
// so that libmercury_preload.so, which has functions of the same names, never calls itself.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <ctime>

namespace mercury::sockets {

struct Libc {
  int (*socket)(int domain, int type, int protocol);
  int (*listen)(int fd, int backlog);
  int (*accept4)(int fd, sockaddr* address, socklen_t* length, int flags);
  int (*connect)(int fd, const sockaddr* address, socklen_t length);
  int (*getsockname)(int fd, sockaddr* address, socklen_t* length);
  int (*getpeername)(int fd, sockaddr* address, socklen_t* length);
  int (*getsockopt)(int fd, int level, int name, void* value, socklen_t* length);
  int (*setsockopt)(int fd, int level, int name, const void* value, socklen_t length);
  ssize_t (*read)(int fd, void* data, size_t bytes);
  ssize_t (*readv)(int fd, const iovec* parts, int count);
  ssize_t (*recv)(int fd, void* data, size_t bytes, int flags);
  ssize_t (*recvfrom)(int fd, void* data, size_t bytes, int flags, sockaddr* from,
                      socklen_t* length);
  ssize_t (*recvmsg)(int fd, msghdr* message, int flags);
  int (*recvmmsg)(int fd, mmsghdr* messages, unsigned count, int flags, timespec* patience);
  ssize_t (*send)(int fd, const void* data, size_t bytes, int flags);
  ssize_t (*sendto)(int fd, const void* data, size_t bytes, int flags, const sockaddr* to,
                    socklen_t length);
  ssize_t (*sendmsg)(int fd, const msghdr* message, int flags);
  int (*sendmmsg)(int fd, mmsghdr* messages, unsigned count, int flags);
  ssize_t (*write)(int fd, const void* data, size_t bytes);
  ssize_t (*writev)(int fd, const iovec* parts, int count);
  ssize_t (*sendfile)(int out, int in, off_t* offset, size_t bytes);
  int (*shutdown)(int fd, int how);
  int (*poll)(pollfd* fds, nfds_t count, int timeout_ms);
  int (*ppoll)(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask);
  int (*epoll_create)(int size);
  int (*epoll_create1)(int flags);
  int (*epoll_ctl)(int epoll, int operation, int fd, epoll_event* event);
  int (*epoll_wait)(int epoll, epoll_event* events, int most, int timeout_ms);
  int (*epoll_pwait)(int epoll, epoll_event* events, int most, int timeout_ms,
                     const sigset_t* mask);
  int (*epoll_pwait2)(int epoll, epoll_event* events, int most, const timespec* timeout,
                      const sigset_t* mask);
};

// Of the program that this is linked into: libc_plain.cc, or shim/preload/libc_next.cc. Any thread,
// also before main and in signal handlers.
const Libc& libc();

}  // namespace mercury::sockets
