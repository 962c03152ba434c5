#include "apps/sim/elision.h"

#include "aggregator/aggregator.h"
#include "aggregator/kernels/kernels.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/crc32c_kernels.h"

namespace mercury::simulator {
namespace {

uint32_t no_extend(uint32_t crc, const std::byte*, size_t) noexcept { return crc; }
uint32_t no_copy(uint32_t crc, std::byte*, const std::byte*, size_t, const std::byte*) noexcept {
  return crc;
}
uint32_t no_six_words(uint32_t crc, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                      uint64_t) noexcept {
  return crc;
}
constexpr wire::CrcKernel kNoCrc{"none", no_extend, no_copy, no_six_words};

void no_sum(std::byte*, const std::byte*, size_t) noexcept {}
constexpr aggregation::TypeKernels kNoSum{nullptr, no_sum, nullptr};
constexpr aggregation::KernelSet kNoSums{"none", {kNoSum, kNoSum, kNoSum, kNoSum, kNoSum, kNoSum}};

}  // namespace

PayloadElision::PayloadElision()
    : crc_kernel_(wire::crc32c_kernel()), sum_kernel_(aggregation_kernel()) {
  wire::crc32c_use_kernel(kNoCrc);
  aggregation::use_kernels(kNoSums);
}

PayloadElision::~PayloadElision() {
  wire::crc32c_force_kernel(crc_kernel_.c_str());
  force_aggregation_kernel(sum_kernel_.c_str());
}

}  // namespace mercury::simulator
