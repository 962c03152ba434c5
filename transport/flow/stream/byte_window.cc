#include "transport/flow/stream/byte_window.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

// Calls use(block number, offset in the block, offset in the bytes, bytes) for each block that
// `bytes` bytes from `offset` on touch.
template <class F>
void for_each_block(uint64_t offset, size_t bytes, F use) {
  for (size_t done = 0; done < bytes;) {
    const uint64_t at = offset + done;
    const auto within = static_cast<size_t>(at % kStreamBlockBytes);
    const size_t take = std::min(bytes - done, kStreamBlockBytes - within);
    use(at / kStreamBlockBytes, within, done, take);
    done += take;
  }
}

}  // namespace

void ByteWindow::write(uint64_t offset, std::span<const std::byte> bytes) {
  if (blocks_.empty()) first_ = offset / kStreamBlockBytes;
  const uint64_t lowest = offset / kStreamBlockBytes;
  if (lowest < first_) {  // the first bytes came out of order
    const size_t had = blocks_.size();
    blocks_.resize(had + static_cast<size_t>(first_ - lowest));
    std::rotate(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(had), blocks_.end());
    first_ = lowest;
  }
  for_each_block(offset, bytes.size(),
                 [&](uint64_t number, size_t within, size_t done, size_t count) {
                   const auto index = static_cast<size_t>(number - first_);
                   if (index >= blocks_.size()) blocks_.resize(index + 1);
                   if (blocks_[index] == nullptr) blocks_[index] = take();
                   std::memcpy(blocks_[index]->bytes + within, bytes.data() + done, count);
                 });
  end_ = std::max(end_, offset + bytes.size());
}

void ByteWindow::read(uint64_t offset, std::span<std::byte> out) const noexcept {
  for_each_block(offset, out.size(),
                 [&](uint64_t number, size_t within, size_t done, size_t count) {
                   const auto index = static_cast<size_t>(number - first_);
                   std::memcpy(out.data() + done, blocks_[index]->bytes + within, count);
                 });
}

uint32_t ByteWindow::read_crc32c(uint32_t crc, uint64_t offset,
                                 std::span<std::byte> out) const noexcept {
  for_each_block(
      offset, out.size(), [&](uint64_t number, size_t within, size_t done, size_t count) {
        const auto index = static_cast<size_t>(number - first_);
        crc =
            wire::copy_crc32c_extend(crc, out.data() + done, blocks_[index]->bytes + within, count);
      });
  return crc;
}

size_t ByteWindow::parts(uint64_t offset, size_t bytes, std::span<iovec> parts) const noexcept {
  size_t count = 0;
  for_each_block(offset, bytes, [&](uint64_t number, size_t within, size_t, size_t length) {
    if (count == parts.size()) return;
    std::byte* const block = blocks_[static_cast<size_t>(number - first_)]->bytes;
    parts[count++] = {block + within, length};
  });
  return count;
}

size_t ByteWindow::reserve(uint64_t offset, size_t bytes, std::span<iovec> parts) {
  if (blocks_.empty()) first_ = offset / kStreamBlockBytes;
  const size_t most = parts.size() * kStreamBlockBytes - offset % kStreamBlockBytes;
  bytes = std::min(bytes, most);
  for_each_block(offset, bytes, [&](uint64_t number, size_t, size_t, size_t) {
    const auto index = static_cast<size_t>(number - first_);
    if (index >= blocks_.size()) blocks_.resize(index + 1);
    if (blocks_[index] == nullptr) blocks_[index] = take();
  });
  return this->parts(offset, bytes, parts);
}

void ByteWindow::extend(uint64_t end) {
  end_ = std::max(end_, end);
  const size_t used =
      static_cast<size_t>((end_ + kStreamBlockBytes - 1) / kStreamBlockBytes - first_);
  while (blocks_.size() > used) {
    if (blocks_.back() != nullptr && pool_ != nullptr) pool_->give(std::move(blocks_.back()));
    blocks_.pop_back();
  }
  if (blocks_.empty()) clear();
}

void ByteWindow::release_before(uint64_t offset) noexcept {
  if (offset >= end_) return clear();
  const uint64_t lowest = offset / kStreamBlockBytes;
  if (lowest > first_) give_first(std::min(static_cast<size_t>(lowest - first_), blocks_.size()));
}

void ByteWindow::clear() noexcept {
  give_first(blocks_.size());
  empty_at_rest(blocks_);
}

void ByteWindow::give_first(size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    if (blocks_[i] != nullptr && pool_ != nullptr) pool_->give(std::move(blocks_[i]));
  }
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(count));
  first_ += count;
}

}  // namespace mercury
