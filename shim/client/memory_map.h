// The memory of one context in which tensors may lie: what mercury_alloc gave out, carved from
// regions that the daemon maps too, and what the program registered.
//
// Owner/thread: any; a mutex inside. Asking the daemon for a region happens under it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "shim/channel/region.h"
#include "shim/client/backend.h"
#include "transport/base/result.h"

namespace mercury::client {

// Where a tensor's bytes lie. `region` and `offset_bytes` are what a daemon is told.
struct Placement {
  std::byte* data = nullptr;
  uint32_t region = 0;
  uint64_t offset_bytes = 0;
};

class MemoryMap {
 public:
  explicit MemoryMap(Backend& backend);
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  Result<std::byte*> allocate(uint64_t bytes);  // zeroed, page-aligned
  Status free(const void* memory);              // kNotFound, kBusy
  Status add_foreign(void* memory, uint64_t bytes);
  Status remove_foreign(const void* memory);

  // Finds where `bytes` at `data` lie and keeps that memory from being freed until unpin(data).
  // `foreign` is set if the daemon does not see it. kInvalidArgument: in no known memory.
  Result<Placement> pin(const void* data, uint64_t bytes, bool& foreign);
  void unpin(const void* data);

 private:
  struct Arena {  // one region, given out in pages
    std::unique_ptr<Region> region;
    std::map<uint64_t, uint64_t> free_spans;  // offset -> bytes, coalesced
    uint64_t given_to = 0;                    // nothing from here on was ever given out
    bool keeps_pages = false;                 // what comes back does not read as zeros by itself
  };
  struct Carved {
    Placement place;
    uint64_t used_bytes = 0;  // of its begin: they may not read as zeros
  };
  struct Block {
    uint64_t bytes = 0;
    uint32_t pins = 0;
    bool foreign = false;
    uint32_t region = 0;  // of what is not foreign
    uint64_t offset_bytes = 0;
  };
  using Blocks = std::map<uintptr_t, Block>;

  Blocks::iterator containing(const void* data, uint64_t bytes);
  bool overlaps(uintptr_t first, uint64_t bytes) const;
  std::optional<Carved> carve(uint64_t bytes);
  Status grow(uint64_t bytes);
  void give_back(const Block& block);

  Backend& backend_;
  std::mutex mutex_;
  std::map<uint32_t, Arena> arenas_;
  uint32_t last_region_ = 0;
  Blocks blocks_;
};

}  // namespace mercury::client
