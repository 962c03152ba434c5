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
void tell_whether_it_resets(const sockets::OwnConnection& connection, bool resets) {
  sockets::Request request = sockets::request_about(sockets::RequestKind::kSet, connection);
  request.option = sockets::Option::kAbort;
  request.value = resets ? 1 : 0;
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
  // Before the peer is woken, which asks at once.
  const bool resets = connection && connection->on_host && sockets::resets_on_close(fd);
  if (resets) tell_whether_it_resets(*connection, false);
  if (sockets::libc().shutdown(fd, how) == 0) return 0;
  const int error = errno;
  if (resets && finishes) tell_whether_it_resets(*connection, true);
  if (finishes) own.connections.set_finished(connection->cookie, false);
  return kept.fail(error);
}
