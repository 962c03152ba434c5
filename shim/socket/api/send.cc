// mercury_send, mercury_sendto, mercury_sendmsg, mercury_sendmmsg, mercury_write, mercury_writev,
// mercury_sendfile.
//
// A pair takes MSG_OOB, and a daemon that reads its other end would not see the byte: it is
// refused, which costs the others one test of a flag. TCP does not look at the address of a message
// on a connection, where a pair fails: such a message is sent again without.
#include <sys/socket.h>

#include <cerrno>
#include <climits>

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

// Whether that was for the address that came with it.
bool is_for_the_address(int fd, ssize_t count) {
  if (count >= 0 || errno != EISCONN) [[likely]]
    return false;
  const ErrnoKept kept;
  return process().find(fd).has_value();
}

size_t bytes_of(const msghdr& message) {
  size_t bytes = 0;
  for (size_t i = 0; i < message.msg_iovlen; ++i) bytes += message.msg_iov[i].iov_len;
  return bytes;
}

msghdr without_address(const msghdr& message) {
  msghdr same = message;
  same.msg_name = nullptr;
  same.msg_namelen = 0;
  return same;
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
  const ssize_t count = sockets::libc().sendto(fd, data, bytes, flags, to, length);
  if (sockets::is_for_the_address(fd, count)) return mercury_send(fd, data, bytes, flags);
  return sockets::sent(fd, count);
}

ssize_t mercury_sendmsg(int fd, const msghdr* message, int flags) {
  if (sockets::is_refused(fd, flags)) return -1;
  ssize_t count = sockets::libc().sendmsg(fd, message, flags);
  if (sockets::is_for_the_address(fd, count)) {
    const msghdr same = sockets::without_address(*message);
    count = sockets::libc().sendmsg(fd, &same, flags);
  }
  return sockets::sent(fd, count);
}

int mercury_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (sockets::is_refused(fd, flags)) return -1;
  const int done = sockets::libc().sendmmsg(fd, messages, count, flags);
  if (!sockets::is_for_the_address(fd, done)) return sockets::sent(fd, done);
  // The first has one. The others need not, but whoever gave one gave many.
  unsigned sent = 0;
  while (sent < count && sent < IOV_MAX) {
    mmsghdr& message = messages[sent];
    const ssize_t bytes = mercury_sendmsg(fd, &message.msg_hdr, flags);
    if (bytes < 0) return sent > 0 ? static_cast<int>(sent) : -1;
    message.msg_len = static_cast<unsigned>(bytes);
    ++sent;
    if (static_cast<size_t>(bytes) < sockets::bytes_of(message.msg_hdr)) break;  // as the kernel
  }
  return static_cast<int>(sent);
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
