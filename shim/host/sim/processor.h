// When an engine may work, if each frame that it receives or sends takes it some time, and each
// command of the control plane: a server of finite rate, in virtual time. Without such costs it
// works whenever it is woken.
//
// What waits in the NIC is paid for before the pass that receives it, as what a frame causes cannot
// leave before the frame was looked at; what the pass sent, and what it received beyond that, is
// paid for after it, before the next one; so are commands. So a frame costs its time once, wherever
// it comes from, and is early by its own cost at most in the burst that it is sent in.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury::sim {

class Processor {
 public:
  explicit Processor(uint64_t frame_cost_ns, uint64_t command_cost_ns = 0)
      : frame_cost_ns_(frame_cost_ns), command_cost_ns_(command_cost_ns) {}

  // Whether the engine may do a pass now, in whose NIC `waiting` frames are, of which a pass takes
  // `burst`. If not: not before free_ns(), and then it is to be asked again.
  bool may_work(uint64_t now_ns, uint64_t waiting, uint64_t burst) {
    if (frame_cost_ns_ == 0 && command_cost_ns_ == 0) return true;
    if (now_ns < free_ns_) return false;
    if (frame_cost_ns_ == 0 || paid_ > 0 || waiting == 0) return true;
    paid_ = std::min(waiting, burst);
    free_ns_ = now_ns + paid_ * frame_cost_ns_;
    return false;
  }
  // A pass has received and sent so many frames, together, and carried out so many commands.
  void worked(uint64_t now_ns, uint64_t frames, uint64_t commands = 0) {
    free_ns_ =
        now_ns + (frames - std::min(frames, paid_)) * frame_cost_ns_ + commands * command_cost_ns_;
    paid_ = 0;
  }
  uint64_t free_ns() const { return free_ns_; }

 private:
  uint64_t frame_cost_ns_;
  uint64_t command_cost_ns_;
  uint64_t free_ns_ = 0;
  uint64_t paid_ = 0;  // frames whose receiving is paid for, by the pass that comes next
};

}  // namespace mercury::sim
