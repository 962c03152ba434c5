#include "apps/stackd/uncut_watch.h"

#include <utility>

namespace mercury {
namespace {

constexpr uint64_t kWindowNs = 10'000'000'000;
// A batch holds up to 64 frames, and senders send nearly only batches where they are not cut: a job
// drops thousands in such a time. A stray program, or a fuzzer's hour, stays below ten a second.
constexpr uint64_t kFrames = 100;
constexpr uint64_t kQuietNs = 600'000'000'000;

}  // namespace

UncutWatch::UncutWatch(std::string interface, bool merges)
    : interface_(std::move(interface)), merges_(merges) {}

std::optional<std::string> UncutWatch::look(uint64_t now_ns, uint64_t dropped) {
  if (now_ns - window_begin_ns_ > kWindowNs) {
    window_begin_ns_ = now_ns;
    before_ = dropped;
    return std::nullopt;
  }
  const uint64_t frames = dropped - before_;
  if (frames < kFrames || now_ns < quiet_until_ns_) return std::nullopt;
  quiet_until_ns_ = now_ns + kQuietNs;
  return line(frames);
}

std::string UncutWatch::line(uint64_t frames) const {
  const std::string found = std::to_string(frames) +
                            " frames within 10 s were dropped as malformed (drop_bad_ip, "
                            "drop_length), as merged ones are: ";
  if (merges_) {
    return found + interface_ + " merges what arrives; run: ethtool -K " + interface_ +
           " rx-gro-list off";
  }
  return found +
         "a peer's veth sends batches uncut; run on that host, or on the other end of this host's "
         "veth: ethtool -K INTERFACE tx-udp-segmentation off (mercuryctl doctor there names it)";
}

}  // namespace mercury
