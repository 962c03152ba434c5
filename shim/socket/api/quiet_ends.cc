#include "shim/socket/api/quiet_ends.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "shim/socket/api/libc.h"

namespace mercury::sockets {

bool QuietEnds::open(const pollfd* asked, nfds_t count) {
  programs_ = asked;
  count_ = count;
  asked_ = few_.data();
  if (count >= kFew) {
    void* const memory = ::mmap(nullptr, (count + 1) * sizeof(pollfd), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    asked_ = static_cast<pollfd*>(memory);
  }
  if (renew()) return true;
  close();
  return false;
}

// An epoll has no name. That this thread owns it tells it from whatever gets its number later; an
// owner that asks for no signals gets none.
bool QuietEnds::renew() {
  epoll_ = libc().epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return false;
  const f_owner_ex self{.type = F_OWNER_TID, .pid = ::gettid()};
  if (::fcntl(epoll_, F_SETOWN_EX, &self) != 0) {
    ::close(std::exchange(epoll_, -1));
    return false;
  }
  std::copy(programs_, programs_ + count_, asked_);
  asked_[count_] = {epoll_, POLLIN, 0};
  return true;
}

bool QuietEnds::is_ours() const {
  f_owner_ex owner{};
  return epoll_ >= 0 && ::fcntl(epoll_, F_GETOWN_EX, &owner) == 0 && owner.type == F_OWNER_TID &&
         owner.pid == ::gettid();
}

bool QuietEnds::leave_out(nfds_t place) {
  const int fd = asked_[place].fd;
  if (fd < 0) return true;
  const auto add = [this, fd] {
    epoll_event any{.events = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                    .data = {.fd = fd}};
    // The same descriptor may be asked for twice.
    return libc().epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &any) == 0 || errno == EEXIST;
  };
  if (!add() && (is_ours() || !renew() || !add())) return false;
  asked_[place].fd = -1;
  return true;
}

bool QuietEnds::drain() {
  if (!is_ours()) return renew();
  std::array<epoll_event, 16> events;
  int got = 0;
  do {
    got = libc().epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  } while (got > 0);
  return got == 0 || errno == EINTR || renew();
}

void QuietEnds::close() {
  if (asked_ != few_.data()) ::munmap(asked_, (count_ + 1) * sizeof(pollfd));
  if (is_ours()) ::close(epoll_);
}

}  // namespace mercury::sockets
