// Which addresses are this host's, as its kernel sees them now.
#pragma once

#include <cstdint>
#include <set>

#include "transport/base/endpoint.h"

namespace mercury {

class LocalAddresses {
 public:
  // 127.0.0.0/8, ::1, and what an interface has. At most a second old.
  bool has(const IpAddress& ip, uint64_t now_ns);

 private:
  void look(uint64_t now_ns);
  std::set<IpAddress> known_;
  uint64_t looked_ns_ = 0;
};

}  // namespace mercury
