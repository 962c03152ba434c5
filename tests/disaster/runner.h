// Runs ranges of seeds in child processes: a crash or an endless loop is the finding of one seed,
// not the end of the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/disaster/scenario.h"

namespace mercury::disaster {

struct Failure {
  uint64_t seed = 0;
  std::string what;
};

struct RangeResult {
  uint64_t seeds = 0;             // that ended
  std::vector<Failure> failures;  // by seed
  uint64_t frames = 0;
  uint64_t sums = 0;
  uint64_t programs = 0;
  uint64_t succeeded = 0;
  double virtual_seconds = 0;
  double longest_wait_seconds = 0;
  uint64_t longest_wait_seed = 0;
};

struct RangeOptions {
  uint64_t from = 1;
  uint64_t seeds = 1;
  unsigned jobs = 1;
  uint64_t stop_after = 0;       // failures; 0: run all
  unsigned seconds_a_seed = 60;  // of processor time; more is a hang
  bool progress = false;
  std::function<void(const Failure&)> found;  // hears of each failure at once, in any order
};

RangeResult run_range(const RangeOptions& options);
// One seed in a child: what went wrong, crashes included; empty if nothing did.
std::string run_apart(uint64_t seed, const Reduction& reduction, unsigned seconds);

}  // namespace mercury::disaster
