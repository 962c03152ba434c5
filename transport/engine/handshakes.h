// HELLOs that wait for the control plane's word. Cold. Bounded: beyond kMaxPending the oldest is
// forgotten (its sender tries again).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_set>

#include "transport/engine/hello_gate.h"
#include "transport/port/port.h"

namespace mercury {

struct PendingHello {
  uint64_t id = 0;
  Endpoint remote;
  uint64_t arrived_ns = 0;
  wire::Hello body;
  ReturnWay way;
};

class Handshakes {
 public:
  static constexpr size_t kMaxPending = 1024;
  Handshakes(uint64_t timeout_ns, uint64_t seed)
      : timeout_ns_(timeout_ns), keys_(0, HelloHash(seed)) {}

  bool waits(const Endpoint& remote, const wire::Hello& body) const {
    return keys_.contains({remote, body.session});
  }
  // The new pending HELLO, or null if this one is waiting already.
  const PendingHello* add(const Endpoint& remote, const wire::Hello& body, ReturnWay way,
                          uint64_t now_ns) {
    if (!keys_.insert({remote, body.session}).second) return nullptr;
    if (pending_.size() == kMaxPending) take(pending_.begin()->first);
    ++last_id_;
    return &pending_.emplace(last_id_, PendingHello{last_id_, remote, now_ns, body, way})
                .first->second;
  }
  std::optional<PendingHello> take(uint64_t id) {
    const auto it = pending_.find(id);
    if (it == pending_.end()) return std::nullopt;
    PendingHello found = std::move(it->second);
    pending_.erase(it);
    keys_.erase({found.remote, found.body.session});
    return found;
  }
  void expire(uint64_t now_ns) {
    while (!pending_.empty() && now_ns - pending_.begin()->second.arrived_ns > timeout_ns_) {
      take(pending_.begin()->first);
    }
  }
  size_t size() const { return pending_.size(); }

 private:
  uint64_t timeout_ns_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, PendingHello> pending_;      // by id, which is the order of arriving
  std::unordered_set<HelloKey, HelloHash> keys_;  // of these
};

}  // namespace mercury
