// Notices that batches of frames arrive which nobody cut: a packet socket gets such a batch as one
// frame, which Mercury drops, and goodput falls by orders of magnitude while every counter that
// tells is on this host and everything that can be mended may be on another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mercury {

class UncutWatch {
 public:
  // `interface` of the af_packet port. `merges`: it merges what arrives (rx-gro-list).
  UncutWatch(std::string interface, bool merges);
  // `dropped`: frames dropped as malformed so far (drop_bad_ip, drop_length), never less than
  // before. A line for the log, with the command that mends it; at most one in ten minutes.
  std::optional<std::string> look(uint64_t now_ns, uint64_t dropped);

 private:
  std::string line(uint64_t frames) const;

  std::string interface_;
  bool merges_;
  uint64_t window_begin_ns_ = 0;
  uint64_t before_ = 0;  // dropped when the window began
  uint64_t quiet_until_ns_ = 0;
};

}  // namespace mercury
