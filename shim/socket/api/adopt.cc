#include "shim/socket/api/adopt.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/option_rows.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {

bool resets_on_close(int fd) {
  linger asked{};
  socklen_t length = sizeof asked;
  return libc().getsockopt(fd, SOL_SOCKET, SO_LINGER, &asked, &length) == 0 && asked.l_onoff != 0 &&
         asked.l_linger == 0;
}

uint8_t kernel_priority(int fd, int family) {
  const int traffic_class = family == AF_INET6
                                ? option_of(fd, IPPROTO_IPV6, IPV6_TCLASS).value_or(0)
                                : option_of(fd, IPPROTO_IP, IP_TOS).value_or(0);
  return priority_of(option_of(fd, SOL_SOCKET, SO_PRIORITY).value_or(0), traffic_class);
}

int adopt(int fd, int family, Asked asked, bool close_on_exec) {
  OwnConnection connection;
  const int end = asked.end.get();
  const auto cookie = cookie_of(end);
  if (!cookie) return ENETDOWN;
  connection.cookie = *cookie;
  connection.id = asked.reply.id;
  connection.local = asked.reply.local;
  connection.remote = asked.reply.remote;
  connection.family = family;
  connection.on_host = asked.reply.value == kBothEndsHere;
  connection.values = read_values(fd, family);
  copy_options(fd, end);
  if (!process().connections.add(connection)) return EMFILE;  // never ENOMEM: libzmq ends for it
  int rc;
  do {
    rc = ::dup3(end, fd, close_on_exec ? O_CLOEXEC : 0);
  } while (rc < 0 && (errno == EINTR || errno == EBUSY));
  if (rc < 0) return errno;
  if (resets_on_close(end)) {
    Request request = request_about(RequestKind::kSet, connection);
    request.option = Option::kAbort;
    request.value = 1;
    process().ask(request);
  }
  return 0;
}

}  // namespace mercury::sockets
