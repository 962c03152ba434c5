// What the units hand to kernels/choose.cc, which alone knows whether the CPU can run them. The
// units themselves are compiled for instructions that the CPU may lack, so nothing of theirs runs
// before that is known: these tables are constants.
#pragma once

#include "aggregator/kernels/kernels.h"

namespace mercury::aggregation {

extern const KernelSet kScalarSet;
extern const KernelSet kAvx2Set;
extern const KernelSet kAvx512Set;

}  // namespace mercury::aggregation
