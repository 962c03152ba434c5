#include "shim/client/memory_map.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace mercury::client {
namespace {

// Regions double up to this, so that many small tensors need few of them and a small program
// shares little. Pages that nobody touched cost nothing.
constexpr uint64_t kFirstRegionBytes = uint64_t{4} << 20;
constexpr uint64_t kLargestStepBytes = uint64_t{64} << 20;

uint64_t page_bytes() {
  static const auto kBytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return kBytes;
}

Error not_known(const char* what) {
  return Error(Errc::kNotFound, std::string("the memory is not from ") + what);
}

}  // namespace

MemoryMap::MemoryMap(Backend& backend) : backend_(backend) {}
MemoryMap::~MemoryMap() = default;

Result<std::byte*> MemoryMap::allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > attach::kMaxRegionBytes) {
    return Error(Errc::kInvalidArgument, "cannot allocate " + std::to_string(bytes) + " bytes");
  }
  bytes = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  std::unique_lock lock(mutex_);
  std::optional<Carved> carved = carve(bytes);
  if (!carved) {
    if (Status status = grow(bytes); !status) return status.error();
    carved = carve(bytes);
  }
  const Placement& place = carved->place;
  Block block;
  block.bytes = bytes;
  block.region = place.region;
  block.offset_bytes = place.offset_bytes;
  blocks_.emplace(reinterpret_cast<uintptr_t>(place.data), block);
  lock.unlock();
  std::memset(place.data, 0, carved->used_bytes);
  return place.data;
}

// First fit.
std::optional<MemoryMap::Carved> MemoryMap::carve(uint64_t bytes) {
  for (auto& [id, arena] : arenas_) {
    const auto span = std::find_if(arena.free_spans.begin(), arena.free_spans.end(),
                                   [&](const auto& s) { return s.second >= bytes; });
    if (span == arena.free_spans.end()) continue;
    const auto [offset, length] = *span;
    arena.free_spans.erase(span);
    if (length > bytes) arena.free_spans.emplace(offset + bytes, length - bytes);
    const uint64_t given = std::clamp(arena.given_to, offset, offset + bytes) - offset;
    arena.given_to = std::max(arena.given_to, offset + bytes);
    return Carved{{arena.region->data() + offset, id, offset}, arena.keeps_pages ? given : 0};
  }
  return std::nullopt;
}

Status MemoryMap::grow(uint64_t bytes) {
  uint64_t total = 0;
  for (const auto& [id, arena] : arenas_) total += arena.region->bytes();
  const uint64_t step = std::clamp(total, kFirstRegionBytes, kLargestStepBytes);
  const uint32_t id = ++last_region_;
  Result<std::unique_ptr<Region>> region = backend_.add_region(id, std::max(bytes, step));
  if (!region) return region.error();
  Arena arena;
  arena.free_spans.emplace(0, (*region)->bytes());
  arena.region = std::move(*region);
  arenas_.emplace(id, std::move(arena));
  return {};
}

// It reads as zeros when given out again. Its pages go back to the system: at once where no daemon
// keeps them, else with all of the region.
void MemoryMap::give_back(const Block& block) {
  const auto found = arenas_.find(block.region);
  Arena& arena = found->second;
  if (!arena.region->discard(block.offset_bytes, block.bytes)) arena.keeps_pages = true;
  auto [span, fresh] = arena.free_spans.emplace(block.offset_bytes, block.bytes);
  if (const auto next = std::next(span);
      next != arena.free_spans.end() && span->first + span->second == next->first) {
    span->second += next->second;
    arena.free_spans.erase(next);
  }
  if (span != arena.free_spans.begin()) {
    const auto before = std::prev(span);
    if (before->first + before->second == span->first) {
      before->second += span->second;
      arena.free_spans.erase(span);
    }
  }
  const bool unused =
      arena.free_spans.size() == 1 && arena.free_spans.begin()->second == arena.region->bytes();
  if (!unused) return;
  arenas_.erase(found);  // whoever unmaps last gives the pages back
  (void)backend_.remove_region(block.region);
}

Status MemoryMap::free(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (it == blocks_.end() || it->second.foreign) return not_known("mercury_alloc");
  if (it->second.pins > 0) {
    return Error(Errc::kBusy, "a declared tensor lies in the memory; close its job first");
  }
  give_back(it->second);
  blocks_.erase(it);
  return {};
}

Status MemoryMap::add_foreign(void* memory, uint64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(memory);
  if (!memory || bytes == 0 || first + bytes < first) {
    return Error(Errc::kInvalidArgument, "memory to register must have an address and a size");
  }
  const std::lock_guard lock(mutex_);
  if (overlaps(first, bytes)) {
    return Error(Errc::kExists, "the memory overlaps memory that is known already");
  }
  Block block;
  block.bytes = bytes;
  block.foreign = true;
  blocks_.emplace(first, block);
  return {};
}

Status MemoryMap::remove_foreign(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(reinterpret_cast<uintptr_t>(memory));
  if (it == blocks_.end() || !it->second.foreign) return not_known("mercury_register");
  if (it->second.pins > 0) {
    return Error(Errc::kBusy, "a declared tensor lies in the memory; close its job first");
  }
  blocks_.erase(it);
  return {};
}

bool MemoryMap::overlaps(uintptr_t first, uint64_t bytes) const {
  const auto next = blocks_.lower_bound(first);
  if (next != blocks_.end() && next->first - first < bytes) return true;
  if (next == blocks_.begin()) return false;
  const auto before = std::prev(next);
  return first - before->first < before->second.bytes;
}

MemoryMap::Blocks::iterator MemoryMap::containing(const void* data, uint64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(data);
  auto it = blocks_.upper_bound(first);
  if (it == blocks_.begin()) return blocks_.end();
  --it;
  const uint64_t offset = first - it->first;
  if (offset >= it->second.bytes || bytes > it->second.bytes - offset) return blocks_.end();
  return it;
}

Result<Placement> MemoryMap::pin(const void* data, uint64_t bytes, bool& foreign) {
  const std::lock_guard lock(mutex_);
  const auto it = containing(data, bytes);
  if (it == blocks_.end()) {
    return Error(Errc::kInvalidArgument,
                 "the tensor does not lie in memory of mercury_alloc or mercury_register");
  }
  Block& block = it->second;
  ++block.pins;
  foreign = block.foreign && !backend_.sees_program_memory();
  Placement place;
  place.data = static_cast<std::byte*>(const_cast<void*>(data));
  if (!block.foreign) {
    place.region = block.region;
    place.offset_bytes = block.offset_bytes + (reinterpret_cast<uintptr_t>(data) - it->first);
  }
  return place;
}

void MemoryMap::unpin(const void* data) {
  const std::lock_guard lock(mutex_);
  const auto it = containing(data, 1);
  if (it != blocks_.end()) --it->second.pins;
}

}  // namespace mercury::client
