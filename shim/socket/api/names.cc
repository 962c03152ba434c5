// mercury_getsockname, mercury_getpeername.
#include <sys/socket.h>

#include <cerrno>

#include "shim/socket/api/address.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

using NameCall = int (*)(int, sockaddr*, socklen_t*);

int give_name(int fd, Endpoint OwnConnection::*name, NameCall kernels, sockaddr* address,
              socklen_t* length) {
  ErrnoKept kept;
  const auto connection = process().find(fd);
  if (!connection) {
    return kernels(fd, address, length) == 0 ? 0 : kept.fail(errno);
  }
  if (!address || !length) return kept.fail(EFAULT);
  if (static_cast<int>(*length) < 0) return kept.fail(EINVAL);
  give_address(connection->family, (*connection).*name, address, length);
  return 0;
}

}  // namespace
}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

int mercury_getsockname(int fd, sockaddr* address, socklen_t* length) {
  return sockets::give_name(fd, &sockets::OwnConnection::local, sockets::libc().getsockname,
                            address, length);
}

int mercury_getpeername(int fd, sockaddr* address, socklen_t* length) {
  return sockets::give_name(fd, &sockets::OwnConnection::remote, sockets::libc().getpeername,
                            address, length);
}
