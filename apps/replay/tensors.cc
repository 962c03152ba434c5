#include "apps/replay/tensors.h"

namespace mercury {

static_assert(static_cast<int>(Dtype::kF32) == MERCURY_DTYPE_F32 &&
              static_cast<int>(Dtype::kF64) == MERCURY_DTYPE_F64 &&
              static_cast<int>(Dtype::kF16) == MERCURY_DTYPE_F16 &&
              static_cast<int>(Dtype::kBf16) == MERCURY_DTYPE_BF16 &&
              static_cast<int>(Dtype::kI32) == MERCURY_DTYPE_I32 &&
              static_cast<int>(Dtype::kI64) == MERCURY_DTYPE_I64 &&
              static_cast<int>(Dtype::kI8) == MERCURY_DTYPE_I8 &&
              static_cast<int>(Dtype::kU8) == MERCURY_DTYPE_U8);

// One allocation for all tensors, each from a cache line of its own.
Result<std::vector<std::span<std::byte>>> allocate_tensors(const Trace& trace,
                                                           mercury_context* context) {
  std::vector<size_t> begins;
  size_t total_bytes = 0;
  for (const TraceTensor& tensor : trace.tensors) {
    begins.push_back(total_bytes);
    total_bytes += (tensor.bytes() + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  void* memory = nullptr;
  if (mercury_alloc(context, total_bytes, &memory) < 0) {
    return Error(Errc::kSystem, "cannot allocate " + std::to_string(total_bytes) +
                                    " bytes for the tensors: " + mercury_last_error());
  }
  std::vector<std::span<std::byte>> parts;
  for (size_t n = 0; n < begins.size(); ++n) {
    parts.emplace_back(static_cast<std::byte*>(memory) + begins[n], trace.tensors[n].bytes());
  }
  return parts;
}

Status declare_tensors(const Trace& trace, const std::vector<std::span<std::byte>>& memory,
                       mercury_job* job, uint32_t first_id) {
  std::vector<mercury_tensor_options> tensors;
  for (const TraceTensor& each : trace.tensors) {
    mercury_tensor_options tensor{};
    tensor.size = sizeof tensor;
    tensor.id = first_id + static_cast<uint32_t>(tensors.size());
    tensor.numel = each.numel;
    tensor.dtype = static_cast<mercury_dtype>(each.dtype);
    tensor.op = MERCURY_REDUCE_SUM;
    tensor.priority = each.priority;
    tensor.data = memory[tensors.size()].data();
    tensors.push_back(tensor);
  }
  if (mercury_declare(job, tensors.data(), tensors.size()) < 0) {
    return Error(Errc::kSystem, std::string("cannot declare the tensors: ") + mercury_last_error());
  }
  return {};
}

}  // namespace mercury
