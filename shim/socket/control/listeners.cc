#include "shim/socket/control/listeners.h"

#include <algorithm>
#include <utility>

namespace mercury::sockets {
namespace {

// As the kernel: [::] takes IPv4 as well unless it was told not to.
bool takes_all_of_family(const Listener& listener, const IpAddress& destination) {
  if (!listener.local.ip.is_unspecified()) return false;
  if (listener.local.ip.is_v4()) return destination.is_v4();
  return !destination.is_v4() || !listener.v6_only;
}

}  // namespace

bool Listeners::add(const Listener& listener) {
  std::vector<Listener>& here = by_port_[listener.local.port];
  for (Listener& known : here) {
    if (known.cookie != listener.cookie || known.program != listener.program) continue;
    known = listener;
    return true;
  }
  if (full()) {
    if (here.empty()) by_port_.erase(listener.local.port);
    return false;
  }
  here.push_back(listener);
  ++size_;
  return true;
}

const Listener* Listeners::find(const Endpoint& destination) const {
  const auto here = by_port_.find(destination.port);
  if (here == by_port_.end()) return nullptr;
  const Listener* wide = nullptr;
  for (const Listener& listener : here->second) {
    if (listener.local.ip == destination.ip) return &listener;
    if (wide == nullptr && takes_all_of_family(listener, destination.ip)) wide = &listener;
  }
  return wide;
}

bool Listeners::shares(const Endpoint& local, bool v6_only, uint64_t cookie) const {
  const auto here = by_port_.find(local.port);
  if (here == by_port_.end()) return false;
  return std::any_of(here->second.begin(), here->second.end(), [&](const Listener& one) {
    return one.cookie == cookie && one.local == local && one.v6_only == v6_only;
  });
}

template <class Which>
void Listeners::erase_if(Which which) {
  for (auto it = by_port_.begin(); it != by_port_.end();) {
    size_ -= std::erase_if(it->second, which);
    it = it->second.empty() ? by_port_.erase(it) : std::next(it);
  }
}

void Listeners::forget(uint64_t cookie) {
  erase_if([cookie](const Listener& listener) { return listener.cookie == cookie; });
}

void Listeners::forget(SocketProgram program, uint64_t cookie) {
  erase_if([=](const Listener& one) { return one.cookie == cookie && one.program == program; });
}

void Listeners::keep(const std::unordered_set<uint64_t>& open) {
  erase_if([&open](Listener& one) {
    if (one.soon || open.count(one.cookie) > 0) return one.missed = false;
    return std::exchange(one.missed, true);
  });
}

void Listeners::forget_program(SocketProgram program) {
  erase_if([program](const Listener& listener) { return listener.program == program; });
}

}  // namespace mercury::sockets
