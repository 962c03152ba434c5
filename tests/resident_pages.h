// Which pages of this process the kernel has memory for. For tests.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace mercury {

inline constexpr size_t kPage = 4096;

// `data` begins a page, and `bytes` are whole ones.
inline size_t resident_pages(const std::byte* data, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kPage);
  auto* const begin = const_cast<std::byte*>(data);
  if (::mincore(begin, bytes, pages.data()) != 0) return 0;
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

}  // namespace mercury
