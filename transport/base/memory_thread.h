// A thread that touches memory before others use it, and gives memory back to the kernel. To touch
// a GiB takes the kernel a quarter of a second or more, and so does giving back what was shared: as
// long as that an engine would receive nothing, and a daemon would answer nobody.
//
// It works in steps, between which whoever maps something else has his turn: all of them need the
// lock of the process's address space. Where the system refuses a thread, nothing is touched ahead,
// and who gives memory back does it himself.
//
// Owner/thread: any thread may call it. Its destructor ends when all memory is given back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>

namespace mercury {

class MemoryThread {
 public:
  MemoryThread();
  ~MemoryThread();
  MemoryThread(const MemoryThread&) = delete;
  MemoryThread& operator=(const MemoryThread&) = delete;

  // Private memory that nobody has touched yet: it is taken from the caller's NUMA node, in huge
  // pages where the kernel has some. It may be used meanwhile, and stays mapped until unmap() has
  // it. Where memory runs out it is as if the caller had touched all of it: the kernel may kill.
  void prefault(std::span<std::byte> memory) noexcept;
  // The same of a part of the shared mapping that begins at `mapping`: its pages, which others may
  // have taken already, are mapped here, and neither their place nor their size is asked for.
  // Kernels before 5.14 cannot, and nothing is done.
  void populate(std::span<std::byte> part, const std::byte* mapping) noexcept;
  // Of a whole mapping, which nobody uses any more. What is not touched yet stays so, but for the
  // step that is. It goes before all that is to be touched: who gives memory back may have other
  // memory for it; and by turns with what others give back, so that little waits for much, but for
  // shared memory that nobody else has any more: the kernel takes all of that with its last step.
  // The thread calls `unmapped`, which throws nothing, when the kernel has all of it.
  // In one step: of shared memory that this process has hardly touched, whose kernel has nothing to
  // take from it but the mapping.
  enum class Steps : uint8_t { kOne, kMany };
  void unmap(std::span<std::byte> memory, Steps steps = Steps::kMany,
             std::function<void()> unmapped = {}) noexcept;
  // Of mappings that unmap() was given: those of which the kernel has not got back all.
  uint64_t bytes_to_unmap() const noexcept { return to_unmap_.load(std::memory_order_relaxed); }

 private:
  struct Touch {
    std::span<std::byte> memory;
    const std::byte* mapping = nullptr;  // where the mapping that it is of begins
    uint64_t number = 0;                 // 1 first
  };
  struct Unmap {
    std::span<std::byte> memory;  // what is left of it
    uint64_t bytes;               // of all of it
    Steps steps;
    std::function<void()> unmapped;
  };

  void post(Touch touch) noexcept;
  bool is_to_touch(const Touch& touch) noexcept;
  void run();
  void unmap_waiting(std::unique_lock<std::mutex>& lock) noexcept;
  void touch_in_steps(const Touch& touch) noexcept;
  bool unmap_some(Unmap& unmap, uint64_t bytes) noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Touch> touches_;
  std::list<Unmap> unmaps_;
  // By where a mapping begins, the number of the first that is to be touched of it. Those before it
  // are void: their memory has been unmapped meanwhile.
  std::unordered_map<const std::byte*, uint64_t> to_touch_;
  uint64_t last_number_ = 0;
  bool ends_ = false;
  std::atomic<const std::byte*> prefaulting_{nullptr};  // of this mapping; another: it is to stop
  std::atomic<uint64_t> to_unmap_{0};
  std::thread thread_;  // of all that is above
};

}  // namespace mercury
