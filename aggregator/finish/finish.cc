#include "aggregator/finish/finish.h"

namespace mercury::aggregation {

Finish finish_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      break;
    case ReduceOp::kAverage:
      return Average();
  }
  return Sum();
}

}  // namespace mercury::aggregation
