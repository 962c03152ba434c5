// mercury_shutdown.
#include <sys/socket.h>

#include <cerrno>

#include "shim/socket/api/adopt.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/process.h"

namespace sockets = mercury::sockets;

namespace {

// By TCP who has heard of an end in order is told no reset that follows.
void ends_in_order(const sockets::OwnConnection& connection) {
  sockets::Request request = sockets::request_about(sockets::RequestKind::kSet, connection);
  request.option = sockets::Option::kAbort;
  sockets::process().ask(request);
}

}  // namespace

// Whoever waits is woken by the kernel's, and is to be told EPOLLHUP then if the peer has ended.
int mercury_shutdown(int fd, int how) {
  sockets::OwnProcess& own = sockets::process();
  if (how == SHUT_RD || !own.connections.any_on_host()) return sockets::libc().shutdown(fd, how);
  sockets::ErrnoKept kept;
  const auto connection = own.find(fd);
  const bool finishes = connection && !connection->finished;
  if (finishes) own.connections.set_finished(connection->cookie, true);
  const int rc = sockets::libc().shutdown(fd, how);
  if (rc == 0) {
    if (connection && connection->on_host && sockets::resets_on_close(fd)) {
      ends_in_order(*connection);
    }
    return 0;
  }
  const int error = errno;
  if (finishes) own.connections.set_finished(connection->cookie, false);
  return kept.fail(error);
}
