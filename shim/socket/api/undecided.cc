#include "shim/socket/api/undecided.h"

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/epoll.h"
#include "shim/socket/api/libc.h"

namespace mercury::sockets {

constinit std::array<std::atomic<uint64_t>, Undecided::kDescriptors> Undecided::hints_{};

int Undecided::family_of_new(int fd, uint64_t of) const {
  const Hint known = hint(fd);
  if (!is_new(known) || cookie(fd) != of) return AF_UNSPEC;
  return known == Hint::kNew6 ? AF_INET6 : AF_INET;
}

// It may do so once more.
void Undecided::listens(int fd, uint64_t of) {
  if (is_kernels(fd, of)) return;
  const bool known = cookie(fd) == of && (may_be(fd) || hint(fd) == Hint::kListens);
  set(fd, of, known ? Hint::kListens : Hint::kNone);
}

bool Undecided::made_here(int listener) const {
  return hint(listener) == Hint::kListens && cookie_of(listener) == cookie(listener);
}

Undecided::Registration* Undecided::slot_for(uint64_t cookie, int epoll, int fd) {
  Registration* free = nullptr;
  for (Registration& slot : registrations_) {
    if (slot.cookie == cookie && slot.epoll == epoll && slot.fd == fd) return &slot;
    if (slot.cookie == 0 && !free) free = &slot;
  }
  if (free) return free;
  for (Registration& slot : registrations_) {  // some were closed, or connected by the kernel
    if (may_be(slot.fd) && cookie_of(slot.fd) == slot.cookie && is_closed_tcp(slot.fd)) continue;
    slot = {};
    free = &slot;
  }
  return free;
}

void Undecided::registered(int epoll, int operation, int fd, const epoll_event* event) {
  const auto cookie = cookie_of(fd);
  // The number is something else's by now, or the kernel connects it.
  if (!cookie || family_of_new(fd, *cookie) == AF_UNSPEC || !is_closed_tcp(fd)) return remove(fd);
  const QuietLock lock(mutex_);
  any_registered_.store(true, std::memory_order_relaxed);
  Registration* const slot = slot_for(*cookie, epoll, fd);
  if (!slot) return remove(fd);
  if (operation == EPOLL_CTL_DEL || !event) {
    *slot = {};
  } else {
    *slot = {*cookie, epoll, fd, false, *event};
  }
}

uint64_t Undecided::take_out(int fd) {
  if (!any_registered_.load(std::memory_order_relaxed)) return 0;
  const uint64_t cookie = cookie_of(fd).value_or(0);
  const QuietLock lock(mutex_);
  for (Registration& slot : registrations_) {
    if (slot.cookie != cookie || slot.fd != fd) continue;
    epoll_event none{};
    // What is not there any more, or in an epoll that has closed, is not put back.
    slot.taken_out = libc().epoll_ctl(slot.epoll, EPOLL_CTL_DEL, fd, &none) == 0;
    if (!slot.taken_out) slot = {};
  }
  return cookie;
}

void Undecided::put_back(int fd, uint64_t cookie) {
  if (cookie == 0) return;
  const QuietLock lock(mutex_);
  for (Registration& slot : registrations_) {
    if (slot.cookie != cookie || slot.fd != fd) continue;
    if (slot.taken_out) control_epoll(slot.epoll, EPOLL_CTL_ADD, fd, &slot.event);
    slot = {};
  }
}

}  // namespace mercury::sockets
