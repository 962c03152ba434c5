// Signals that come while it is looked at what a wait got: they are kept for the wait's next turn
// in the kernel, and end it there, as they would have ended the one wait that the program asked
// for.
//
// Owner/thread: the one that waits. Has no destructor: a thread may be cancelled while the kernel
// waits, and ends with the signals held.
#pragma once

#include <signal.h>

#include "shim/socket/api/errno_kept.h"

namespace mercury::sockets {

class HeldSignals {
 public:
  void hold() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  // The mask of a wait for which the program gave `asked`, or none.
  const sigset_t* while_waiting(const sigset_t* asked) const { return asked ? asked : &before_; }
  // Handlers of what has come run here, and may set errno.
  void release() {
    const ErrnoKept kept;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_;
};

}  // namespace mercury::sockets
