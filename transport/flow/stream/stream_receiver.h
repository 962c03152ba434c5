// The receiving half of one ordered byte stream: what arrives out of order is kept in its place
// until what was before it has come. What follows on at once may stay where it is for a while, so
// that it need not be copied at all. How far a peer may go is the caller's to check.
//
// Invariant: what is lent follows what is kept without a gap, and ends at arrived().
// Owner/thread: one engine. Allocates as its window grows, not for each segment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/flow/stream/byte_window.h"

namespace mercury {

class StreamReceiver {
 public:
  // A hostile peer could send every second byte: beyond so many gaps what would make another is
  // refused. Segments of 1,184 bytes leave fewer in any window up to 512 KiB.
  static constexpr size_t kMaxGaps = 256;

  explicit StreamReceiver(BlockPool* pool = nullptr) : bytes_(pool) {}

  // `bytes` of the stream at `offset`. False: too fragmented; they must not be acknowledged.
  bool on_bytes(uint64_t offset, std::span<const std::byte> bytes);
  // The same of bytes that stay where they are until keep(): in order they are not copied.
  bool on_lent_bytes(uint64_t offset, std::span<const std::byte> bytes);
  // Copies what is lent and was not consumed: it is about to go.
  void keep();
  bool has_lent_bytes() const noexcept { return !lent_.empty(); }
  uint64_t arrived() const noexcept { return arrived_; }  // without a gap
  uint64_t highest() const noexcept { return pieces_.empty() ? arrived_ : pieces_.back().end; }
  uint64_t consumed() const noexcept { return consumed_; }
  size_t readable() const noexcept { return static_cast<size_t>(arrived_ - consumed_); }

  // The first out.size() readable bytes, which stay; there are as many, and none is lent.
  void peek(std::span<std::byte> out) const noexcept { bytes_.read(consumed_, out); }
  // The first readable bytes in place, as parts; returns how many parts.
  size_t peek(std::span<iovec> parts) const noexcept;
  void consume(size_t bytes) noexcept;  // as many are readable
  // At most out.size() bytes; returns how many.
  size_t read(std::span<std::byte> out);
  // Forgets all that is kept and takes everything up to `offset` for consumed.
  void discard_to(uint64_t offset) noexcept;

 private:
  struct Piece {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  bool note(uint64_t begin, uint64_t end);
  uint64_t kept_end() const noexcept { return arrived_ - lent_bytes_; }  // of what has no gap
  void return_bytes(size_t bytes) noexcept;

  ByteWindow bytes_;
  std::vector<std::span<const std::byte>> lent_;
  size_t lent_bytes_ = 0;
  uint64_t arrived_ = 0;
  uint64_t consumed_ = 0;
  std::vector<Piece> pieces_;  // behind gaps: ascending, apart from each other
};

}  // namespace mercury
