// One link over which several engines of a process send: what all of them have ahead of it, and
// whose turn it is. An engine that has nothing to send leaves its part to the others; of those that
// have, each sends as many bytes as another, but for kTurnBytes.
//
// The link never waits for an engine whose turn it is: as it runs dry, whoever asks sends (Pacer).
// So an engine's thread that stands still costs the others nothing.
//
// Paper: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with engines as flows. Here
// the tags are read, not sorted, and the readers race: what that costs is a frame's turn.
// Owner/thread: shared by the engines; each uses a Place of its own, on its thread. Everything here
// is a number that says how much or when, so no order between them is needed.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace mercury {

// When a link will have sent all that was given to it.
class LinkClock {
 public:
  uint64_t free_at_ns() const noexcept { return free_at_ns_.load(std::memory_order_relaxed); }
  // Of a link that nobody else gives anything to.
  void set_free_at(uint64_t ns) noexcept { free_at_ns_.store(ns, std::memory_order_relaxed); }
  // A frame that takes the link `work_ns`, whatever others give to it meanwhile.
  void give(uint64_t work_ns, uint64_t now_ns) noexcept {
    uint64_t before_ns = free_at_ns();
    while (!free_at_ns_.compare_exchange_weak(before_ns, std::max(before_ns, now_ns) + work_ns,
                                              std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<uint64_t> free_at_ns_{0};
};

class SharedLink {
 public:
  // What one engine may be ahead of another that waits, when it begins a pass.
  static constexpr uint64_t kTurnBytes = 16 * 1024;
  // Engines that take turns. Those beyond are paced with the others, and have no turn.
  static constexpr uint32_t kTurns = 64;

  class Place;

  LinkClock& clock() noexcept { return clock_; }
  // Those that have a place.
  uint32_t engines() const noexcept { return engines_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kWaitsNot = ~uint64_t{0};
  struct alignas(64) Turn {
    std::atomic<bool> taken{false};
    std::atomic<uint64_t> waits_at{kWaitsNot};  // the start tag of its next frame
  };

  LinkClock clock_;
  std::atomic<uint64_t> served_{0};  // the start tag of the last frame: bytes
  std::atomic<uint32_t> engines_{0};
  std::atomic<uint32_t> turns_used_{0};  // those from here on never were
  std::array<Turn, kTurns> turns_;
};

// An engine's, from when it is made until it ends.
class SharedLink::Place {
 public:
  explicit Place(std::shared_ptr<SharedLink> link) : link_(std::move(link)) {
    link_->engines_.fetch_add(1, std::memory_order_relaxed);
    for (uint32_t i = 0; i < kTurns && own_ == nullptr; ++i) {
      if (link_->turns_[i].taken.exchange(true, std::memory_order_acquire)) continue;
      own_ = &link_->turns_[i];
      uint32_t used = link_->turns_used_.load(std::memory_order_relaxed);
      while (used < i + 1 && !link_->turns_used_.compare_exchange_weak(used, i + 1)) {
      }
    }
  }
  ~Place() {
    if (own_ != nullptr) {
      own_->waits_at.store(kWaitsNot, std::memory_order_relaxed);
      own_->taken.store(false, std::memory_order_release);
    }
    link_->engines_.fetch_sub(1, std::memory_order_relaxed);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  uint32_t engines() const noexcept { return link_->engines(); }

  // Whoever was not told to wait in its last pass had nothing more to send.
  void begin_pass() noexcept {
    goes_on_ = waits_;
    if (!waits_) return;
    waits_ = false;
    if (own_ != nullptr) own_->waits_at.store(kWaitsNot, std::memory_order_relaxed);
  }
  // Whether somebody waits who has had so much less.
  bool is_anothers_turn() const noexcept {
    const uint64_t start = next_start();
    const uint32_t used = link_->turns_used_.load(std::memory_order_relaxed);
    return std::any_of(link_->turns_.begin(), link_->turns_.begin() + used, [&](const Turn& turn) {
      const uint64_t waits_at = turn.waits_at.load(std::memory_order_relaxed);
      return waits_at != kWaitsNot && &turn != own_ && waits_at + kTurnBytes < start;
    });
  }
  // It was told to, and may have more to send.
  void wait() noexcept {
    next_ = next_start();
    goes_on_ = true;
    waits_ = true;
    if (own_ != nullptr) own_->waits_at.store(next_, std::memory_order_relaxed);
  }
  void sent(uint32_t bytes) noexcept {
    const uint64_t start = next_start();
    link_->served_.store(start, std::memory_order_relaxed);
    next_ = start + bytes;
    goes_on_ = true;
  }

 private:
  // Who had nothing to send for a while has saved nothing by it.
  uint64_t next_start() const noexcept {
    return goes_on_ ? next_ : std::max(next_, link_->served_.load(std::memory_order_relaxed));
  }

  std::shared_ptr<SharedLink> link_;
  Turn* own_ = nullptr;
  uint64_t next_ = 0;     // the start tag of the frame behind its last
  bool goes_on_ = false;  // since its last frame it has had more to send
  bool waits_ = false;
};

}  // namespace mercury
