#include "tests/disaster/guarded_memory.h"

#include <algorithm>
#include <cstring>

namespace mercury::disaster {
namespace {

constexpr std::byte kGuardByte{0xa5};

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes) : memory_(bytes + 2 * kGuard, kGuardByte) {
  std::ranges::fill(this->bytes(), std::byte{0});
}

bool GuardedMemory::intact() const {
  const auto guard = [](std::byte b) { return b == kGuardByte; };
  return std::all_of(memory_.begin(), memory_.begin() + kGuard, guard) &&
         std::all_of(memory_.end() - kGuard, memory_.end(), guard);
}

uint64_t GuardedMemory::hash() const {
  uint64_t state = memory_.size();
  size_t at = 0;
  for (; at + 8 <= memory_.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, memory_.data() + at, sizeof word);
    state = (state ^ word) * 0x9e3779b97f4a7c15;
    state ^= state >> 29;
  }
  for (; at < memory_.size(); ++at)
    state = (state ^ static_cast<uint64_t>(memory_[at])) * 0x100000001b3;
  return state;
}

}  // namespace mercury::disaster
