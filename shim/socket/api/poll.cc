// mercury_poll_fds, mercury_ppoll.
//
// No destructor is on the way while the kernel waits: a thread that is cancelled there unwinds
// through here.
#include <poll.h>

#include <algorithm>

#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/held_signals.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/patience.h"
#include "shim/socket/api/process.h"
#include "shim/socket/api/quiet_ends.h"

namespace mercury::sockets {
namespace {

// POLLHUP says that the peer has closed its end, and this side goes on.
bool is_early(const pollfd& entry) {
  if ((entry.revents & POLLHUP) == 0 || entry.fd < 0) return false;
  OwnProcess& own = process();
  const auto connection = own.find(entry.fd);
  if (!connection || !connection->on_host || connection->finished) return false;
  if ((entry.revents & POLLERR) == 0) return true;
  own.connections.set_finished(connection->cookie, true);  // it was reset: TCP says both
  return false;
}

// Takes out of what poll() got what TCP would not say, and calls nothing_left(place) for whom it
// has nothing else to say, which answers whether that can be told by nothing. What poll() is to
// return.
template <class NothingLeft>
int translate(pollfd* fds, nfds_t count, int got, NothingLeft nothing_left) {
  const ErrnoKept kept;
  for (nfds_t i = 0; i < count; ++i) {
    if (!is_early(fds[i])) continue;
    if (fds[i].revents != POLLHUP) {
      fds[i].revents &= static_cast<short>(~POLLHUP);
    } else if (nothing_left(i)) {
      fds[i].revents = 0;
      --got;
    }
  }
  return got;
}

struct Waited {
  pollfd* fds;
  nfds_t count;
  const Patience& patience;
  const sigset_t* mask;
};

// What there is to tell now of what poll() was asked.
int look(const Waited& asked, QuietEnds& quiet) {
  const int got = libc().poll(asked.fds, asked.count, 0);
  if (got <= 0) return got;
  return translate(asked.fds, asked.count, got, [&](nfds_t i) { return quiet.leave_out(i); });
}

// Nothing can be kept from the program, for want of a descriptor or of memory.
int as_the_kernel(const Waited& asked, const HeldSignals& held) {
  timespec left;
  return libc().ppoll(asked.fds, asked.count, asked.patience.left(left),
                      held.while_waiting(asked.mask));
}

// All that poll() said of has nothing to tell.
int wait_on(const Waited& asked, const HeldSignals& held) {
  QuietEnds quiet;
  if (!quiet.open(asked.fds, asked.count)) return as_the_kernel(asked, held);
  int told = 0;
  while (true) {
    told = quiet.drain() ? look(asked, quiet) : as_the_kernel(asked, held);
    if (told != 0 || asked.patience.is_spent()) break;
    timespec left;
    const int got = libc().ppoll(quiet.asked(), quiet.count(), asked.patience.left(left),
                                 held.while_waiting(asked.mask));
    if (got > 0) continue;
    told = got;
    break;
  }
  const ErrnoKept kept;
  quiet.close();
  return told;
}

[[gnu::cold]] int after_hang_up(int got, const Waited& asked) {
  HeldSignals held;
  held.hold();
  int told = translate(asked.fds, asked.count, got, [](nfds_t) { return true; });
  if (told == 0) told = wait_on(asked, held);
  held.release();
  return told;
}

int after(int got, const Waited& asked) {
  if (got <= 0 || !process().connections.any_on_host()) [[likely]]
    return got;
  const bool hung_up = std::any_of(asked.fds, asked.fds + asked.count, [](const pollfd& entry) {
    return (entry.revents & POLLHUP) != 0;
  });
  return hung_up ? after_hang_up(got, asked) : got;
}

}  // namespace
}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

int mercury_poll_fds(pollfd* fds, nfds_t count, int timeout_ms) {
  const sockets::Patience patience(timeout_ms);
  const int got = sockets::libc().poll(fds, count, timeout_ms);
  return sockets::after(got, {fds, count, patience, nullptr});
}

int mercury_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  const sockets::Patience patience(timeout);
  const int got = sockets::libc().ppoll(fds, count, timeout, mask);
  return sockets::after(got, {fds, count, patience, mask});
}
