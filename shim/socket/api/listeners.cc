#include "shim/socket/api/listeners.h"

#include <algorithm>
#include <cerrno>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/now.h"

namespace mercury::sockets {
namespace {

constexpr uint64_t kBetweenTriesNs = 1'000'000'000;
// A daemon takes longer to be started again; the listeners are told so much later at most.
constexpr uint64_t kBetweenLooksNs = 10'000'000;

}  // namespace

void Listeners::keep(const Own& own) {
  const size_t count = count_.load(std::memory_order_relaxed);
  const auto end = own_.begin() + static_cast<ptrdiff_t>(count);
  const auto known =
      std::find_if(own_.begin(), end, [&own](const Own& o) { return o.cookie == own.cookie; });
  if (known != end) {
    *known = own;
    return;
  }
  if (count == kMost) drop_closed();
  const size_t left = count_.load(std::memory_order_relaxed);
  if (left == kMost) return;
  own_[left] = own;
  count_.store(left + 1, std::memory_order_relaxed);
}

void Listeners::remember(const Own& own) {
  const QuietLock lock(mutex_);
  keep(own);
}

int Listeners::add(const char* path, const Own& own) {
  const QuietLock lock(mutex_);
  keep(own);
  return tell(path, own);
}

int Listeners::say(const char* path, const Own& own, Listening listening) {
  const QuietLock lock(mutex_);
  if (inherited_ || !link_.is_open()) {
    if (const int error = open(path); error != 0) return error;
  }
  return ask(own, listening);
}

int Listeners::ask(const Own& own, Listening listening) {
  Request request;
  request.kind = RequestKind::kListen;
  request.value = static_cast<uint32_t>(listening);
  request.local = own.local;
  request.cookie = own.cookie;
  request.v6_only = own.v6_only;
  const Asked asked = link_.ask(request);
  return is_other_namespace(asked) ? ENONET : asked.error;
}

int Listeners::tell(const char* path, const Own& own) {
  if (!inherited_ && link_.is_open()) return ask(own, Listening::kNow);
  return open(path);
}

// A connection of its own, on which all are told: a new one knows nothing of them.
int Listeners::open(const char* path) {
  if (inherited_) {
    link_.forget();
    inherited_ = false;
  }
  link_.close();
  next_try_ns_ = now_ns() + kBetweenTriesNs;
  if (const int error = link_.open(path); error != 0) return error;
  drop_closed();
  const size_t count = count_.load(std::memory_order_relaxed);
  int error = 0;
  for (size_t i = 0; i < count && error == 0; ++i) error = ask(own_[i], Listening::kNow);
  return error;
}

bool Listeners::is_told() const { return link_.is_open(); }

void Listeners::refresh(const char* path) {
  if (empty()) return;
  const uint64_t now = now_ns();
  if (now - looked_ns_.load(std::memory_order_relaxed) < kBetweenLooksNs) return;
  looked_ns_.store(now, std::memory_order_relaxed);
  const QuietLock lock(mutex_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == 0 || is_told() || now < next_try_ns_) return;
  tell(path, own_[count - 1]);
}

void Listeners::drop_closed() {
  struct Found {
    Listeners* listeners;
    std::array<bool, kMost> open{};
  } found{this, {}};
  const auto mark = [](void* context, int fd) {
    auto& known = *static_cast<Found*>(context);
    const auto cookie = cookie_of(fd);
    for (size_t i = 0; cookie && i < known.listeners->count_.load(std::memory_order_relaxed); ++i) {
      if (known.listeners->own_[i].cookie == *cookie) known.open[i] = true;
    }
  };
  if (!for_each_descriptor(mark, &found)) return;
  const size_t count = count_.load(std::memory_order_relaxed);
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    if (found.open[i]) own_[kept++] = own_[i];
  }
  count_.store(kept, std::memory_order_relaxed);
}

void Listeners::forked() { inherited_ = link_.fd() >= 0; }

}  // namespace mercury::sockets
