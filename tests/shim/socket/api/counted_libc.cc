// Stands in the place of shim/socket/api/libc_plain.cc.
#include "tests/shim/socket/api/counted_libc.h"

#include <unistd.h>

#include <atomic>

#include "shim/socket/api/libc.h"

namespace mercury {
namespace {

std::atomic<uint64_t> waits{0};

template <auto function>
struct Counted;
template <class... Arguments, int (*function)(Arguments...)>
struct Counted<function> {
  static int call(Arguments... arguments) {
    waits.fetch_add(1, std::memory_order_relaxed);
    return function(arguments...);
  }
};

}  // namespace

uint64_t kernel_waits() { return waits.load(std::memory_order_relaxed); }

namespace sockets {

const Libc& libc() {
  static constexpr Libc kLibc = {
      .socket = ::socket,
      .listen = ::listen,
      .accept4 = ::accept4,
      .connect = ::connect,
      .getsockname = ::getsockname,
      .getpeername = ::getpeername,
      .getsockopt = ::getsockopt,
      .setsockopt = ::setsockopt,
      .read = ::read,
      .readv = ::readv,
      .recv = ::recv,
      .recvfrom = ::recvfrom,
      .recvmsg = ::recvmsg,
      .recvmmsg = ::recvmmsg,
      .send = ::send,
      .sendto = ::sendto,
      .sendmsg = ::sendmsg,
      .sendmmsg = ::sendmmsg,
      .shutdown = ::shutdown,
      .poll = Counted<::poll>::call,
      .ppoll = Counted<::ppoll>::call,
      .epoll_create = ::epoll_create,
      .epoll_create1 = ::epoll_create1,
      .epoll_ctl = ::epoll_ctl,
      .epoll_wait = Counted<::epoll_wait>::call,
      .epoll_pwait = Counted<::epoll_pwait>::call,
      .epoll_pwait2 = Counted<::epoll_pwait2>::call,
  };
  return kLibc;
}

}  // namespace sockets
}  // namespace mercury
