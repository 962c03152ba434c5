// A tensor's memory in the virtual cluster: whoever writes beyond it, or when nobody may, is found.
//
// Owner/thread: its program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mercury::disaster {

// With a guard at either end.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes);
  std::span<std::byte> bytes() { return {memory_.data() + kGuard, memory_.size() - 2 * kGuard}; }
  bool intact() const;
  // From seal() on nobody may write.
  void seal() { sealed_ = hash(); }
  bool unchanged() const { return sealed_ == hash(); }

 private:
  static constexpr size_t kGuard = 64;
  uint64_t hash() const;
  std::vector<std::byte> memory_;
  uint64_t sealed_ = 0;
};

}  // namespace mercury::disaster
