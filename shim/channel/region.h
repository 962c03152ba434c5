// Memory that a program shares with the daemon so that tensors travel from it without a copy: one
// sealed memfd, mapped by both. The daemon creates and maps it, as long as nobody else has it: to
// map what a program has waits for a hole that it is punching there. Then the program maps it, and
// seals it against all but what is mapped already, so that nobody can take a page out of it: an
// engine that touches one within a hole waits until that is punched, and with it all who share its
// thread. The daemon only looks whether it has: a seal waits for whoever writes to the memfd, and
// that may be the program, for ever.
//
// Owner/thread: resolve() may be called from any thread; the mapping lives as long as the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "shim/channel/unique_fd.h"
#include "transport/base/mapped_memory.h"
#include "transport/base/result.h"

namespace mercury {

class Region {
 public:
  // Zeroed memory of whole_pages(bytes). kInvalidArgument, kNoMemory.
  static Result<std::unique_ptr<Region>> create(uint64_t bytes);
  // Maps what somebody whom this process trusts has created. kProtocol: it is not of so many bytes;
  // kNoMemory.
  static Result<std::unique_ptr<Region>> adopt(int memfd, uint64_t bytes);
  static uint64_t whole_pages(uint64_t bytes) noexcept;

  uint64_t bytes() const { return memory_.bytes(); }
  std::byte* data() const { return memory_.data(); }
  // Null unless `bytes` > 0 bytes at `offset` lie inside.
  std::byte* resolve(uint64_t offset, uint64_t bytes) const noexcept {
    if (bytes == 0 || offset > this->bytes() || bytes > this->bytes() - offset) return nullptr;
    return data() + offset;
  }
  // MappedMemory's.
  void leave_to(MemoryThread& thread) noexcept { memory_.leave_to(thread); }
  void unmap_by(MemoryThread& thread, MemoryThread::Steps steps,
                std::function<void()> unmapped) noexcept {
    memory_.unmap_by(thread, steps, std::move(unmapped));
  }
  // The creator's memfd, to be sent; -1 after drop_fd().
  int fd() const { return fd_.get(); }
  void drop_fd() { fd_.reset(); }
  // Takes pages for all of a range of memory, and changes nothing that is in it: whoever touches
  // memory first pays for it, and waits for it. kNoMemory.
  static Status populate(std::byte* data, uint64_t bytes);
  // Once all who are to have it have mapped it. kSystem.
  static Status seal(int memfd);
  // The creator: whether somebody has. kProtocol.
  Status check_sealed() const;
  // Pages stay in memory once they are there. kNoMemory: the system allows no more, or nobody to.
  Status lock();
  // Gives the pages of a range (whole pages) back; they read as zeros again. False: the region is
  // sealed, and they stay as they are.
  bool discard(uint64_t offset, uint64_t bytes) noexcept;

 private:
  explicit Region(MappedMemory memory, UniqueFd fd = {})
      : memory_(std::move(memory)), fd_(std::move(fd)) {}
  MappedMemory memory_;
  UniqueFd fd_;
};

}  // namespace mercury
