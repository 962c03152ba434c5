#include "shim/socket/control/ends.h"

#include <cerrno>

namespace mercury::sockets {

void Ends::keep(ConnectionId id, int error) {
  if (most_ == 0) return;
  if (!errors_.insert_or_assign(id, error).second) return;
  oldest_first_.push_back(id);
  if (oldest_first_.size() <= most_) return;
  errors_.erase(oldest_first_.front());
  oldest_first_.pop_front();
}

int Ends::of(ConnectionId id) const {
  const auto found = errors_.find(id);
  return found == errors_.end() ? 0 : found->second;
}

int errno_of_end(Errc code) {
  switch (code) {
    case Errc::kOk:
      return 0;
    case Errc::kPeerLost:
    case Errc::kTimedOut:
      return ETIMEDOUT;
    default:
      return ECONNRESET;
  }
}

}  // namespace mercury::sockets
