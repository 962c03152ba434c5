// libmercury_preload.so: the C library's functions of sockets, each of which is Mercury's. Their
// types are the C library's own, or the compiler says so.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shim/preload/chk.h"
#include "shim/socket/api/mercurystack/socket.h"

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  return mercury_socket(domain, type, protocol);
}
int listen(int fd, int backlog) noexcept { return mercury_listen(fd, backlog); }
int accept(int fd, sockaddr* address, socklen_t* length) {
  return mercury_accept(fd, address, length);
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  return mercury_accept4(fd, address, length, flags);
}
int connect(int fd, const sockaddr* address, socklen_t length) {
  return mercury_connect(fd, address, length);
}
int getsockname(int fd, sockaddr* address, socklen_t* length) noexcept {
  return mercury_getsockname(fd, address, length);
}
int getpeername(int fd, sockaddr* address, socklen_t* length) noexcept {
  return mercury_getpeername(fd, address, length);
}
int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  return mercury_getsockopt(fd, level, name, value, length);
}
int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  return mercury_setsockopt(fd, level, name, value, length);
}

ssize_t read(int fd, void* data, size_t bytes) { return mercury_read(fd, data, bytes); }
ssize_t readv(int fd, const iovec* parts, int count) { return mercury_readv(fd, parts, count); }
ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  return mercury_recv(fd, data, bytes, flags);
}
ssize_t recvfrom(int fd, void* data, size_t bytes, int flags, sockaddr* from, socklen_t* length) {
  return mercury_recvfrom(fd, data, bytes, flags, from, length);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) { return mercury_recvmsg(fd, message, flags); }
int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* patience) {
  return mercury_recvmmsg(fd, messages, count, flags, patience);
}

ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  return mercury_send(fd, data, bytes, flags);
}
ssize_t sendto(int fd, const void* data, size_t bytes, int flags, const sockaddr* to,
               socklen_t length) {
  return mercury_sendto(fd, data, bytes, flags, to, length);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return mercury_sendmsg(fd, message, flags);
}
int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  return mercury_sendmmsg(fd, messages, count, flags);
}
ssize_t write(int fd, const void* data, size_t bytes) { return mercury_write(fd, data, bytes); }
ssize_t writev(int fd, const iovec* parts, int count) { return mercury_writev(fd, parts, count); }
// Compiled for large files, as this is, sendfile is the name of sendfile64; so the other is given
// by its symbol.
ssize_t sendfile(int out, int in, off_t* offset, size_t bytes) noexcept {
  return mercury_sendfile(out, in, offset, bytes);
}
ssize_t plain_sendfile(int out, int in, off_t* offset, size_t bytes) noexcept __asm__("sendfile");
ssize_t plain_sendfile(int out, int in, off_t* offset, size_t bytes) noexcept {
  return mercury_sendfile(out, in, offset, bytes);
}
static_assert(sizeof(off_t) == sizeof(long), "both offsets are the same type");

int shutdown(int fd, int how) noexcept { return mercury_shutdown(fd, how); }
int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  return mercury_poll_fds(fds, count, timeout_ms);
}
int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  return mercury_ppoll(fds, count, timeout, mask);
}
int epoll_create(int size) noexcept { return mercury_epoll_create(size); }
int epoll_create1(int flags) noexcept { return mercury_epoll_create1(flags); }
int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  return mercury_epoll_ctl(epoll, operation, fd, event);
}
int epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  return mercury_epoll_wait(epoll, events, most, timeout_ms);
}
int epoll_pwait(int epoll, epoll_event* events, int most, int timeout_ms, const sigset_t* mask) {
  return mercury_epoll_pwait(epoll, events, most, timeout_ms, mask);
}
int epoll_pwait2(int epoll, epoll_event* events, int most, const timespec* timeout,
                 const sigset_t* mask) {
  return mercury_epoll_pwait2(epoll, events, most, timeout, mask);
}

// NOLINTBEGIN(bugprone-reserved-identifier): the C library's names
ssize_t __read_chk(int fd, void* data, size_t bytes, size_t room) {
  if (bytes > room) return mercury::next_chk().read(fd, data, bytes, room);
  return mercury_read(fd, data, bytes);
}
ssize_t __recv_chk(int fd, void* data, size_t bytes, size_t room, int flags) {
  if (bytes > room) return mercury::next_chk().recv(fd, data, bytes, room, flags);
  return mercury_recv(fd, data, bytes, flags);
}
ssize_t __recvfrom_chk(int fd, void* data, size_t bytes, size_t room, int flags, sockaddr* from,
                       socklen_t* length) {
  if (bytes > room) {
    return mercury::next_chk().recvfrom(fd, data, bytes, room, flags, from, length);
  }
  return mercury_recvfrom(fd, data, bytes, flags, from, length);
}
int __poll_chk(pollfd* fds, nfds_t count, int timeout_ms, size_t room) {
  if (count > room / sizeof *fds) return mercury::next_chk().poll(fds, count, timeout_ms, room);
  return mercury_poll_fds(fds, count, timeout_ms);
}
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                size_t room) {
  if (count > room / sizeof *fds) {
    return mercury::next_chk().ppoll(fds, count, timeout, mask, room);
  }
  return mercury_ppoll(fds, count, timeout, mask);
}
// NOLINTEND(bugprone-reserved-identifier)
}
