// Leaves nothing of a secret in memory that is given back.
//
// Owner/thread: pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstring>  // explicit_bzero
#include <memory>
#include <string>
#include <vector>

namespace mercury {

// Which no compiler leaves out.
inline void wipe(void* data, size_t bytes) noexcept {
  if (bytes > 0) ::explicit_bzero(data, bytes);
}

inline void wipe(std::string& secret) {
  secret.resize(secret.capacity());  // what was longer once may stand behind its end
  wipe(secret.data(), secret.size());
  secret.clear();
}

// Of containers that a secret passes through: they give back memory as they grow, too.
template <class T>
struct WipingAllocator {
  using value_type = T;
  WipingAllocator() = default;
  template <class U>
  WipingAllocator(const WipingAllocator<U>&) noexcept {}
  T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* data, size_t count) noexcept {
    wipe(data, count * sizeof(T));
    std::allocator<T>().deallocate(data, count);
  }
  friend bool operator==(const WipingAllocator&, const WipingAllocator&) { return true; }
};

using SecretBytes = std::vector<std::byte, WipingAllocator<std::byte>>;

}  // namespace mercury
