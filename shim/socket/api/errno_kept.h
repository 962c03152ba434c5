// Calls that succeed leave errno as it was, whatever was asked on the way.
#pragma once

#include <cerrno>

namespace mercury::sockets {

class ErrnoKept {
 public:
  ErrnoKept() : errno_(errno) {}
  ~ErrnoKept() { errno = errno_; }
  ErrnoKept(const ErrnoKept&) = delete;
  ErrnoKept& operator=(const ErrnoKept&) = delete;
  // What errno is afterwards instead; -1, as calls return it.
  int fail(int error) {
    errno_ = error;
    return -1;
  }

 private:
  int errno_;
};

}  // namespace mercury::sockets
