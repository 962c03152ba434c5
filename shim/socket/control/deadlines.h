// Deadlines of one length, so that they are due in the order in which they were set. One whose
// matter is settled before stays behind those that are not: whoever takes it looks. Those in front
// are dropped, or each connection that was ever made would wake the daemon once.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "transport/base/types.h"

namespace mercury::sockets {

template <class Key>
class Deadlines {
 public:
  void add(uint64_t at_ns, Key key) { due_.emplace_back(at_ns, key); }
  uint64_t next_ns() const { return due_.empty() ? kNever : due_.front().first; }
  template <class IsSettled>
  void drop_settled(IsSettled is_settled) {
    while (!due_.empty() && is_settled(due_.front().second)) due_.pop_front();
  }
  std::optional<Key> take_due(uint64_t now_ns) {
    if (due_.empty() || due_.front().first > now_ns) return std::nullopt;
    const Key key = due_.front().second;
    due_.pop_front();
    return key;
  }

 private:
  std::deque<std::pair<uint64_t, Key>> due_;
};

}  // namespace mercury::sockets
