// One direction of one simulated cable: its rate, delay, queue, faults and statistics.
//
// Owner/thread: the SimNetwork's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/base/random.h"

namespace mercury::sim {

// Probabilities are per frame and per link; 0 switches a fault off.
struct Faults {
  double loss = 0;
  // Gilbert's model (BSTJ 1960): a burst starts with this probability and takes on average
  // burst_frames frames in a row.
  double burst_start = 0;
  double burst_frames = 8;
  uint64_t burst_most_ns = ~uint64_t{0};  // on a link with little traffic it ends by time
  double duplicate = 0;
  double reorder = 0;  // this share of frames is held back by 1 to reorder_delay_ns
  uint64_t reorder_delay_ns = 50'000;
  double corrupt = 0;                          // one to three bits of the UDP payload are flipped
  uint32_t vanish_above_bytes = ~uint32_t{0};  // a black hole: larger IP packets vanish
  uint64_t jitter_ns = 0;  // each frame takes up to so much longer; frames stay in order
};

struct LinkConfig {
  uint64_t bytes_per_second = 1'250'000'000;  // 10 Gb/s
  uint64_t delay_ns = 1'000;                  // propagation and switching
  uint64_t queue_bytes = 1 << 20;             // waiting or being sent; more is dropped (tail drop)
  uint64_t ecn_mark_bytes = 0;                // marks frames that find more than this; 0 = never
  // What a link that was idle sends at once, as token buckets do that shape virtual links; a cable
  // never does.
  uint64_t bucket_bytes = 0;
  uint32_t mtu_bytes = 9'000;  // largest IP packet; larger ones vanish
  Faults faults;
};

enum class Drop : uint8_t {
  kLoss,
  kBurst,
  kQueueFull,
  kMtu,
  kLinkDown,
  kPartition,
  kNoEndpoint,  // nobody is bound to the destination
  kRxRingFull,
  kSenderGone,  // the sending port was destroyed with the frame still in its NIC
  kCount
};
inline constexpr size_t kDropCount = static_cast<size_t>(Drop::kCount);
const char* name_of(Drop reason);

struct LinkStats {
  uint64_t frames = 0;  // that the link carried, lost ones included
  uint64_t wire_bytes = 0;
  uint64_t ecn_marked = 0;
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
  uint64_t corrupted = 0;
  uint64_t max_backlog_ps = 0;  // longest time that a frame took from entry to its last bit
  std::array<uint64_t, kDropCount> drops{};
};

// A link is a server with one queue. As frames leave in order at a known rate, the whole queue is
// one number: when the last byte in it will have been sent.
class Link {
 public:
  explicit Link(const LinkConfig& config) { set_config(config); }

  const LinkConfig& config() const noexcept { return config_; }
  void set_config(const LinkConfig& config) {
    config_ = config;
    bucket_ps_ = time_ps(config.bucket_bytes);
    queue_limit_ps_ = time_ps(config.queue_bytes);
    mark_above_ps_ = config.ecn_mark_bytes == 0 ? ~uint64_t{0} : time_ps(config.ecn_mark_bytes);
  }
  void set_faults(const Faults& faults) noexcept { config_.faults = faults; }

  // How long `bytes` take, in picoseconds: one byte takes 20 ps at 400 Gb/s, so that rounding to
  // them stays below one in a million for any frame.
  uint64_t time_ps(uint64_t bytes) const noexcept {
    __extension__ using Wide = unsigned __int128;
    if (config_.bytes_per_second == 0) return 0;
    return static_cast<uint64_t>(Wide{bytes} * 1'000'000'000'000u / config_.bytes_per_second);
  }

  uint64_t backlog_ps(uint64_t now_ps) const noexcept {
    const uint64_t bucket_until_ps = now_ps + bucket_ps_;
    return busy_until_ps_ > bucket_until_ps ? busy_until_ps_ - bucket_until_ps : 0;
  }
  bool full(uint64_t now_ps, uint32_t wire_bytes) const noexcept {
    return backlog_ps(now_ps) + time_ps(wire_bytes) > queue_limit_ps_;
  }
  bool marks(uint64_t now_ps) const noexcept { return backlog_ps(now_ps) > mark_above_ps_; }

  // The queue at a rate that changed by this factor in time.
  void stretch(uint64_t now_ps, double factor) noexcept {
    const uint64_t left_ps = busy_until_ps_ > now_ps ? busy_until_ps_ - now_ps : 0;
    busy_until_ps_ = now_ps + static_cast<uint64_t>(static_cast<double>(left_ps) * factor);
  }

  // Queues a frame and returns when its last bit leaves.
  uint64_t enqueue(uint64_t now_ps, uint32_t wire_bytes) noexcept {
    busy_until_ps_ = std::max(busy_until_ps_, now_ps) + time_ps(wire_bytes);
    const uint64_t wait_ps = backlog_ps(now_ps);
    stats.max_backlog_ps = std::max(stats.max_backlog_ps, wait_ps);
    ++stats.frames;
    stats.wire_bytes += wire_bytes;
    return now_ps + wait_ps;
  }

  // Draws whether the burst-loss model takes this frame.
  bool burst_takes(uint64_t now_ps, Random& random) noexcept {
    // Not one that is left from weather that has ended since.
    const bool goes_on = in_burst_ && config_.faults.burst_start > 0;
    if (goes_on && (now_ps - burst_since_ps_) / 1000 <= config_.faults.burst_most_ns) {
      in_burst_ = !random.chance(1.0 / std::max(1.0, config_.faults.burst_frames));
      return true;
    }
    in_burst_ = false;
    if (!random.chance(config_.faults.burst_start)) return false;
    burst_since_ps_ = now_ps;
    in_burst_ = !random.chance(1.0 / std::max(1.0, config_.faults.burst_frames));
    return true;
  }

  // Later by a random share of the jitter, and not before the frame in front.
  uint64_t jittered(uint64_t arrival_ps, Random& random) noexcept {
    if (config_.faults.jitter_ns == 0) return arrival_ps;
    arrival_ps += 1000 * random.below(config_.faults.jitter_ns + 1);
    last_arrival_ps_ = std::max(last_arrival_ps_, arrival_ps);
    return last_arrival_ps_;
  }

  bool up = true;
  LinkStats stats;

 private:
  LinkConfig config_;
  uint64_t bucket_ps_ = 0;
  uint64_t queue_limit_ps_ = 0;
  uint64_t mark_above_ps_ = 0;
  uint64_t busy_until_ps_ = 0;    // at its rate; up to bucket_ps_ of it has gone already
  uint64_t last_arrival_ps_ = 0;  // of jittered frames
  uint64_t burst_since_ps_ = 0;
  bool in_burst_ = false;
};

}  // namespace mercury::sim
