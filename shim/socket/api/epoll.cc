// mercury_epoll_ctl.
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/process.h"

namespace sockets = mercury::sockets;

int mercury_epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  const int rc = sockets::libc().epoll_ctl(epoll, operation, fd, event);
  if (rc != 0 || !sockets::process().undecided.may_be(fd)) [[likely]]
    return rc;
  const sockets::ErrnoKept kept;
  sockets::process().undecided.registered(epoll, operation, fd, event);
  return rc;
}
