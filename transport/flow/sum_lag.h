// Whether a sender is behind the others of its job: whether its datagrams are those that the
// others' wait for. A sum is complete with the last of its parts. Where all are in step, each
// sender's part is the last as often as another's; who is behind brings nearly all last ones.
//
// Paper: ours. Owner/thread: one engine. Nothing allocates.
#pragma once

#include <cstdint>

namespace mercury {

class SumLag {
 public:
  // `last`: parts of others had come before it, and waited for it.
  void add(bool last) noexcept {
    share_ = share_ - (share_ >> kShift) + (last ? kAll >> kShift : 0);
  }
  bool behind() const noexcept { return share_ > kBehind; }

 private:
  // Sixteen datagrams: of two in step, chance takes the share to three quarters once in some
  // hundred.
  static constexpr uint32_t kShift = 4;
  static constexpr uint32_t kAll = 1024;
  static constexpr uint32_t kBehind = kAll * 3 / 4;

  uint32_t share_ = kAll / 2;
};

}  // namespace mercury
