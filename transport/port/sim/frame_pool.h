// Frames of the simulated network and the pool they come from: after warm-up nothing here touches
// the heap.
//
// Owner/thread: the SimNetwork's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/port/port.h"

namespace mercury::sim {

class SimPort;

inline constexpr uint32_t kMaxHops = 4;  // host up, rack up, rack down, host down

// Where a frame is on its way.
enum class Stage : uint8_t {
  kOwned,      // by a port: being built, queued, or waiting in a receive ring
  kDeparting,  // in the sending NIC; its event is the end of serialisation
  kFlying,     // on a link; its event is the arrival at the link's far end
};

struct Frame {
  Frame* next = nullptr;  // in whichever list holds it
  std::byte* data = nullptr;
  uint32_t capacity = 0;
  uint32_t size = 0;    // bytes of `data` that are set
  uint32_t source = 0;  // endpoint numbers of the network
  uint32_t target = 0;
  // What tx_send_shared left to be gathered when the NIC reads it.
  std::span<const std::byte> shared;
  PayloadPin* pin = nullptr;
  SimPort* sender = nullptr;  // until it has left the NIC
  uint32_t wire_bytes = 0;    // with all overheads
  uint32_t ip_bytes = 0;      // what an MTU limits
  std::array<uint32_t, kMaxHops> route{};
  uint8_t hop = 0;
  uint8_t hops = 0;
  uint8_t size_class = 0;
  uint8_t source_port = 0;  // 0: the sender's own; else one of its source ports
  Stage stage = Stage::kOwned;
  Arrival arrival;
  uint64_t arrived_ns = 0;  // in the receive ring
};

// A first-in first-out list through Frame::next.
class FrameList {
 public:
  bool empty() const noexcept { return head_ == nullptr; }
  uint32_t size() const noexcept { return size_; }
  Frame* front() const noexcept { return head_; }
  void push(Frame* frame) noexcept {
    frame->next = nullptr;
    (tail_ ? tail_->next : head_) = frame;
    tail_ = frame;
    ++size_;
  }
  Frame* pop() noexcept {
    Frame* frame = head_;
    if (frame == nullptr) return nullptr;
    head_ = frame->next;
    if (head_ == nullptr) tail_ = nullptr;
    --size_;
    return frame;
  }

 private:
  Frame* head_ = nullptr;
  Frame* tail_ = nullptr;
  uint32_t size_ = 0;
};

class FramePool {
 public:
  // A frame with room for at least `bytes`, all other fields as in a new Frame.
  Frame* acquire(uint32_t bytes);
  void release(Frame* frame) noexcept;
  uint64_t in_use() const noexcept { return in_use_; }

 private:
  // An acknowledgement, a datagram at MTU 1500, a jumbo datagram, the largest UDP payload.
  static constexpr std::array<uint32_t, 4> kCapacity{256, 2048, 9216, 65'536};

  void grow(size_t size_class);

  std::array<Frame*, kCapacity.size()> free_{};
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::vector<std::unique_ptr<Frame[]>> frames_;
  uint64_t in_use_ = 0;
};

}  // namespace mercury::sim
