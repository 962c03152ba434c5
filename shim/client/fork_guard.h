// Tells a forked child from the process that attached: a page that the kernel wipes on fork, clone
// and vfork alike, which an atfork handler would not see.
#pragma once

#include <cstdint>

namespace mercury::client {

class ForkGuard {
 public:
  ForkGuard();  // remembers the process it is made in
  bool in_child() const noexcept;

 private:
  uint64_t cookie_;
};

}  // namespace mercury::client
