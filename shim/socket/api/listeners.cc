#include "shim/socket/api/listeners.h"

#include <algorithm>
#include <cerrno>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/now.h"

namespace mercury::sockets {
namespace {

constexpr uint64_t kBetweenTriesNs = 1'000'000'000;

}  // namespace

int Listeners::add(const char* path, const Own& own) {
  const QuietLock lock(mutex_);
  const size_t count = count_.load(std::memory_order_relaxed);
  const auto end = own_.begin() + static_cast<ptrdiff_t>(count);
  const auto known =
      std::find_if(own_.begin(), end, [&own](const Own& o) { return o.cookie == own.cookie; });
  if (known != end) {
    *known = own;
  } else {
    if (count == kMost) drop_closed();
    const size_t left = count_.load(std::memory_order_relaxed);
    if (left < kMost) {
      own_[left] = own;
      count_.store(left + 1, std::memory_order_relaxed);
    }
  }
  return tell(path, own);
}

// On the own connection, which is opened if there is none. A new one knows nothing of the others.
int Listeners::tell(const char* path, const Own& own) {
  const auto ask = [this](const Own& one) {
    Request request;
    request.kind = RequestKind::kListen;
    request.local = one.local;
    request.cookie = one.cookie;
    request.v6_only = one.v6_only;
    const Asked asked = link_.ask(request);
    return is_other_namespace(asked) ? ENONET : asked.error;
  };
  if (!inherited_ && link_.is_open()) return ask(own);
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
  for (size_t i = 0; i < count && error == 0; ++i) error = ask(own_[i]);
  return error;
}

bool Listeners::is_told() const { return link_.is_open(); }

void Listeners::refresh(const char* path) {
  if (empty()) return;
  const QuietLock lock(mutex_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == 0 || is_told() || now_ns() < next_try_ns_) return;
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
