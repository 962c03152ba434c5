// The part of a byte stream that is kept: what a sender may have to send again, or a receiver has
// not handed on. It lies in blocks, which come as the window moves over them and go when it has
// left, so that memory follows what is kept and a stream at rest holds no block (its session's
// BlockPool keeps some for the next).
//
// Owner/thread: one engine.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace mercury {

// One page: a window that holds few bytes wastes little, and a megabyte is few blocks.
inline constexpr size_t kStreamBlockBytes = 4096;

struct StreamBlock {
  std::byte bytes[kStreamBlockBytes];
};

// Empties a list of a stream that comes to rest. What short messages need it keeps, so that they do
// not go through the heap; what a burst needed it gives back, as there may be many streams at rest.
template <class T>
void empty_at_rest(std::vector<T>& list) noexcept {
  constexpr size_t kKept = 32;
  list.clear();
  if (list.capacity() > kKept) std::vector<T>().swap(list);
}

// Blocks for the streams of one session. Those that come back are kept for the next window, so that
// bytes that flow do not go through the heap, up to a bound.
class BlockPool {
 public:
  explicit BlockPool(size_t most_spare) : most_spare_(most_spare) {}

  std::unique_ptr<StreamBlock> take() {
    ++in_use_;
    if (spare_.empty()) return std::make_unique_for_overwrite<StreamBlock>();
    std::unique_ptr<StreamBlock> block = std::move(spare_.back());
    spare_.pop_back();
    return block;
  }
  void give(std::unique_ptr<StreamBlock> block) {
    --in_use_;
    if (spare_.size() < most_spare_) spare_.push_back(std::move(block));
  }
  size_t in_use() const noexcept { return in_use_; }

 private:
  size_t most_spare_;
  size_t in_use_ = 0;
  std::vector<std::unique_ptr<StreamBlock>> spare_;
};

class ByteWindow {
 public:
  // Without a pool blocks come from the heap and go back there at once.
  explicit ByteWindow(BlockPool* pool = nullptr) : pool_(pool) {}
  ~ByteWindow() { clear(); }
  ByteWindow(const ByteWindow&) = delete;
  ByteWindow& operator=(const ByteWindow&) = delete;

  // Bytes of the stream, from `offset` on; none of them before what was released.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // What was written there.
  void read(uint64_t offset, std::span<std::byte> out) const noexcept;
  // The same; returns the CRC-32C of what `crc` is of, and of this behind it.
  uint32_t read_crc32c(uint32_t crc, uint64_t offset, std::span<std::byte> out) const noexcept;
  // The same in place, as parts that follow one another; returns how many, at most parts.size().
  size_t parts(uint64_t offset, size_t bytes, std::span<iovec> parts) const noexcept;
  // Room for bytes from `offset` on, where nothing was written yet, in blocks that are new but for
  // the first: as parts. Whatever is written there is made known by extend(), and blocks that
  // nothing was written to are given back by it.
  size_t reserve(uint64_t offset, size_t bytes, std::span<iovec> parts);
  void extend(uint64_t end);
  // Nothing before `offset` is needed any more.
  void release_before(uint64_t offset) noexcept;
  void clear() noexcept;

 private:
  std::unique_ptr<StreamBlock> take() {
    return pool_ ? pool_->take() : std::make_unique_for_overwrite<StreamBlock>();
  }
  void give_first(size_t count) noexcept;

  BlockPool* pool_;
  uint64_t first_ = 0;  // number of blocks_[0]: its offset / kStreamBlockBytes
  uint64_t end_ = 0;    // of all that was written
  std::vector<std::unique_ptr<StreamBlock>> blocks_;  // null where nothing was written
};

}  // namespace mercury
