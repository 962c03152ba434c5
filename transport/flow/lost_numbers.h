// Which of the last few thousand packets were declared lost, and have not been acknowledged since.
//
// Owner/thread: one engine. Nothing allocates. Cold: sessions with one path have none.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace mercury {

class LostNumbers {
 public:
  // More than twice what one session has in flight; a power of two.
  static constexpr uint64_t kNumbers = 4096;

  bool empty() const noexcept { return count_ == 0; }
  // One that is not among them. Nothing happens if it is older than they may be.
  void add(uint64_t number) noexcept {
    const uint64_t end = (number | (kWordBits - 1)) + 1;
    for (; count_ > 0 && begin_ + kNumbers < end; begin_ += kWordBits) {
      count_ -= static_cast<uint32_t>(std::popcount(word_of(begin_)));
      word_of(begin_) = 0;
    }
    if (end > kNumbers) begin_ = std::max(begin_, end - kNumbers);
    if (number < begin_) return;
    word_of(number) |= uint64_t{1} << number % kWordBits;
    ++count_;
  }
  // Calls `late(number)` for each from `first` to `last` that is among them, and is not any more.
  template <class F>
  void take(uint64_t first, uint64_t last, F late) noexcept {
    first = std::max(first, begin_);
    last = std::min(last, begin_ + kNumbers - 1);
    while (count_ > 0 && first <= last) {
      const uint64_t end = std::min(last, first | (kWordBits - 1));
      const uint64_t mask =
          ~uint64_t{0} << first % kWordBits & ~uint64_t{0} >> (kWordBits - 1 - end % kWordBits);
      uint64_t found = word_of(first) & mask;
      word_of(first) &= ~mask;
      count_ -= static_cast<uint32_t>(std::popcount(found));
      for (; found != 0; found &= found - 1) {
        late(first / kWordBits * kWordBits + static_cast<uint64_t>(std::countr_zero(found)));
      }
      first = end + 1;
    }
  }

 private:
  static constexpr uint64_t kWordBits = 64;
  uint64_t& word_of(uint64_t number) noexcept { return words_[number / kWordBits % words_.size()]; }

  uint64_t begin_ = 0;  // of a word; those below are not known
  uint32_t count_ = 0;
  std::array<uint64_t, kNumbers / kWordBits> words_{};
};

}  // namespace mercury
