#include "apps/replay/payload.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "transport/base/random.h"

namespace mercury {
namespace {

uint64_t mixed(uint64_t value) { return split_mix(value); }

// Whole numbers up to this are exact in the type; for the wide types, enough to tell values apart.
int64_t exact_limit(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16:
      return 256;
    case Dtype::kF16:
      return 2048;
    default:
      return 1 << 18;
  }
}

// What worker `rank` contributes at place `index` of its pattern. With more workers than there are
// exact numbers, zero but for so many of them, who are others at each place.
int64_t pattern(Dtype dtype, uint32_t workers, uint32_t rank, size_t index) {
  const int64_t speaking = std::min<int64_t>(workers, exact_limit(dtype));
  if (workers > speaking && static_cast<int64_t>((mixed(index) + rank) % workers) >= speaking) {
    return 0;
  }
  const int64_t most = exact_limit(dtype) / speaking;
  const uint64_t random = mixed(mixed(rank + 1) + index);
  return static_cast<int64_t>(random % static_cast<uint64_t>(2 * most + 1)) - most;
}

template <class T>
void put(T value, std::byte* out) {
  std::memcpy(out, &value, sizeof value);
}

// Of whole numbers up to 2048 alone: a shift of the float's fields is exact.
uint16_t half_bits(float value) {
  if (value == 0) return 0;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = ((bits >> 23) & 0xff) - 127 + 15;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000) | (exponent << 10) | ((bits >> 13) & 0x3ff));
}

float half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude = fraction != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void encode(Dtype dtype, int64_t value, std::byte* out) {
  switch (dtype) {
    case Dtype::kF32:
      return put(static_cast<float>(value), out);
    case Dtype::kF64:
      return put(static_cast<double>(value), out);
    case Dtype::kF16:
      return put(half_bits(static_cast<float>(value)), out);
    case Dtype::kBf16:
      return put(static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16),
                 out);
    case Dtype::kI32:
      return put(static_cast<int32_t>(value), out);
    case Dtype::kI64:
      return put(value, out);
    case Dtype::kI8:
    case Dtype::kU8:
      return put(static_cast<uint8_t>(value), out);  // wraps, as sums of them do
  }
}

template <class T>
T take(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::string number_text(double value, const char* format) {
  char text[40];
  const int length = std::snprintf(text, sizeof text, format, value);
  return std::string(text, static_cast<size_t>(std::max(length, 0)));
}

}  // namespace

std::string element_text(Dtype dtype, const std::byte* data) {
  switch (dtype) {
    case Dtype::kF32:
      return number_text(static_cast<double>(take<float>(data)), "%.9g");
    case Dtype::kF64:
      return number_text(take<double>(data), "%.17g");
    case Dtype::kF16:
      return number_text(static_cast<double>(half_value(take<uint16_t>(data))), "%.9g");
    case Dtype::kBf16:
      return number_text(static_cast<double>(std::bit_cast<float>(
                             static_cast<uint32_t>(take<uint16_t>(data)) << 16)),
                         "%.9g");
    case Dtype::kI32:
      return std::to_string(take<int32_t>(data));
    case Dtype::kI64:
      return std::to_string(take<int64_t>(data));
    case Dtype::kI8:
      return std::to_string(take<int8_t>(data));
    case Dtype::kU8:
      return std::to_string(take<uint8_t>(data));
  }
  return {};
}

Payload::Payload(Dtype dtype, uint32_t workers, uint32_t rank)
    : dtype_(dtype),
      element_bytes_(size_of(dtype)),
      own_(2 * kBlock * element_bytes_),
      sums_(2 * kBlock * element_bytes_) {
  for (size_t index = 0; index < 2 * kBlock; ++index) {
    int64_t sum = 0;
    for (uint32_t worker = 0; worker < workers; ++worker) {
      sum += pattern(dtype, workers, worker, index);
    }
    encode(dtype, pattern(dtype, workers, rank, index), own_.data() + index * element_bytes_);
    encode(dtype, sum, sums_.data() + index * element_bytes_);
  }
}

size_t Payload::offset_bytes(uint32_t tensor, uint64_t round, uint64_t block) const {
  return mixed(mixed(mixed(tensor) + round) + block) % kBlock * element_bytes_;
}

void Payload::fill(uint32_t tensor, uint64_t round, uint64_t first,
                   std::span<std::byte> data) const {
  const size_t block_bytes = kBlock * element_bytes_;
  for (uint64_t block = first / kBlock; !data.empty(); ++block) {
    const size_t length = std::min(block_bytes, data.size());
    std::memcpy(data.data(), own_.data() + offset_bytes(tensor, round, block), length);
    data = data.subspan(length);
  }
}

Payload::Verdict Payload::verify(uint32_t tensor, uint64_t round, uint64_t first,
                                 std::span<const std::byte> data) const {
  Verdict verdict;
  const size_t block_bytes = kBlock * element_bytes_;
  for (uint64_t block = first / kBlock; !data.empty(); ++block) {
    const size_t length = std::min(block_bytes, data.size());
    const std::byte* expected = sums_.data() + offset_bytes(tensor, round, block);
    if (std::memcmp(data.data(), expected, length) != 0) {
      compare(data.first(length), expected, block * kBlock, verdict);
    }
    data = data.subspan(length);
  }
  return verdict;
}

void Payload::compare(std::span<const std::byte> got, const std::byte* expected, uint64_t first,
                      Verdict& verdict) const {
  for (size_t at = 0; at < got.size(); at += element_bytes_) {
    if (std::memcmp(got.data() + at, expected + at, element_bytes_) == 0) continue;
    ++verdict.mismatches;
    if (verdict.first) continue;
    verdict.first = Mismatch{first + at / element_bytes_, element_text(dtype_, got.data() + at),
                             element_text(dtype_, expected + at)};
  }
}

}  // namespace mercury
