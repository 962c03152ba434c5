// mercury_epoll_create, mercury_epoll_create1, mercury_epoll_ctl, mercury_epoll_wait,
// mercury_epoll_pwait, mercury_epoll_pwait2.
//
// No destructor is on the way while the kernel waits: a thread that is cancelled there unwinds
// through here.
#include "shim/socket/api/epoll.h"

#include <algorithm>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/patience.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

bool says_hang_up(const epoll_event* events, int count) {
  return std::any_of(events, events + count,
                     [](const epoll_event& event) { return (event.events & EPOLLHUP) != 0; });
}

[[gnu::cold]] int translate(int epoll, epoll_event* events, int count) {
  const ErrnoKept kept;
  return process().registrations.translate(epoll, events, count);
}

// Made quiet, a registration is said once more; then the epoll has nothing, as one that it waits in
// is to see.
constexpr int kLooksWithoutTime = 2;

// Calls wait(again) until there is something to tell, or no time. Where `most` were said there may
// be more behind them.
template <class Wait>
int wait_in(int epoll, epoll_event* events, int most, const Patience& patience, Wait wait) {
  int got = wait(false);
  int late = 0;
  while (got > 0 && process().connections.any_on_host() && says_hang_up(events, got)) {
    const int told = translate(epoll, events, got);
    if (told > 0) return told;
    if (got < most && patience.is_spent() && ++late > kLooksWithoutTime) return 0;
    got = wait(true);
  }
  return got;
}

int made(int epoll) {
  if (epoll < 0 || !process().connections.any_on_host()) return epoll;
  const ErrnoKept kept;
  process().registrations.forget(epoll);
  return epoll;
}

}  // namespace

int control_epoll(int epoll, int operation, int fd, epoll_event* event) {
  OwnProcess& own = process();
  if (!own.connections.any_on_host()) [[likely]]
    return libc().epoll_ctl(epoll, operation, fd, event);
  const int before = errno;
  const auto connection = own.find(fd);
  errno = before;
  return connection && connection->on_host
             ? own.registrations.control(connection->cookie, epoll, operation, fd, event)
             : libc().epoll_ctl(epoll, operation, fd, event);
}

}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

int mercury_epoll_create(int size) { return sockets::made(sockets::libc().epoll_create(size)); }
int mercury_epoll_create1(int flags) { return sockets::made(sockets::libc().epoll_create1(flags)); }

int mercury_epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  const int rc = sockets::control_epoll(epoll, operation, fd, event);
  if (rc != 0 || !sockets::process().undecided.may_be(fd)) [[likely]]
    return rc;
  const sockets::ErrnoKept kept;
  sockets::process().undecided.registered(epoll, operation, fd, event);
  return rc;
}

int mercury_epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  const sockets::Patience patience(timeout_ms);
  return sockets::wait_in(epoll, events, most, patience, [&](bool again) {
    return sockets::libc().epoll_wait(epoll, events, most, again ? patience.left_ms() : timeout_ms);
  });
}

int mercury_epoll_pwait(int epoll, epoll_event* events, int most, int timeout_ms,
                        const sigset_t* mask) {
  const sockets::Patience patience(timeout_ms);
  return sockets::wait_in(epoll, events, most, patience, [&](bool again) {
    return sockets::libc().epoll_pwait(epoll, events, most, again ? patience.left_ms() : timeout_ms,
                                       mask);
  });
}

int mercury_epoll_pwait2(int epoll, epoll_event* events, int most, const timespec* timeout,
                         const sigset_t* mask) {
  const sockets::Patience patience(timeout);
  timespec left;
  return sockets::wait_in(epoll, events, most, patience, [&](bool again) {
    return sockets::libc().epoll_pwait2(epoll, events, most, again ? patience.left(left) : timeout,
                                        mask);
  });
}
