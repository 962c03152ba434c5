// A bounded single-producer single-consumer queue: the only way by which two cores meet.
//
// Owner/thread: one thread pushes, one thread pops; the two sides are separate move-only handles so
// that a third cannot appear by accident. Capacity is a power of two. Never blocks, never allocates
// after creation.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

#include "transport/base/types.h"

namespace mercury {

template <class T>
class SpscRing {
  struct Shared {
    explicit Shared(size_t capacity) : mask(capacity - 1), cells(new T[capacity]) {}
    const size_t mask;
    std::unique_ptr<T[]> cells;
    alignas(kCacheLine) std::atomic<size_t> tail{0};  // next to write
    alignas(kCacheLine) std::atomic<size_t> head{0};  // next to read
  };

 public:
  class Producer {
   public:
    Producer() = default;
    explicit Producer(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
    Producer(Producer&&) noexcept = default;
    Producer& operator=(Producer&&) noexcept = default;

    // False when the ring is full; `value` is then untouched.
    bool push(T&& value) noexcept {
      const size_t tail = shared_->tail.load(std::memory_order_relaxed);
      if (tail - head_cache_ > shared_->mask) {
        head_cache_ = shared_->head.load(std::memory_order_acquire);
        if (tail - head_cache_ > shared_->mask) return false;
      }
      shared_->cells[tail & shared_->mask] = std::move(value);
      shared_->tail.store(tail + 1, std::memory_order_release);
      return true;
    }
    bool full() const noexcept {
      return shared_->tail.load(std::memory_order_relaxed) -
                 shared_->head.load(std::memory_order_acquire) >
             shared_->mask;
    }
    // Whether the consumer has taken everything.
    bool empty() const noexcept {
      return shared_->head.load(std::memory_order_acquire) ==
             shared_->tail.load(std::memory_order_relaxed);
    }

   private:
    std::shared_ptr<Shared> shared_;
    size_t head_cache_ = 0;
  };

  class Consumer {
   public:
    Consumer() = default;
    explicit Consumer(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
    Consumer(Consumer&&) noexcept = default;
    Consumer& operator=(Consumer&&) noexcept = default;

    bool empty() const noexcept {
      return shared_->head.load(std::memory_order_relaxed) ==
             shared_->tail.load(std::memory_order_acquire);
    }
    size_t size() const noexcept {  // at least
      return shared_->tail.load(std::memory_order_acquire) -
             shared_->head.load(std::memory_order_relaxed);
    }
    bool pop(T& out) noexcept {
      const size_t head = shared_->head.load(std::memory_order_relaxed);
      if (head == shared_->tail.load(std::memory_order_acquire)) return false;
      out = std::move(shared_->cells[head & shared_->mask]);
      shared_->head.store(head + 1, std::memory_order_release);
      return true;
    }

   private:
    std::shared_ptr<Shared> shared_;
  };

  // Both ends of a new ring of at least `capacity` cells.
  static std::pair<Producer, Consumer> create(size_t capacity) {
    auto shared = std::make_shared<Shared>(std::bit_ceil(capacity));
    return {Producer(shared), Consumer(shared)};
  }
};

}  // namespace mercury
