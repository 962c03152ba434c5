// Blocks all signals while it lives, so that threads made meanwhile inherit that: the program's
// signal handlers run on the program's threads, and none runs while a lock is held that it needs.
#pragma once

#include <signal.h>

namespace mercury {

class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~SignalBlock() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t old_;
};

}  // namespace mercury
