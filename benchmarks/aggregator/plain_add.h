// The loop that the aggregator's kernels are measured against: what a compiler makes of one
// addition per element, for the widest vectors of this CPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mercury::bench {

__extension__ using Half = _Float16;

void plain_add(float* sum, const float* wire, size_t elems) noexcept;
void plain_add(double* sum, const double* wire, size_t elems) noexcept;
void plain_add(uint32_t* sum, const uint32_t* wire, size_t elems) noexcept;
void plain_add(uint64_t* sum, const uint64_t* wire, size_t elems) noexcept;
void plain_add(float* sum, const Half* wire, size_t elems) noexcept;
// bf16: the upper half of a float.
void plain_add(float* sum, const uint16_t* wire, size_t elems) noexcept;

}  // namespace mercury::bench
