#include "tests/allocations.h"

#include <cstdlib>
#include <new>

namespace {
uint64_t g_allocations = 0;
}
// Not inlined: GCC would take malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

uint64_t mercury::allocations() noexcept { return g_allocations; }
