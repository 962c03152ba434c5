#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "shim/channel/channel_layout.h"

namespace mercury {
namespace {

// Orders this end's store before its load of what the other end stores: both ends do so, hence at
// least one of them sees the other (store-buffering). Data is published by release and acquire on
// the words themselves.
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
  std::atomic_thread_fence(std::memory_order_seq_cst);
#pragma GCC diagnostic pop
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

bool ChannelEnd::read_their_position() noexcept {
  const uint64_t head = setup_.theirs->read_position.load(std::memory_order_acquire);
  if (head - out_head_ > out_tail_ - out_head_) {  // went back, or past what was written
    broken_ = true;
    return false;
  }
  out_head_ = head;
  return out_tail_ - out_head_ < setup_.out_slots;
}

bool ChannelEnd::has_room() noexcept {
  if (broken_) return false;
  if (out_tail_ - out_head_ < setup_.out_slots || read_their_position()) {
    if (blocked_) {
      setup_.mine->blocked.store(0, std::memory_order_relaxed);
      blocked_ = false;
    }
    return true;
  }
  if (!blocked_) {
    setup_.mine->blocked.store(1, std::memory_order_relaxed);
    blocked_ = true;
    full_fence();
    return !broken_ && read_their_position();
  }
  return false;
}

bool ChannelEnd::has_room_for(uint32_t count) noexcept {
  if (count > setup_.out_slots || broken_) return false;
  if (setup_.out_slots - (out_tail_ - out_head_) >= count) return true;
  (void)read_their_position();
  return !broken_ && setup_.out_slots - (out_tail_ - out_head_) >= count;
}

void ChannelEnd::push(const ChannelWords& words) noexcept {
  ChannelDescriptor& slot = setup_.mine->ring()[out_tail_ & (setup_.out_slots - 1)];
  for (size_t i = 0; i < words.size(); ++i) {
    slot.words[i].store(words[i], std::memory_order_relaxed);
  }
  slot.turn.store(++out_tail_, std::memory_order_release);
  added_ = true;
}

bool ChannelEnd::incoming() const noexcept {
  const ChannelDescriptor& slot = setup_.theirs->ring()[in_head_ & (setup_.in_slots - 1)];
  return slot.turn.load(std::memory_order_acquire) == in_head_ + 1;
}

bool ChannelEnd::pop(ChannelWords& out) noexcept {
  if (!incoming()) {
    if (in_published_ != in_head_) publish();
    return false;
  }
  const ChannelDescriptor& slot = setup_.theirs->ring()[in_head_ & (setup_.in_slots - 1)];
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = slot.words[i].load(std::memory_order_relaxed);
  }
  ++in_head_;
  if (in_head_ - in_published_ >= setup_.in_slots / 4) publish();
  return true;
}

void ChannelEnd::publish() noexcept {
  setup_.mine->read_position.store(in_head_, std::memory_order_release);
  in_published_ = in_head_;
  full_fence();
  if (setup_.theirs->blocked.load(std::memory_order_relaxed) != 0 && take_parked_epoch()) {
    write_doorbell();
  }
}

// True once per park of the other side.
bool ChannelEnd::take_parked_epoch() noexcept {
  const uint32_t epoch = setup_.theirs->parked.load(std::memory_order_relaxed);
  if ((epoch & 1) == 0 || epoch == rung_epoch_) return false;
  rung_epoch_ = epoch;
  return true;
}

// A full doorbell is a rung one. Never blocks: see channel.h for the two kinds.
void ChannelEnd::write_doorbell() noexcept {
  const uint64_t one = 1;
  ssize_t wrote;
  do {
    wrote = ::write(setup_.ring_fd, &one, setup_.ring_is_eventfd ? sizeof one : 1);
  } while (wrote < 0 && errno == EINTR);
}

bool ChannelEnd::ring() noexcept {
  if (!added_) return false;
  added_ = false;
  full_fence();
  if (!take_parked_epoch()) return false;
  write_doorbell();
  return true;
}

bool ChannelEnd::park() noexcept {
  if ((park_epoch_ & 1) == 0) {
    setup_.mine->parked.store(++park_epoch_, std::memory_order_relaxed);
  }
  full_fence();
  const bool room_came = blocked_ && (read_their_position() || broken_);
  if (room_came) {  // told once
    setup_.mine->blocked.store(0, std::memory_order_relaxed);
    blocked_ = false;
  }
  if (!incoming() && !room_came && !broken_) return true;
  setup_.mine->parked.store(++park_epoch_, std::memory_order_relaxed);
  return false;
}

void ChannelEnd::unpark() noexcept {
  if ((park_epoch_ & 1) != 0) setup_.mine->parked.store(++park_epoch_, std::memory_order_relaxed);
  uint64_t bytes[8];
  iovec vec{bytes, sizeof bytes};
  // The eventfd is one open file with the program, which may have made it blocking: RWF_NOWAIT. The
  // pipe's read end is shared with nobody that this end does not trust.
  const int flags = setup_.ring_is_eventfd ? 0 : RWF_NOWAIT;
  while (::preadv2(setup_.sleep_fd, &vec, 1, -1, flags) < 0 && errno == EINTR) {
  }
}

}  // namespace mercury
