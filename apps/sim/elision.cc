#include "apps/sim/elision.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

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

Result<AddressSpace> AddressSpace::create(size_t bytes) {
  void* const data =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return Error::system(errno, "cannot reserve addresses for a tensor");
  AddressSpace space;
  space.data_ = static_cast<std::byte*>(data);
  space.bytes_ = bytes;
  return space;
}

AddressSpace::AddressSpace(AddressSpace&& other) noexcept { *this = std::move(other); }
AddressSpace& AddressSpace::operator=(AddressSpace&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
AddressSpace::~AddressSpace() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace mercury::simulator
