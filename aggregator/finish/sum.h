// Finish: the sum of the contributions.
#pragma once

#include "aggregator/finish/accumulated.h"

namespace mercury::aggregation {

struct Sum {
  static void finish(const Accumulated& chunk) noexcept { round_quotient(chunk, 1); }
};

}  // namespace mercury::aggregation
