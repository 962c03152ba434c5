#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <string_view>

#include "aggregator/aggregator.h"
#include "aggregator/kernels/kernels.h"
#include "aggregator/kernels/units.h"

namespace mercury {
namespace aggregation {
namespace {

const KernelSet* choose() noexcept {
  __builtin_cpu_init();
  if (const KernelSet* set = avx512_kernels()) return set;
  if (const KernelSet* set = avx2_kernels()) return set;
  return scalar_kernels();
}

std::atomic<const KernelSet*> g_kernels{choose()};

}  // namespace

// __builtin_cpu_supports also asks whether the operating system saves the registers.
const KernelSet* scalar_kernels() noexcept { return &kScalarSet; }

const KernelSet* avx2_kernels() noexcept {
#if defined(__x86_64__)
  // F16C by hand: clang 14's builtin does not know its name. Its registers are those of AVX2.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") ? &kAvx2Set : nullptr;
#else
  return nullptr;
#endif
}

const KernelSet* avx512_kernels() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") ? &kAvx512Set : nullptr;
#else
  return nullptr;
#endif
}

const KernelSet& kernels() noexcept { return *g_kernels.load(std::memory_order_relaxed); }

void use_kernels(const KernelSet& set) noexcept {
  g_kernels.store(&set, std::memory_order_relaxed);
}

}  // namespace aggregation

const char* aggregation_kernel() noexcept { return aggregation::kernels().name; }

bool force_aggregation_kernel(const char* name) noexcept {
  using namespace aggregation;
  for (const KernelSet* set : {scalar_kernels(), avx2_kernels(), avx512_kernels()}) {
    if (set != nullptr && std::string_view(set->name) == name) {
      g_kernels.store(set, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace mercury
