#include "shim/socket/api/ended.h"

#include <sys/socket.h>

#include <cerrno>

#include "shim/socket/api/libc.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {

int ended_why(int fd) {
  OwnProcess& own = process();
  const auto connection = own.find(fd);
  if (!connection || connection->ended) return 0;
  Request request;
  request.kind = RequestKind::kEnded;
  request.id = connection->id;
  const Asked asked = own.daemon.ask(own.settings.path.data(), request);
  own.connections.set_ended(connection->cookie);
  // Whose bytes passed through a daemon that is gone may have lost some.
  if (asked.error != 0) return connection->on_host ? 0 : ECONNRESET;
  if (asked.reply.kind == ReplyKind::kFailed) return errno_in(asked.reply);
  constexpr uint32_t kMostErrno = 4095;
  return asked.reply.value > kMostErrno ? ECONNRESET : static_cast<int>(asked.reply.value);
}

// One that waits may have been made quiet between the kernel's letting go of the error and this:
// shutdown() wakes it, and says nothing to a peer that is gone.
void took_reset(int fd, const OwnConnection& connection) {
  process().connections.set_finished(connection.cookie, true);
  if (connection.on_host && !connection.finished) libc().shutdown(fd, SHUT_WR);
}

}  // namespace mercury::sockets
