#include "shim/socket/api/ended.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "shim/socket/api/libc.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

// What the call was about says this of itself still. Another thread may have closed it meanwhile,
// and opened another by its number.
bool says(int fd, short event) {
  pollfd asked{fd, event, 0};
  return libc().poll(&asked, 1, 0) == 1 && (asked.revents & event) != 0;
}

}  // namespace

int ended_why(int fd) {
  OwnProcess& own = process();
  const auto connection = own.find(fd);
  if (!connection || connection->ended) return 0;
  if (!says(fd, POLLRDHUP)) return 0;
  if (connection->on_host && !says(fd, POLLHUP)) {  // in order, whatever its close() does then
    own.connections.set_ended(connection->cookie);
    return 0;
  }
  const Asked asked =
      own.daemon.ask(own.settings.path.data(), request_about(RequestKind::kEnded, *connection));
  own.connections.set_ended(connection->cookie);
  // Whose bytes passed through a daemon that is gone may have lost some.
  if (asked.error != 0) return connection->on_host ? 0 : ECONNRESET;
  if (asked.reply.kind == ReplyKind::kFailed) return errno_in(asked.reply);
  constexpr uint32_t kMostErrno = 4095;
  const int error =
      asked.reply.value > kMostErrno ? ECONNRESET : static_cast<int>(asked.reply.value);
  if (error != 0) both_ended(fd);
  return error;
}

// One that waits may have been made quiet between the kernel's letting go of the error and this:
// shutdown() wakes it, and says nothing to a peer that is gone. By a copy, whose number nobody else
// knows and closes.
void both_ended(int fd) {
  OwnProcess& own = process();
  if (!own.connections.any_on_host()) return;
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  const int known = copy >= 0 ? copy : fd;
  const auto connection = own.find(known);
  if (connection && connection->on_host && !connection->finished && says(known, POLLHUP)) {
    own.connections.set_finished(connection->cookie, true);
    libc().shutdown(known, SHUT_WR);
  }
  if (copy >= 0) ::close(copy);
}

}  // namespace mercury::sockets
