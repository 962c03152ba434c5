// Wakes a thread that waits for a descriptor. Rung again before that thread has looked, it takes no
// call of the kernel.
//
// Owner/thread: any thread rings, one hears.
#pragma once

#include <sys/eventfd.h>

#include <atomic>

#include "shim/channel/unique_fd.h"

namespace mercury {

class Bell {
 public:
  Bell() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  int fd() const { return fd_.get(); }  // readable: it was rung; -1: no descriptor
  // After that for which the other is to look.
  void ring() {
    if (!rung_.exchange(true)) eventfd_write(fd_.get(), 1);
  }
  // Before it looks. Whoever rings between the two lines, and writes nothing, has what it has done
  // seen; who rings after them writes.
  void hear() {
    eventfd_t value;
    eventfd_read(fd_.get(), &value);
    rung_.exchange(false);
  }

 private:
  const UniqueFd fd_;
  std::atomic<bool> rung_{false};
};

}  // namespace mercury
