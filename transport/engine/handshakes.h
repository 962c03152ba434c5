// HELLOs that wait for the control plane's word. Cold. Bounded: beyond kMaxPending the oldest is
// forgotten (its sender tries again).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "transport/base/endpoint.h"
#include "transport/wire/hello.h"

namespace mercury {

struct PendingHello {
  uint64_t id = 0;
  Endpoint remote;
  uint64_t arrived_ns = 0;
  wire::Hello body;
};

class Handshakes {
 public:
  static constexpr size_t kMaxPending = 1024;
  explicit Handshakes(uint64_t timeout_ns) : timeout_ns_(timeout_ns) {}

  // The new pending HELLO, or null if this one is waiting already.
  const PendingHello* add(const Endpoint& remote, const wire::Hello& body, uint64_t now_ns) {
    for (const PendingHello& pending : pending_) {
      if (pending.remote == remote && pending.body.session == body.session) return nullptr;
    }
    if (pending_.size() == kMaxPending) pending_.pop_front();
    pending_.push_back({++last_id_, remote, now_ns, body});
    return &pending_.back();
  }
  std::optional<PendingHello> take(uint64_t id) {
    for (auto it = pending_.begin(); it != pending_.end(); ++it) {
      if (it->id == id) {
        PendingHello found = *it;
        pending_.erase(it);
        return found;
      }
    }
    return std::nullopt;
  }
  void expire(uint64_t now_ns) {
    while (!pending_.empty() && now_ns - pending_.front().arrived_ns > timeout_ns_) {
      pending_.pop_front();
    }
  }
  size_t size() const { return pending_.size(); }

 private:
  uint64_t timeout_ns_;
  uint64_t last_id_ = 0;
  std::deque<PendingHello> pending_;
};

}  // namespace mercury
