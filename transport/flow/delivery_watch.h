// Notices a path that carries small frames and no large ones: keepalives and acknowledgements
// arrive, so the peer seems alive, and what it waits for never comes. Frames with content
// (datagrams, control segments) of about one size that are lost over and over for a whole peer
// time-out, and none as large as the smallest of them delivered in between, mean that the session
// is of no use. Long before that the path is measured again, and what is more than it carries now
// goes in parts, where both sides can (wire/part.h). Where that does not help either the session
// ends with a reason.
//
// Paper: RFC 8899 section 4.3 calls it black hole detection; a shorter frame would need the job to
// agree on another size.
// Owner/thread: one engine. Nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mercury {

class DeliveryWatch {
 public:
  explicit DeliveryWatch(uint64_t limit_ns) : limit_ns_(limit_ns) {}

  void on_delivered(uint32_t bytes) noexcept {
    if (losses_ == 0) return;
    if (bytes >= least_bytes_) return forget();
    delivered_bytes_ = std::max(delivered_bytes_, bytes);
  }
  // It is noticed now, however long ago it was sent.
  void on_lost(uint32_t bytes, uint64_t sent_ns, uint64_t now_ns) noexcept {
    // What is lost is sent again at once, so a long silence after a loss is one in which there was
    // nothing to send: the lost frame was not needed any more.
    const bool again = losses_ > 0 && sent_ns <= last_loss_ns_ + limit_ns_ / 2;
    // By chance: much smaller ones say nothing about the larger ones, nor do those that arrive.
    if (again && (bytes < bytes_ / 2 || bytes <= delivered_bytes_)) return;
    if (!again || bytes / 2 > bytes_) {
      forget();
      first_loss_ns_ = now_ns;
      bytes_ = least_bytes_ = bytes;
      delivered_bytes_ = 0;
    }
    ++losses_;
    if (doubts_++ == 0) first_doubt_ns_ = now_ns;
    last_loss_ns_ = now_ns;
    bytes_ = std::max(bytes_, bytes);
    least_bytes_ = std::min(least_bytes_, bytes);
  }
  bool hopeless() const noexcept {
    return losses_ >= kLeastLosses && last_loss_ns_ - first_loss_ns_ >= limit_ns_;
  }
  // The path may carry less than it did. Asked before hopeless(), which lasts far longer: where
  // losses are noticed slowly, as after a round trip that was long, the second one must do.
  bool doubtful() const noexcept {
    const uint64_t since_ns = last_loss_ns_ - first_doubt_ns_;
    return (doubts_ >= kLeastLosses && since_ns >= limit_ns_ / kDoubtPart) ||
           (doubts_ >= 2 && since_ns >= limit_ns_ / kSlowDoubtPart);
  }
  // The path is measured again, from now on.
  void doubted() noexcept { doubts_ = 0; }
  void forget() noexcept { losses_ = doubts_ = 0; }
  uint32_t bytes() const noexcept { return bytes_; }  // of the largest of the frames that are lost

 private:
  // Probe time-outs mostly back off to a quarter of a second: a time-out of 1 s sees so many. Where
  // losses are noticed later than that, it takes longer.
  static constexpr uint32_t kLeastLosses = 4;
  // Far more than probe time-outs of a path that works, far less than who waits is promised.
  static constexpr uint64_t kDoubtPart = 16;
  static constexpr uint64_t kSlowDoubtPart = 4;

  uint64_t limit_ns_;
  uint64_t first_loss_ns_ = 0;
  uint64_t last_loss_ns_ = 0;
  uint64_t first_doubt_ns_ = 0;
  uint32_t losses_ = 0;
  uint32_t doubts_ = 0;  // of them: since the path was measured again
  uint32_t bytes_ = 0;
  uint32_t least_bytes_ = 0;
  uint32_t delivered_bytes_ = 0;  // the most, since the first loss
};

}  // namespace mercury
