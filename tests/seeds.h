// Tests that are decided by a seed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

namespace mercury {

// The first `usual` seeds, until one fails. MERCURY_SEEDS and MERCURY_FIRST_SEED choose others.
template <class Body>
void for_each_seed(uint64_t usual, Body body) {
  const char* count = std::getenv("MERCURY_SEEDS");
  const char* start = std::getenv("MERCURY_FIRST_SEED");
  const uint64_t seeds = count ? std::strtoull(count, nullptr, 10) : usual;
  ASSERT_GT(seeds, 0U) << "MERCURY_SEEDS is \"" << count << "\"";
  const uint64_t first = start ? std::strtoull(start, nullptr, 10) : 1;
  for (uint64_t seed = first; seed < first + seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    body(seed);
  }
}

}  // namespace mercury
