#include "shim/socket/api/adopt.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {

bool resets_on_close(int fd) {
  linger asked{};
  socklen_t length = sizeof asked;
  return libc().getsockopt(fd, SOL_SOCKET, SO_LINGER, &asked, &length) == 0 && asked.l_onoff != 0 &&
         asked.l_linger == 0;
}

int adopt(const Replaced& socket, Asked asked) {
  OwnConnection connection;
  const int end = asked.end.get();
  const auto cookie = cookie_of(end);
  if (!cookie) return ENETDOWN;
  connection.cookie = *cookie;
  connection.id = asked.reply.id;
  connection.local = asked.reply.local;
  connection.remote = asked.reply.remote;
  connection.family = socket.family;
  connection.on_host = asked.reply.value == kBothEndsHere;
  // Another thread may have set more while the daemon was asked.
  OptionsToAsk options = socket.options;
  options.rows |= process().options.were_set();
  connection.values = read_values(socket.fd, socket.family, options);
  const OptionRows unlike = copy_options(socket.fd, end, options);
  if (socket.non_blocking) ::fcntl(end, F_SETFL, O_RDWR | O_NONBLOCK);
  if (!process().connections.add(connection)) return EMFILE;  // never ENOMEM: libzmq ends for it
  int rc;
  do {
    rc = ::dup3(end, socket.fd, socket.close_on_exec ? O_CLOEXEC : 0);
  } while (rc < 0 && (errno == EINTR || errno == EBUSY));
  if (rc < 0) return errno;
  if (unlike != 0 && resets_on_close(end)) {
    Request request = request_about(RequestKind::kSet, connection);
    request.option = Option::kAbort;
    request.value = 1;
    process().ask(request);
  }
  return 0;
}

}  // namespace mercury::sockets
