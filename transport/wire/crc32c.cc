#include "transport/wire/crc32c.h"

#include <array>
#include <atomic>
#include <cstring>
#include <string_view>

#include "transport/base/types.h"
#include "transport/wire/crc32c_kernels.h"

namespace mercury::wire {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCrcPolynomial : 0);
    tables[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t k = 1; k < 8; ++k) {
      tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

uint32_t table_word(uint32_t crc, uint64_t word) noexcept {
  word ^= crc;
  return kTables[7][word & 0xff] ^ kTables[6][(word >> 8) & 0xff] ^
         kTables[5][(word >> 16) & 0xff] ^ kTables[4][(word >> 24) & 0xff] ^
         kTables[3][(word >> 32) & 0xff] ^ kTables[2][(word >> 40) & 0xff] ^
         kTables[1][(word >> 48) & 0xff] ^ kTables[0][word >> 56];
}
uint32_t table_byte(uint32_t crc, std::byte byte) noexcept {
  return (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(byte)) & 0xff];
}

uint32_t table_extend(uint32_t crc, const std::byte* data, size_t bytes) noexcept {
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    crc = table_word(crc, word);
  }
  for (; bytes > 0; --bytes) crc = table_byte(crc, *data++);
  return crc;
}

uint32_t table_copy(uint32_t crc, std::byte* target, const std::byte* source, size_t bytes,
                    const std::byte* next) noexcept {
  for (; bytes >= 8; bytes -= 8, source += 8, target += 8) {
    if (bytes % kCacheLine < 8) next = fetch_line(next);
    uint64_t word;
    std::memcpy(&word, source, 8);
    word = read_once(word);
    std::memcpy(target, &word, 8);
    crc = table_word(crc, word);
  }
  for (; bytes > 0; --bytes) {
    const auto byte = static_cast<std::byte>(read_once(static_cast<uint64_t>(*source++)));
    *target++ = byte;
    crc = table_byte(crc, byte);
  }
  return crc;
}

uint32_t table_six_words(uint32_t crc, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                         uint64_t f) noexcept {
  for (const uint64_t word : {a, b, c, d, e, f}) crc = table_word(crc, word);
  return crc;
}

constexpr CrcKernel kTableKernel{"table", table_extend, table_copy, table_six_words};

constexpr size_t kKernels = 3;
using Kernels = std::array<const CrcKernel*, kKernels>;
// Widest first; null where the CPU lacks one.
Kernels kernels() noexcept { return {crc32c_avx512(), crc32c_sse42(), &kTableKernel}; }

const CrcKernel* choose() noexcept {
  for (const CrcKernel* kernel : kernels()) {
    if (kernel != nullptr) return kernel;
  }
  return &kTableKernel;
}

const CrcKernel& kernel() noexcept { return *g_crc_kernel.load(std::memory_order_relaxed); }

}  // namespace

// Valid from the first instruction, so that an initialiser elsewhere may sum; the choice follows.
constinit std::atomic<const CrcKernel*> g_crc_kernel{&kTableKernel};
[[maybe_unused]] static const bool g_chosen = (g_crc_kernel.store(choose()), true);

uint32_t crc32c(const std::byte* data, size_t bytes) noexcept {
  return ~kernel().extend(~uint32_t{0}, data, bytes);
}

uint32_t crc32c_extend(uint32_t crc, const std::byte* data, size_t bytes) noexcept {
  return ~kernel().extend(~crc, data, bytes);
}

uint32_t crc32c_of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                         uint64_t f) noexcept {
  return ~kernel().six_words(~uint32_t{0}, a, b, c, d, e, f);
}

// A prefetch of what is written anyway does no harm.
uint32_t copy_crc32c(std::byte* target, const std::byte* source, size_t bytes) noexcept {
  return copy_crc32c_fetching(target, source, bytes, target);
}

uint32_t copy_crc32c_extend(uint32_t crc, std::byte* target, const std::byte* source,
                            size_t bytes) noexcept {
  return ~kernel().copy(~crc, target, source, bytes, target);
}

void crc32c_use_kernel(const CrcKernel& kernel) noexcept {
  g_crc_kernel.store(&kernel, std::memory_order_relaxed);
}

const char* crc32c_kernel() noexcept { return kernel().name; }

bool crc32c_force_kernel(const char* name) noexcept {
  for (const CrcKernel* candidate : kernels()) {
    if (candidate != nullptr && std::string_view(name) == candidate->name) {
      g_crc_kernel.store(candidate, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace mercury::wire
