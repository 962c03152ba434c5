// mercury_send, mercury_sendto, mercury_sendmsg, mercury_sendmmsg, mercury_write, mercury_writev,
// mercury_sendfile.
//
// A pair takes MSG_OOB, and a daemon that reads its other end would not see the byte: it is
// refused, which costs the others one test of a flag.
#include <sys/socket.h>

#include <cerrno>

#include "shim/socket/api/ended.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

bool is_refused(int fd, int flags) {
  if ((flags & MSG_OOB) == 0) [[likely]]
    return false;
  ErrnoKept kept;
  if (!process().find(fd)) return false;
  kept.fail(EOPNOTSUPP);
  return true;
}

// TCP's POLLHUP follows a write that its peer's end has made fail.
template <class Count>
Count sent(int fd, Count count) {
  if (count >= 0 || errno != EPIPE) [[likely]]
    return count;
  const ErrnoKept kept;
  both_ended(fd);
  return count;
}

}  // namespace
}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

ssize_t mercury_send(int fd, const void* data, size_t bytes, int flags) {
  if (sockets::is_refused(fd, flags)) return -1;
  return sockets::sent(fd, sockets::libc().send(fd, data, bytes, flags));
}

ssize_t mercury_sendto(int fd, const void* data, size_t bytes, int flags, const sockaddr* to,
                       socklen_t length) {
  if (sockets::is_refused(fd, flags)) return -1;
  return sockets::sent(fd, sockets::libc().sendto(fd, data, bytes, flags, to, length));
}

ssize_t mercury_sendmsg(int fd, const msghdr* message, int flags) {
  if (sockets::is_refused(fd, flags)) return -1;
  return sockets::sent(fd, sockets::libc().sendmsg(fd, message, flags));
}

int mercury_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (sockets::is_refused(fd, flags)) return -1;
  return sockets::sent(fd, sockets::libc().sendmmsg(fd, messages, count, flags));
}

ssize_t mercury_write(int fd, const void* data, size_t bytes) {
  return sockets::sent(fd, sockets::libc().write(fd, data, bytes));
}

ssize_t mercury_writev(int fd, const iovec* parts, int count) {
  return sockets::sent(fd, sockets::libc().writev(fd, parts, count));
}

ssize_t mercury_sendfile(int out, int in, off_t* offset, size_t bytes) {
  return sockets::sent(out, sockets::libc().sendfile(out, in, offset, bytes));
}
