#include "aggregator/finish/finish.h"

namespace mercury::aggregation {

Result<Finish> finish_of(const AggregationTensor& spec) {
  switch (spec.op) {
    case ReduceOp::kSum:
    case ReduceOp::kMin:  // the lesser and the greater are one of what came: nothing is divided
    case ReduceOp::kMax:
      break;
    case ReduceOp::kAverage:
      return Finish(Average());
  }
  return Finish(Sum());
}

}  // namespace mercury::aggregation
