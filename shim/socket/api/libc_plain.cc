#include <unistd.h>

#include "shim/socket/api/libc.h"

namespace mercury::sockets {

const Libc& libc() {
  static constexpr Libc kLibc = {
      ::socket,     ::listen, ::accept4, ::connect,  ::getsockname, ::getpeername, ::getsockopt,
      ::setsockopt, ::read,   ::readv,   ::recv,     ::recvfrom,    ::recvmsg,     ::recvmmsg,
      ::send,       ::sendto, ::sendmsg, ::sendmmsg, ::epoll_ctl};
  return kLibc;
}

}  // namespace mercury::sockets
