#include "shim/socket/api/quiet_ends.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "shim/socket/api/libc.h"

namespace mercury::sockets {

bool QuietEnds::open(const pollfd* asked, nfds_t count) {
  count_ = count;
  asked_ = few_.data();
  epoll_ = libc().epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return false;
  if (count >= kFew) {
    void* const memory = ::mmap(nullptr, (count + 1) * sizeof(pollfd), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      ::close(epoll_);
      return false;
    }
    asked_ = static_cast<pollfd*>(memory);
  }
  std::copy(asked, asked + count, asked_);
  asked_[count] = {epoll_, POLLIN, 0};
  return true;
}

bool QuietEnds::leave_out(nfds_t place) {
  const int fd = asked_[place].fd;
  if (fd < 0) return true;
  epoll_event any{.events = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                  .data = {.fd = fd}};
  // The same descriptor may be asked for twice.
  if (libc().epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &any) != 0 && errno != EEXIST) return false;
  asked_[place].fd = -1;
  return true;
}

bool QuietEnds::drain() {
  std::array<epoll_event, 16> events;
  int got = 0;
  do {
    got = libc().epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  } while (got > 0);
  lost_ = got < 0 && errno != EINTR;
  return !lost_;
}

void QuietEnds::close() {
  if (asked_ != few_.data()) ::munmap(asked_, (count_ + 1) * sizeof(pollfd));
  if (!lost_) ::close(epoll_);
}

}  // namespace mercury::sockets
