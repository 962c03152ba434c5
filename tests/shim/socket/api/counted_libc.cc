// Stands in the place of shim/socket/api/libc_plain.cc.
#include "tests/shim/socket/api/counted_libc.h"

#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "shim/socket/api/libc.h"

namespace mercury {
namespace {

std::atomic<uint64_t> waits{0};
std::function<void()> when_taken, before_asked, when_asked;

void once(std::function<void()>& what) {
  if (const std::function<void()> then = std::exchange(what, nullptr)) then();
}
void error_taken() { once(when_taken); }

ssize_t recv_of_tests(int fd, void* data, size_t bytes, int flags) {
  const ssize_t got = ::recv(fd, data, bytes, flags);
  if (got > 0) return got;
  const int error = errno;
  error_taken();
  errno = error;
  return got;
}

int getsockopt_of_tests(int fd, int level, int name, void* value, socklen_t* length) {
  const int rc = ::getsockopt(fd, level, name, value, length);
  if (rc == 0 && level == SOL_SOCKET && name == SO_ERROR) error_taken();
  return rc;
}

int epoll_ctl_of_tests(int epoll, int operation, int fd, epoll_event* event) {
  once(before_asked);
  const int rc = ::epoll_ctl(epoll, operation, fd, event);
  if (rc == 0) once(when_asked);
  return rc;
}

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

void when_an_error_is_taken(std::function<void()> then) { when_taken = std::move(then); }

void when_registered(std::function<void()> then) { when_asked = std::move(then); }

void before_registered(std::function<void()> then) { before_asked = std::move(then); }

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
      .getsockopt = getsockopt_of_tests,
      .setsockopt = ::setsockopt,
      .read = ::read,
      .readv = ::readv,
      .recv = recv_of_tests,
      .recvfrom = ::recvfrom,
      .recvmsg = ::recvmsg,
      .recvmmsg = ::recvmmsg,
      .send = ::send,
      .sendto = ::sendto,
      .sendmsg = ::sendmsg,
      .sendmmsg = ::sendmmsg,
      .write = ::write,
      .writev = ::writev,
      .sendfile = ::sendfile,
      .shutdown = ::shutdown,
      .poll = Counted<::poll>::call,
      .ppoll = Counted<::ppoll>::call,
      .epoll_create = ::epoll_create,
      .epoll_create1 = ::epoll_create1,
      .epoll_ctl = epoll_ctl_of_tests,
      .epoll_wait = Counted<::epoll_wait>::call,
      .epoll_pwait = Counted<::epoll_pwait>::call,
      .epoll_pwait2 = Counted<::epoll_pwait2>::call,
  };
  return kLibc;
}

}  // namespace sockets
}  // namespace mercury
