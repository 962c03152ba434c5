// Random numbers that are the same in every run with the same seed: for simulations, fault
// injection and tests. Not for secrets.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace mercury {

// One step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Turns any number, 0 too, into a
// well-mixed one; also seeds Random.
constexpr uint64_t split_mix(uint64_t& state) noexcept {
  state += 0x9e3779b97f4a7c15;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// xoshiro256** (Blackman and Vigna, ACM TOMS 2021): period 2^256 - 1.
// Owner/thread: one thread.
class Random {
 public:
  explicit constexpr Random(uint64_t seed) noexcept {
    for (uint64_t& word : state_) word = split_mix(seed);
  }

  constexpr uint64_t next() noexcept {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound), without bias (Lemire, ACM TOMACS 2019); 0 when bound is 0.
  constexpr uint64_t below(uint64_t bound) noexcept {
    __extension__ using Wide = unsigned __int128;
    if (bound == 0) return 0;
    Wide product = Wide{next()} * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t least = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < least) product = Wide{next()} * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

  // Uniform in [0, 1).
  constexpr double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // True with this probability. Draws nothing when it is 0, so that switching one fault off leaves
  // the decisions about the others as they were.
  constexpr bool chance(double probability) noexcept {
    return probability > 0 && uniform() < probability;
  }

 private:
  std::array<uint64_t, 4> state_{};
};

}  // namespace mercury
