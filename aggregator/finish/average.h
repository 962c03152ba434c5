// Finish: the mean of the contributions, divided once, before it is rounded.
#pragma once

#include "aggregator/finish/accumulated.h"

namespace mercury::aggregation {

struct Average {
  static void finish(const Accumulated& chunk) noexcept {
    round_quotient(chunk, chunk.contributions);
  }
};

}  // namespace mercury::aggregation
