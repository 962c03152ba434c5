// mercury_read, mercury_readv, mercury_recv, mercury_recvfrom, mercury_recvmsg, mercury_recvmmsg.
//
// All but what gets no byte is the kernel's alone. No destructor is on the way while the kernel
// waits: a thread that is cancelled there unwinds through here.
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>

#include "shim/socket/api/ended.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

// The kernel said 0: the end, if anything had room; or it failed.
[[gnu::cold]] ssize_t nothing_read(int fd, ssize_t got) {
  if (got < 0 && errno != ECONNRESET) return got;
  ErrnoKept kept;
  if (got < 0) {  // the pair's own, of a peer that closed before it had read everything
    both_ended(fd);
    return got;
  }
  const int error = ended_why(fd);
  return error == 0 ? 0 : kept.fail(error);
}

size_t room_of(const iovec* parts, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

// No urgent byte and no queue of errors is ever there, and a pair would read its bytes instead. 0:
// not asked for, or none of Mercury's.
int refuse(int fd, int flags) {
  if ((flags & (MSG_OOB | MSG_ERRQUEUE)) == 0) [[likely]]
    return 0;
  const ErrnoKept kept;
  if (!process().find(fd)) return 0;
  return (flags & MSG_OOB) != 0 ? EINVAL : EAGAIN;
}

ssize_t refused(int error) {
  errno = error;
  return -1;
}

}  // namespace
}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

ssize_t mercury_read(int fd, void* data, size_t bytes) {
  const ssize_t got = sockets::libc().read(fd, data, bytes);
  if (got > 0 || bytes == 0) [[likely]]
    return got;
  return sockets::nothing_read(fd, got);
}

ssize_t mercury_readv(int fd, const iovec* parts, int count) {
  const ssize_t got = sockets::libc().readv(fd, parts, count);
  if (got > 0 || count <= 0 ||
      (got == 0 && sockets::room_of(parts, static_cast<size_t>(count)) == 0)) {
    return got;
  }
  return sockets::nothing_read(fd, got);
}

ssize_t mercury_recv(int fd, void* data, size_t bytes, int flags) {
  if (const int error = sockets::refuse(fd, flags); error != 0) return sockets::refused(error);
  const ssize_t got = sockets::libc().recv(fd, data, bytes, flags);
  if (got > 0 || bytes == 0) [[likely]]
    return got;
  return sockets::nothing_read(fd, got);
}

ssize_t mercury_recvfrom(int fd, void* data, size_t bytes, int flags, sockaddr* from,
                         socklen_t* length) {
  if (const int error = sockets::refuse(fd, flags); error != 0) return sockets::refused(error);
  const ssize_t got = sockets::libc().recvfrom(fd, data, bytes, flags, from, length);
  if (got > 0 || bytes == 0) [[likely]]
    return got;
  return sockets::nothing_read(fd, got);
}

ssize_t mercury_recvmsg(int fd, msghdr* message, int flags) {
  if (const int error = sockets::refuse(fd, flags); error != 0) return sockets::refused(error);
  const ssize_t got = sockets::libc().recvmsg(fd, message, flags);
  if (got > 0 || (got == 0 && sockets::room_of(message->msg_iov, message->msg_iovlen) == 0))
      [[likely]]
    return got;
  return sockets::nothing_read(fd, got);
}

int mercury_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* patience) {
  if (const int error = sockets::refuse(fd, flags); error != 0) {
    return static_cast<int>(sockets::refused(error));
  }
  const int got = sockets::libc().recvmmsg(fd, messages, count, flags, patience);
  if (got <= 0) return got == 0 ? 0 : static_cast<int>(sockets::nothing_read(fd, got));
  // A stream's end fills every message behind it with nothing.
  int whole = 0;
  while (whole < got && (messages[whole].msg_len != 0 ||
                         sockets::room_of(messages[whole].msg_hdr.msg_iov,
                                          messages[whole].msg_hdr.msg_iovlen) == 0)) {
    ++whole;
  }
  // What came before the end is told first, and the end by the next call.
  if (whole == got || whole > 0) return whole;
  return sockets::nothing_read(fd, 0) == 0 ? got : -1;
}
