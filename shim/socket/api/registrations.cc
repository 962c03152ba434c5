#include "shim/socket/api/registrations.h"

#include <poll.h>
#include <sys/mman.h>

#include <cerrno>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

constexpr size_t kFirstRegistrations = 128;
// So many threads may have been woken before it was quiet; and who spins does so for milliseconds.
constexpr uint32_t kMostRepeats = 1024;

// It is still that connection, whatever has been closed meanwhile, and it is this that has hung up.
bool is_hung_up(int fd, uint64_t cookie) {
  if (cookie_of(fd) != cookie) return false;
  pollfd asked{fd, 0, 0};
  return libc().poll(&asked, 1, 0) == 1 && (asked.revents & POLLHUP) != 0;
}

}  // namespace

// Numbers of descriptors are consecutive, and so are places in memory; the upper bits of the
// product depend on all of them.
Registrations::Place& Registrations::bucket(std::array<Place, kBuckets>& buckets, uint64_t key) {
  return buckets[key * 0x9e3779b97f4a7c15U >> 48];
}

Registrations::Registration* Registrations::find(int epoll, int fd) {
  for (Place at = bucket(by_fd_, static_cast<uint64_t>(fd)); at != 0; at = slots_[at].next_by_fd) {
    if (slots_[at].epoll == epoll && slots_[at].fd == fd) return &slots_[at];
  }
  return nullptr;
}

bool Registrations::grow() {
  const size_t count = count_ == 0 ? kFirstRegistrations : count_ * 2;
  void* const memory = count_ == 0
                           ? ::mmap(nullptr, count * sizeof(Registration), PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                           : ::mremap(slots_, count_ * sizeof(Registration),
                                      count * sizeof(Registration), MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) return false;
  slots_ = static_cast<Registration*>(memory);
  for (size_t at = count - 1; at >= count_ && at != 0; --at) {
    slots_[at] = {};
    slots_[at].next_by_fd = free_;
    free_ = static_cast<Place>(at);
  }
  count_ = count;
  return true;
}

Registrations::Registration* Registrations::take() {
  if (free_ == 0) {
    // The kernel has forgotten what was closed.
    erase_if([](const Registration& slot) { return cookie_of(slot.fd) != slot.cookie; });
    if (used_ * 2 >= count_ && !grow() && free_ == 0) return nullptr;
  }
  Registration& slot = slots_[free_];
  free_ = slot.next_by_fd;
  ++used_;
  return &slot;
}

void Registrations::erase(Registration& slot) {
  const auto place = static_cast<Place>(&slot - slots_);
  Place* at = &bucket(by_fd_, static_cast<uint64_t>(slot.fd));
  while (*at != place) at = &slots_[*at].next_by_fd;
  *at = slot.next_by_fd;
  at = &bucket(by_data_, slot.event.data.u64);
  while (*at != place) at = &slots_[*at].next_by_data;
  *at = slot.next_by_data;
  slot = {};
  slot.next_by_fd = free_;
  free_ = place;
  --used_;
}

template <class Gone>
void Registrations::erase_if(Gone gone) {
  for (size_t at = 1; at < count_; ++at) {
    if (slots_[at].cookie != 0 && gone(slots_[at])) erase(slots_[at]);
  }
}

// Without memory nothing is remembered, and its EPOLLHUP is told as the pair has it.
void Registrations::remember(uint64_t cookie, int epoll, int fd, const epoll_event& event) {
  if (Registration* const old = find(epoll, fd)) erase(*old);
  Registration* const slot = take();
  if (!slot) return;
  const auto place = static_cast<Place>(slot - slots_);
  Place& by_fd = bucket(by_fd_, static_cast<uint64_t>(fd));
  Place& by_data = bucket(by_data_, event.data.u64);
  *slot = {cookie, epoll, fd, event, false, false, 0, by_fd, by_data};
  by_fd = by_data = place;
}

int Registrations::control(uint64_t cookie, int epoll, int operation, int fd, epoll_event* event) {
  const QuietLock lock(mutex_);
  const int rc = libc().epoll_ctl(epoll, operation, fd, event);
  if (rc != 0) return rc;
  if (operation == EPOLL_CTL_DEL) {
    if (Registration* const slot = find(epoll, fd)) erase(*slot);
  } else {
    remember(cookie, epoll, fd, *event);
  }
  return rc;
}

int Registrations::add_other(int epoll, int fd, epoll_event* event) {
  const QuietLock lock(mutex_);
  return libc().epoll_ctl(epoll, EPOLL_CTL_ADD, fd, event);
}

void Registrations::forget(int epoll) {
  const QuietLock lock(mutex_);
  erase_if([epoll](const Registration& slot) { return slot.epoll == epoll; });
}

int Registrations::translate(int epoll, epoll_event* events, int count, bool again) {
  const QuietLock lock(mutex_);
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    epoll_event event = events[i];
    if ((event.events & EPOLLHUP) != 0) event.events = told(epoll, event, again);
    if (event.events != 0) events[kept++] = event;
  }
  return kept;
}

// Several may have the same data; nobody can tell which of them this is about.
uint32_t Registrations::told(int epoll, const epoll_event& event, bool again) {
  uint32_t told = 0;
  bool found = false;
  Place next = 0;
  for (Place at = bucket(by_data_, event.data.u64); at != 0; at = next) {
    Registration& slot = slots_[at];
    next = slot.next_by_data;
    if (slot.epoll != epoll || slot.event.data.u64 != event.data.u64) continue;
    if (!is_hung_up(slot.fd, slot.cookie)) continue;
    found = true;
    if (!again) slot.repeats = 0;
    told |= told_of(slot, event.events);
  }
  return found ? told : event.events;
}

uint32_t Registrations::told_of(Registration& slot, uint32_t events) {
  if (slot.spent && bears_repeat(slot)) return 0;
  OwnProcess& own = process();
  const auto connection = own.connections.find(slot.cookie);
  if (!connection) return events;
  uint32_t told = events & (slot.event.events | EPOLLERR | EPOLLHUP);
  if ((told & EPOLLERR) != 0) {
    own.connections.set_finished(slot.cookie, true);  // it was reset: TCP says both
  } else if (!connection->finished) {
    told &= ~uint32_t{EPOLLHUP};
  }
  if (told == 0) {
    if (quieten(slot)) return 0;
    told = events;
  }
  wake(slot);
  return told;
}

bool Registrations::quieten(Registration& slot) {
  const uint32_t asked = slot.event.events;
  const bool only_what_is_new = (asked & EPOLLET) != 0 && (asked & EPOLLONESHOT) == 0;
  if (slot.as_edges || only_what_is_new) return bears_repeat(slot);
  epoll_event edges = slot.event;
  edges.events = (asked & ~uint32_t{EPOLLONESHOT}) | EPOLLET;
  slot.as_edges = libc().epoll_ctl(slot.epoll, EPOLL_CTL_MOD, slot.fd, &edges) == 0;
  return slot.as_edges;
}

// False: the kernel has it otherwise than it was left, so wake() shall ask for it again.
bool Registrations::bears_repeat(Registration& slot) {
  if (++slot.repeats <= kMostRepeats) return true;
  slot.as_edges = true;
  return false;
}

void Registrations::wake(Registration& slot) {
  slot.repeats = 0;
  if (!slot.as_edges) return;
  epoll_event asked = slot.event;
  slot.spent = (asked.events & EPOLLONESHOT) != 0;
  if (slot.spent) asked.events = EPOLLONESHOT;
  libc().epoll_ctl(slot.epoll, EPOLL_CTL_MOD, slot.fd, &asked);
  slot.as_edges = false;
}

}  // namespace mercury::sockets
