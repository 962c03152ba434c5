// Kernels for any CPU.
#include "aggregator/kernels/loops.h"
#include "aggregator/kernels/scalar_lanes.h"
#include "aggregator/kernels/units.h"

namespace mercury::aggregation {
namespace {

struct Scalar {
  template <Dtype kType>
  using One = ScalarLaneOf<Scalar, kType>;
  template <Dtype kType>
  using Wide = One<kType>;
};

}  // namespace

constexpr KernelSet kScalarSet = kernel_set<Scalar>("scalar");

}  // namespace mercury::aggregation
