// One link over which several engines of a process send and receive: what all of them have ahead of
// it, whose turn it is, and what peers may send to each. An engine that has nothing to send leaves
// its part to the others; of those that have, each sends about as many bytes as another, less
// evenly where the link carries more during a pass than the bound (Pacer). One whose thread stood
// still gets kArrearsBytes of what it missed, and the link never waits for it (Pacer).
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

// When a link will have sent all that was given to it, and how often it had nothing to send.
class LinkClock {
 public:
  uint64_t free_at_ns() const noexcept { return free_at_ns_.load(std::memory_order_relaxed); }
  uint32_t pauses() const noexcept { return pauses_.load(std::memory_order_relaxed); }
  // A frame that takes the link `work_ns`, whatever others give to it meanwhile.
  void give(uint64_t work_ns, uint64_t now_ns) noexcept {
    uint64_t before_ns = free_at_ns();
    while (!free_at_ns_.compare_exchange_weak(before_ns, std::max(before_ns, now_ns) + work_ns,
                                              std::memory_order_relaxed)) {
    }
    if (before_ns < now_ns) pauses_.fetch_add(1, std::memory_order_relaxed);
  }
  // The same of a link that nobody else gives anything to.
  void give_alone(uint64_t work_ns, uint64_t now_ns) noexcept {
    const uint64_t before_ns = free_at_ns();
    if (before_ns < now_ns) pauses_.store(pauses() + 1, std::memory_order_relaxed);
    set_free_at(std::max(before_ns, now_ns) + work_ns);
  }
  void set_free_at(uint64_t ns) noexcept { free_at_ns_.store(ns, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> free_at_ns_{0};
  std::atomic<uint32_t> pauses_{0};
};

class SharedLink {
 public:
  // What one engine may be ahead of another that waits, when it begins a pass.
  static constexpr uint64_t kTurnBytes = 16 * 1024;
  // What an engine that could not send for a while may send before the others do.
  static constexpr uint64_t kArrearsBytes = 4 * kTurnBytes;
  // Engines that take turns. Those beyond have none: they get what nobody else takes, and what
  // peers may send to them takes nothing of what they may send to the others.
  static constexpr uint32_t kTurns = 64;

  class Place;

  LinkClock& clock() noexcept { return clock_; }
  // Those that have a place, and of them those to which peers may send.
  uint32_t engines() const noexcept { return engines_.load(std::memory_order_relaxed); }
  uint32_t receivers() const noexcept { return receivers_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kWaitsNot = ~uint64_t{0};
  struct alignas(64) Turn {
    std::atomic<bool> taken{false};
    std::atomic<uint64_t> waits_at_bytes{kWaitsNot};  // the start tag of its next frame
    std::atomic<uint64_t> pass_ns{0};                 // how long its passes take
    std::atomic<uint64_t> begun_ns{0};                // the last of them
    std::atomic<uint64_t> hears_until_ns{0};          // note_hears()'s
  };

  // With every frame.
  alignas(64) LinkClock clock_;
  std::atomic<uint64_t> served_bytes_{0};  // the highest start tag of a frame that was sent
  // As engines come and go.
  alignas(64) std::atomic<uint32_t> engines_{0};
  std::atomic<uint32_t> receivers_{0};
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
      raise(link_->turns_used_, i + 1);
    }
  }
  ~Place() {
    note_nothing_waits();
    note_receives(false);
    note_hears(0);
    if (own_ != nullptr) own_->taken.store(false, std::memory_order_release);
    link_->engines_.fetch_sub(1, std::memory_order_relaxed);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // Whether peers may send to it, and to how many engines they may.
  void note_receives(bool receives) noexcept {
    if (receives == receives_) return;
    receives_ = receives;
    link_->receivers_.fetch_add(receives ? 1 : ~uint32_t{0}, std::memory_order_relaxed);
  }
  uint32_t receivers() const noexcept { return link_->receivers(); }
  // Peers send to it, and others leave it a part of the link until then, or until it says so again;
  // 0: they do not.
  void note_hears(uint64_t until_ns) noexcept {
    if (own_ != nullptr) own_->hears_until_ns.store(until_ns, std::memory_order_relaxed);
  }
  // Whether others leave it a part.
  bool hears(uint64_t now_ns) const noexcept { return own_ != nullptr && hears(*own_, now_ns); }
  // An equal part of a link of that rate, if it is one of those to which peers send.
  uint64_t part_of(uint64_t rate, uint64_t now_ns) const noexcept {
    const uint32_t used = link_->turns_used_.load(std::memory_order_relaxed);
    uint32_t hearing = 0;
    for (uint32_t i = 0; i < used; ++i) hearing += hears(link_->turns_[i], now_ns);
    return rate / std::max(hearing, 1U);
  }

  // What those say that wait for the link.
  struct Waiting {
    bool any = false;          // there are such
    bool comes_first = false;  // one of them has had so much less
    bool is_awake = false;     // that one, and is about to begin its next pass
    uint64_t pass_ns = 0;      // the longest of their passes
  };
  // Who had nothing that waits when its last pass ended begins behind the others.
  Waiting begin_pass(uint64_t now_ns, uint64_t pass_ns) noexcept {
    goes_on_ = waits_;
    note_nothing_waits();
    Waiting waiting;
    const uint64_t start_bytes = next_start_bytes();
    const uint32_t used = link_->turns_used_.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < used; ++i) {
      const Turn& turn = link_->turns_[i];
      const uint64_t at_bytes = turn.waits_at_bytes.load(std::memory_order_relaxed);
      if (at_bytes == kWaitsNot) continue;
      waiting.any = true;
      const uint64_t its_pass_ns = turn.pass_ns.load(std::memory_order_relaxed);
      waiting.pass_ns = std::max(waiting.pass_ns, its_pass_ns);
      if (at_bytes + kTurnBytes >= start_bytes) continue;
      waiting.comes_first = true;
      const uint64_t begun_ns = turn.begun_ns.load(std::memory_order_relaxed);
      waiting.is_awake = waiting.is_awake || now_ns < begun_ns + 2 * std::max(its_pass_ns, pass_ns);
    }
    if (own_ != nullptr) {
      own_->pass_ns.store(pass_ns, std::memory_order_relaxed);
      own_->begun_ns.store(now_ns, std::memory_order_relaxed);
    }
    return waiting;
  }
  // It has something to send for which the link has no room.
  void note_waiting() noexcept {
    next_bytes_ = next_start_bytes();
    goes_on_ = waits_ = true;
    if (own_ != nullptr) own_->waits_at_bytes.store(next_bytes_, std::memory_order_relaxed);
  }
  void note_nothing_waits() noexcept {
    if (!waits_) return;
    waits_ = false;
    if (own_ != nullptr) own_->waits_at_bytes.store(kWaitsNot, std::memory_order_relaxed);
  }
  void sent(uint32_t bytes) noexcept {
    const uint64_t start_bytes = next_start_bytes();
    raise(link_->served_bytes_, start_bytes);
    next_bytes_ = start_bytes + bytes;
    goes_on_ = true;
  }

 private:
  template <class T>
  static void raise(std::atomic<T>& number, T to) noexcept {
    T before = number.load(std::memory_order_relaxed);
    while (before < to && !number.compare_exchange_weak(before, to, std::memory_order_relaxed)) {
    }
  }
  static bool hears(const Turn& turn, uint64_t now_ns) noexcept {
    return now_ns < turn.hears_until_ns.load(std::memory_order_relaxed);
  }
  // Who had nothing to send for a while has saved nothing by it; who could not, a little.
  uint64_t next_start_bytes() const noexcept {
    const uint64_t served = link_->served_bytes_.load(std::memory_order_relaxed);
    const uint64_t arrears = goes_on_ ? std::min(served, kArrearsBytes) : 0;
    return std::max(next_bytes_, served - arrears);
  }

  std::shared_ptr<SharedLink> link_;
  Turn* own_ = nullptr;
  uint64_t next_bytes_ = 0;  // the start tag of the frame behind its last
  bool goes_on_ = false;     // since its last frame it has had more to send
  bool waits_ = false;
  bool receives_ = false;
};

}  // namespace mercury
