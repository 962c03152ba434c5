// The bytes of a stream that is measured: blocks of one size, each with a mark before it, and a
// last mark. Both ends know what stands in each block, so that each byte can be compared.
//
// Shape: a block is one byte of mark (kMore, kEnd) and `bytes` of payload; the end has none.
// Thread: one. Errors: those of talk.h; kProtocol where a mark is none, or a byte is wrong that is
// compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "transport/base/result.h"

namespace mercury::perf {

// What stands in blocks: a stretch of random bytes, for each block another one.
class BlockContents {
 public:
  explicit BlockContents(size_t bytes);
  // Block `number`'s; the first one's for all where nothing is compared.
  std::span<const std::byte> of(uint64_t number) const;
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::vector<std::byte> random_;
};

struct BlockCount {
  uint64_t blocks = 0;
  uint64_t compared_bytes = 0;
};

// Sends until `go_on` says no, which it is asked before each block; then the end.
Result<BlockCount> send_blocks(int fd, const BlockContents& contents, bool vary,
                               const std::function<bool()>& go_on);
// Until the end. With `compare` the sender varies what stands in them.
Result<BlockCount> receive_blocks(int fd, const BlockContents& contents, bool compare);

}  // namespace mercury::perf
