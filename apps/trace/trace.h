// A model trace: the tensors of a model, their sizes, and how long the forward and backward pass
// computes between them. Read from a CSV file, whose first line names the columns, in any order:
//
//   layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority[,update_ns][,depends]
//
//   layer_index       a layer's tensors (weight, bias) share one
//   name              1 to 127 of [A-Za-z0-9_./:-], each once
//   numel             elements, from 1
//   dtype             f32, f64, f16, bf16, i32 or i64
//   *_ns              compute time of the tensor's layer, nanoseconds, up to an hour
//   priority          0 to 65535, 0 the most urgent
//   depends           names that the forward pass computes before this one, with ';' between
//
// Lines before the column names that begin with '#' are comments. Quoting is refused: no field
// needs it. A layer's position in a file is not always its execution order: with `depends`, the
// tensors are sorted by it (among those that could be next, by layer_index, then by position);
// without, by layer_index, then by position.
//
// Errors: kConfig, "FILE:LINE: reason"; kSystem where the file cannot be read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/terms/element.h"
#include "transport/base/result.h"
#include "transport/base/types.h"

namespace mercury {

struct TraceTensor {
  std::string name;
  uint64_t numel = 0;
  uint64_t forward_ns = 0;
  uint64_t backward_ns = 0;
  uint64_t update_ns = 0;  // of the parameters, once the sum is there; 0 without the column
  uint32_t layer_index = 0;
  uint32_t line = 0;  // in the file, from 1
  uint16_t priority = 0;
  Dtype dtype = Dtype::kF32;
  std::vector<uint32_t> depends{};  // ascending indexes in Trace::tensors, all below this one's

  uint64_t bytes() const { return numel * size_of(dtype); }
};

struct Trace {
  // In the order in which the forward pass uses them; gradients become ready in reverse.
  std::vector<TraceTensor> tensors{};

  uint64_t bytes() const;
  uint64_t forward_ns() const;
  uint64_t backward_ns() const;
};

inline constexpr uint64_t kMaxTraceFileBytes = 64 << 20;
inline constexpr uint64_t kMaxTraceTensorBytes = uint64_t{1} << 40;
inline constexpr uint64_t kMaxTraceTimeNs = 3'600'000'000'000;  // no sum of them overflows
inline constexpr uint32_t kMaxTraceTensors = kPriorities;

// `file` names the text in errors.
Result<Trace> parse_trace(std::string_view text, std::string_view file);
Result<Trace> read_trace(const std::string& path);

}  // namespace mercury
