// A mutex that a signal's handler may need too: no handler runs on the thread that holds it.
//
// Shape: constant-initialised and never destroyed, so that calls before main and after it work.
#pragma once

#include <mutex>

#include "transport/base/signal_block.h"

namespace mercury::sockets {

using QuietMutex = std::mutex;

class QuietLock {
 public:
  explicit QuietLock(QuietMutex& mutex) : lock_(mutex) {}

 private:
  SignalBlock blocked_;  // first to come, last to go
  std::lock_guard<QuietMutex> lock_;
};

}  // namespace mercury::sockets
