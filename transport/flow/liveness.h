// Whether the peer lives: it is lost when nothing is heard of it for a whole time-out, and a sign
// of life is asked for (a PING, at a quarter of it) while it is silent.
//
// Invariant: time in which this engine stood still counts as half a time-out at most, as what the
// peer said meanwhile may wait to be read.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class Liveness {
 public:
  explicit Liveness(uint64_t timeout_ns) : timeout_ns_(timeout_ns) {}

  void start(uint64_t now_ns) noexcept { heard_ns_ = asked_ns_ = now_ns; }
  void on_heard(uint64_t now_ns) noexcept { heard_ns_ = now_ns; }
  // Before the peer is judged: `unattended_ns` have passed since this engine looked last. Deadlines
  // come every quarter of the time-out, so half of it means a stopped process or machine.
  void on_attended(uint64_t now_ns, uint64_t unattended_ns) noexcept {
    if (unattended_ns <= timeout_ns_ / 2) return;
    heard_ns_ = std::max(heard_ns_, now_ns - timeout_ns_ / 2);
  }
  bool lost(uint64_t now_ns) const noexcept { return now_ns >= heard_ns_ + timeout_ns_; }
  void on_timer(uint64_t now_ns) noexcept {
    if (now_ns < ask_at_ns()) return;
    ask_due_ = true;
    asked_ns_ = now_ns;
  }
  uint64_t deadline_ns() const noexcept {
    const uint64_t lost_ns = heard_ns_ + timeout_ns_;
    return ask_due_ ? lost_ns : std::min(lost_ns, ask_at_ns());
  }

  // Whether a frame must leave that the peer answers.
  bool ask_due() const noexcept { return ask_due_; }
  void ask() noexcept { ask_due_ = true; }
  void on_asked() noexcept { ask_due_ = false; }

 private:
  uint64_t ask_at_ns() const noexcept { return std::max(heard_ns_, asked_ns_) + timeout_ns_ / 4; }

  uint64_t timeout_ns_;
  uint64_t heard_ns_ = 0;  // last frame of the peer
  uint64_t asked_ns_ = 0;  // when a sign of life was last wanted
  bool ask_due_ = false;
};

}  // namespace mercury
