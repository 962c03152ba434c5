#include "shim/client/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace mercury::client {
namespace {

using Cell = std::atomic<uint64_t>;

// Never freed: handles may outlive static destruction.
Cell* wiped_page() {
  static Cell* const kPage = [] {
    const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return static_cast<Cell*>(nullptr);
    ::madvise(page, bytes, MADV_WIPEONFORK);
    return static_cast<Cell*>(page);
  }();
  return kPage;
}

// Survives fork, so that a child's cookies differ from all that its parent gave out.
std::atomic<uint64_t> last_cookie{0};

}  // namespace

ForkGuard::ForkGuard() : cookie_(0) {
  Cell* page = wiped_page();
  if (!page) return;
  uint64_t current = page->load();
  if (current == 0) {
    const uint64_t fresh = ++last_cookie;
    if (page->compare_exchange_strong(current, fresh)) current = fresh;
  }
  cookie_ = current;
}

bool ForkGuard::in_child() const noexcept {
  const Cell* page = wiped_page();
  return page && page->load(std::memory_order_relaxed) != cookie_;
}

}  // namespace mercury::client
