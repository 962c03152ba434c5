// The bytes of a channel's two memories, and the code that both ends run on them. Private to
// shim/channel; tests use it to write what no honest program would.
//
// Memory A is written by the program, memory B by the engine; each is one Area:
//
//      0  AreaHeader     magic, ABI, side, capacity of both rings: written once, read at adoption
//     64  parked         epoch: odd while the writer of this area sleeps, or is about to
//         blocked        1 while the writer of this area waits for room in its own ring
//    128  read_position  how far the writer of this area has read the other area's ring
//    192  ring           descriptors of 32 bytes: three words, then the position + 1
//
// A word is one atomic 64-bit access, so the engine's copy of a descriptor is consistent with what
// it checks even while a hostile program keeps writing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/base/types.h"

namespace mercury {

inline constexpr uint64_t kChannelMagic = 0x4c4e4843'4352454dULL;  // "MERCCHNL", little-endian
inline constexpr uint32_t kChannelAbi = 1;
inline constexpr uint32_t kChannelSideA = 0xA;
inline constexpr uint32_t kChannelSideB = 0xB;
inline constexpr uint32_t kMinRingSlots = 4;
inline constexpr uint32_t kMaxRingSlots = 65536;

struct ChannelDescriptor {
  std::array<std::atomic<uint64_t>, 3> words;
  std::atomic<uint64_t>
      turn;  // position + 1 once written; the next lap writes position + slots + 1
};
static_assert(sizeof(ChannelDescriptor) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct AreaHeader {
  uint64_t magic = kChannelMagic;
  uint32_t abi = kChannelAbi;
  uint32_t side = 0;
  uint32_t submissions = 0;
  uint32_t completions = 0;
};

struct ChannelArea {
  alignas(kCacheLine) AreaHeader header;
  alignas(kCacheLine) std::atomic<uint32_t> parked;
  std::atomic<uint32_t> blocked;
  alignas(kCacheLine) std::atomic<uint64_t> read_position;

  ChannelDescriptor* ring() { return reinterpret_cast<ChannelDescriptor*>(this + 1); }
  const ChannelDescriptor* ring() const {
    return reinterpret_cast<const ChannelDescriptor*>(this + 1);
  }
};
static_assert(sizeof(ChannelArea) == 192);

constexpr size_t area_bytes(uint32_t slots) {
  return sizeof(ChannelArea) + size_t{slots} * sizeof(ChannelDescriptor);
}

using ChannelWords = std::array<uint64_t, 3>;

// One end of a channel: writes the ring of its own area, reads the ring of the other's. Nothing in
// the other's area is believed: sizes and own positions are kept here, and the other's read
// position must lie between what it was and what was written. Owner/thread: one.
class ChannelEnd {
 public:
  struct Setup {
    ChannelArea* mine = nullptr;
    const ChannelArea* theirs = nullptr;
    uint32_t out_slots = 0;
    uint32_t in_slots = 0;
    int sleep_fd = -1;  // this end's doorbell
    int ring_fd = -1;   // the other's
    bool ring_is_eventfd = false;
  };
  explicit ChannelEnd(const Setup& setup) noexcept : setup_(setup) {}

  bool broken() const noexcept { return broken_; }
  void set_broken() noexcept { broken_ = true; }
  bool has_room() noexcept;
  bool has_room_for(uint32_t count) noexcept;  // more than one; nobody waits for it
  uint32_t slots() const noexcept { return setup_.out_slots; }
  void push(const ChannelWords& words) noexcept;  // only after has_room()
  bool pop(ChannelWords& out) noexcept;
  bool ring() noexcept;
  bool park() noexcept;
  void unpark() noexcept;
  int sleep_fd() const noexcept { return setup_.sleep_fd; }

 private:
  bool incoming() const noexcept;
  bool read_their_position() noexcept;
  void publish() noexcept;
  bool take_parked_epoch() noexcept;
  void write_doorbell() noexcept;

  const Setup setup_;
  uint64_t out_tail_ = 0;
  uint64_t out_head_ = 0;  // as last read from the other side, and checked
  uint64_t in_head_ = 0;
  uint64_t in_published_ = 0;
  uint32_t park_epoch_ = 0;
  uint32_t rung_epoch_ = 0;
  bool added_ = false;    // since the last ring()
  bool blocked_ = false;  // `mine->blocked` is set
  bool broken_ = false;
};

}  // namespace mercury
