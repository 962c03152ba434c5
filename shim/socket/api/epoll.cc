// mercury_epoll_create, mercury_epoll_create1, mercury_epoll_ctl, mercury_epoll_wait,
// mercury_epoll_pwait, mercury_epoll_pwait2.
//
// No destructor is on the way while the kernel waits: a thread that is cancelled there unwinds
// through here.
#include "shim/socket/api/epoll.h"

#include <algorithm>
#include <utility>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/held_signals.h"
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

int translate(int epoll, epoll_event* events, int count, bool again) {
  const ErrnoKept kept;
  return process().registrations.translate(epoll, events, count, again);
}

// Made quiet, a registration is said once more; then the epoll has nothing, as one that it waits in
// is to see.
constexpr int kLooksWithoutTime = 2;

// Waits again, by wait(held), until there is something to tell, or no time. Where `most` were said
// there may be more behind them.
template <class Wait>
[[gnu::cold]] int wait_on(int epoll, epoll_event* events, int got, int most,
                          const Patience& patience, Wait wait) {
  HeldSignals held;
  held.hold();
  bool again = false;
  for (int late = 0; got > 0 && says_hang_up(events, got); got = wait(held)) {
    const int told = translate(epoll, events, got, std::exchange(again, true));
    if (told > 0) {
      got = told;
      break;
    }
    if (got < most && patience.is_spent() && ++late > kLooksWithoutTime) {
      got = 0;
      break;
    }
  }
  held.release();
  return got;
}

// Of a hang-up that the kernel says first.
bool is_to_translate(const epoll_event* events, int got) {
  return got > 0 && process().connections.any_on_host() && says_hang_up(events, got);
}

int wait_on_ms(int epoll, epoll_event* events, int got, int most, const Patience& patience,
               const sigset_t* mask) {
  return wait_on(epoll, events, got, most, patience, [&](const HeldSignals& held) {
    return libc().epoll_pwait(epoll, events, most, patience.left_ms(), held.while_waiting(mask));
  });
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
  const auto cookie = cookie_of(fd);
  const bool on_host = cookie && own.connections.is_on_host(*cookie);
  errno = before;
  if (on_host) return own.registrations.control(*cookie, epoll, operation, fd, event);
  return operation == EPOLL_CTL_ADD ? own.registrations.add_other(epoll, fd, event)
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
  const int got = sockets::libc().epoll_wait(epoll, events, most, timeout_ms);
  if (!sockets::is_to_translate(events, got)) [[likely]]
    return got;
  return sockets::wait_on_ms(epoll, events, got, most, patience, nullptr);
}

int mercury_epoll_pwait(int epoll, epoll_event* events, int most, int timeout_ms,
                        const sigset_t* mask) {
  const sockets::Patience patience(timeout_ms);
  const int got = sockets::libc().epoll_pwait(epoll, events, most, timeout_ms, mask);
  if (!sockets::is_to_translate(events, got)) [[likely]]
    return got;
  return sockets::wait_on_ms(epoll, events, got, most, patience, mask);
}

int mercury_epoll_pwait2(int epoll, epoll_event* events, int most, const timespec* timeout,
                         const sigset_t* mask) {
  const sockets::Patience patience(timeout);
  const int got = sockets::libc().epoll_pwait2(epoll, events, most, timeout, mask);
  if (!sockets::is_to_translate(events, got)) [[likely]]
    return got;
  return sockets::wait_on(epoll, events, got, most, patience, [&](const sockets::HeldSignals& h) {
    timespec left;
    return sockets::libc().epoll_pwait2(epoll, events, most, patience.left(left),
                                        h.while_waiting(mask));
  });
}
