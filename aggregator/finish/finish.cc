#include "aggregator/finish/finish.h"

namespace mercury::aggregation {

Result<Finish> finish_of(const AggregationTensor& spec) {
  switch (spec.op) {
    case ReduceOp::kSum:
      break;
    case ReduceOp::kAverage:
      return Finish(Average());
  }
  return Finish(Sum());
}

}  // namespace mercury::aggregation
