// A mapping of memory that somebody owns: anonymous, or of a file. It goes with its owner.
//
// Owner/thread: what is mapped may be used from any thread; the mapping lives as long as the object
// that it was moved to last.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "transport/base/memory_thread.h"

namespace mercury {

class MappedMemory {
 public:
  // Protections and flags are mmap(2)'s. Empty if the kernel refuses; errno then says why.
  static MappedMemory anonymous(size_t bytes, int protection = PROT_READ | PROT_WRITE,
                                int flags = 0) noexcept {
    return map(bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1);
  }
  // The file's first bytes, shared with all who map them.
  static MappedMemory shared(int fd, size_t bytes, int protection = PROT_READ | PROT_WRITE,
                             int flags = 0) noexcept {
    return map(bytes, protection, MAP_SHARED | flags, fd);
  }

  MappedMemory() = default;

  explicit operator bool() const noexcept { return memory_ != nullptr; }
  std::byte* data() const noexcept { return memory_.get(); }  // of whole pages; null if empty
  // As many as were asked for; 0 if empty.
  size_t bytes() const noexcept { return memory_ ? memory_.get_deleter().bytes : 0; }
  // The thread, which lives longer, is to give it back to the kernel.
  void leave_to(MemoryThread& thread) noexcept { memory_.get_deleter().thread = &thread; }
  // It does so now, and then calls `unmapped`. Empty afterwards.
  void unmap_by(MemoryThread& thread, MemoryThread::Steps steps,
                std::function<void()> unmapped) noexcept {
    const size_t size = bytes();
    thread.unmap({memory_.release(), size}, steps, std::move(unmapped));
  }

 private:
  struct Unmap {
    void operator()(std::byte* data) const noexcept {
      if (thread != nullptr) return thread->unmap({data, bytes});
      ::munmap(data, bytes);
    }
    size_t bytes;
    MemoryThread* thread;  // null: nobody else does it
  };

  static MappedMemory map(size_t bytes, int protection, int flags, int fd) noexcept {
    void* const data = ::mmap(nullptr, bytes, protection, flags, fd, 0);
    MappedMemory out;
    if (data != MAP_FAILED) out.memory_ = {static_cast<std::byte*>(data), Unmap{bytes, nullptr}};
    return out;
  }

  std::unique_ptr<std::byte, Unmap> memory_;
};

}  // namespace mercury
