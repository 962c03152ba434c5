#include "shim/socket/api/connections.h"

#include <sys/mman.h>

#include <utility>

#include "shim/socket/api/descriptors.h"

namespace mercury::sockets {
namespace {

constexpr size_t kFirstSlots = 64;

// Cookies are consecutive numbers; neighbours are kept apart from runs of them by the upper bits.
size_t place_of(uint64_t cookie) { return static_cast<size_t>(cookie * 0x9e3779b97f4a7c15U >> 32); }

OwnConnection* new_slots(size_t count) {
  if (count == 0) return nullptr;
  void* const memory = ::mmap(nullptr, count * sizeof(OwnConnection), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<OwnConnection*>(memory);  // cookies are 0
}

void free_slots(OwnConnection* slots, size_t count) {
  if (slots) ::munmap(slots, count * sizeof *slots);
}

}  // namespace

OwnConnection* Connections::Slots::find(uint64_t cookie) const {
  for (size_t place = place_of(cookie);; ++place) {
    OwnConnection& slot = at[place & (count - 1)];
    if (slot.cookie == cookie || slot.cookie == 0) return &slot;
  }
}

bool Connections::add(const OwnConnection& connection) {
  const QuietLock lock(mutex_);
  const auto used = [this] { return used_.load(std::memory_order_relaxed); };
  if (used() * 2 >= slots_.count) {
    sweep();
    if (used() * 4 >= slots_.count && !grow() && used() + 1 >= slots_.count) return false;
  }
  *slots_.find(connection.cookie) = connection;
  note(connection.cookie, &connection);
  used_.fetch_add(1, std::memory_order_relaxed);
  if (connection.on_host) any_on_host_.store(true, std::memory_order_relaxed);
  return true;
}

void Connections::note(uint64_t cookie, const OwnConnection* connection) {
  const Kind kind = !connection           ? Kind::kNone
                    : connection->on_host ? Kind::kOnHost
                                          : Kind::kOfOthers;
  lately(cookie).store(answer(cookie, kind), std::memory_order_relaxed);
}

std::optional<OwnConnection> Connections::find(uint64_t cookie) {
  if (empty()) return std::nullopt;
  if (lately(cookie).load(std::memory_order_relaxed) == answer(cookie, Kind::kNone)) {
    return std::nullopt;
  }
  const QuietLock lock(mutex_);
  const OwnConnection* const slot = slots_.find(cookie);
  const bool found = slot->cookie != 0;
  note(cookie, found ? slot : nullptr);
  if (!found) return std::nullopt;
  return *slot;
}

bool Connections::is_on_host(uint64_t cookie) {
  const uint64_t known = lately(cookie).load(std::memory_order_relaxed);
  if (known == answer(cookie, Kind::kOnHost)) return true;
  if (known == answer(cookie, Kind::kNone) || known == answer(cookie, Kind::kOfOthers)) {
    return false;
  }
  const auto connection = find(cookie);
  return connection && connection->on_host;
}

void Connections::set_ended(uint64_t cookie) {
  const QuietLock lock(mutex_);
  OwnConnection* const slot = slots_.find(cookie);
  if (slot->cookie != 0) slot->ended = true;
}

void Connections::set_finished(uint64_t cookie, bool finished) {
  const QuietLock lock(mutex_);
  OwnConnection* const slot = slots_.find(cookie);
  if (slot->cookie != 0) slot->finished = finished;
}

void Connections::set_value(uint64_t cookie, size_t row, int value) {
  const QuietLock lock(mutex_);
  OwnConnection* const slot = slots_.find(cookie);
  if (slot->cookie != 0) slot->values[row] = value;
}

// Those behind it that would be looked for from here, or from before it, move up.
void Connections::Slots::erase(size_t place) {
  const size_t mask = count - 1;
  at[place] = {};
  for (size_t next = (place + 1) & mask; at[next].cookie != 0; next = (next + 1) & mask) {
    const size_t wanted = place_of(at[next].cookie) & mask;
    if (((next - wanted) & mask) < ((next - place) & mask)) continue;
    at[place] = at[next];
    at[next] = {};
    place = next;
  }
}

// Only those stay that some descriptor still has. Where nobody knows what is open, all stay.
void Connections::sweep() {
  const auto mark = [](void* context, int fd) {
    const auto cookie = cookie_of(fd);
    OwnConnection* const slot = cookie ? static_cast<Slots*>(context)->find(*cookie) : nullptr;
    if (slot && slot->cookie != 0) slot->open = true;
  };
  if (slots_.count == 0) return;
  // Twice: a connection that is on its way from one descriptor to another, as adopt() moves it, may
  // be missed once.
  const bool known = for_each_descriptor(mark, &slots_) && for_each_descriptor(mark, &slots_);
  for (size_t place = 0; known && place < slots_.count; ++place) {
    while (slots_.at[place].cookie != 0 && !slots_.at[place].open) {
      slots_.erase(place);
      used_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  for (size_t place = 0; place < slots_.count; ++place) {
    if (slots_.at[place].open) slots_.at[place].open = false;
  }
}

bool Connections::grow() {
  const size_t count = slots_.count == 0 ? kFirstSlots : slots_.count * 2;
  const Slots larger{new_slots(count), count};
  if (!larger.at) return false;
  for (size_t i = 0; i < slots_.count; ++i) {
    if (slots_.at[i].cookie != 0) *larger.find(slots_.at[i].cookie) = slots_.at[i];
  }
  free_slots(slots_.at, slots_.count);
  slots_ = larger;
  return true;
}

}  // namespace mercury::sockets
