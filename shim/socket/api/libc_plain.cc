#include <sys/sendfile.h>
#include <unistd.h>

#include "shim/socket/api/libc.h"

namespace mercury::sockets {

const Libc& libc() {
  static constexpr Libc kLibc = {
      ::socket,       ::listen,        ::accept4,   ::connect,    ::getsockname, ::getpeername,
      ::getsockopt,   ::setsockopt,    ::read,      ::readv,      ::recv,        ::recvfrom,
      ::recvmsg,      ::recvmmsg,      ::send,      ::sendto,     ::sendmsg,     ::sendmmsg,
      ::write,        ::writev,        ::sendfile,  ::shutdown,   ::poll,        ::ppoll,
      ::epoll_create, ::epoll_create1, ::epoll_ctl, ::epoll_wait, ::epoll_pwait, ::epoll_pwait2};
  return kLibc;
}

}  // namespace mercury::sockets
