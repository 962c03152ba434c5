// Questions that take many predictions: the best partition and credit, and the bandwidth that is
// enough. Errors: those of predict().
#pragma once

#include <vector>

#include "scheduler/model/predict.h"

namespace mercury::model {

struct Candidate {
  Policy policy;
  double iteration_s = 0;
};

// A grid: partitions of 1, 1.5, 2, 3, 4, 6 and 8 times a power of ten from 100 KB to 100 MB, each
// with credits of 1 to 32 partitions. ByteScheduler finds its two parameters by Bayesian
// optimisation (SOSP 2019, section 5; Mercury, section III.A); a grid does not miss the best of it.
std::vector<Policy> tuning_grid(const Policy& policy);

// The grid's policies, or `policy` alone where it has no partitions; the fastest first, of equal
// ones that with less credit, then with larger partitions.
Result<std::vector<Candidate>> tune(const Chain& chain, Rates rates, const Policy& policy);

// What tune() found, the first of each partition's size: credits that are large enough are alike,
// so that the best ten of all are of one size or two.
std::vector<Candidate> best_of_each_size(const std::vector<Candidate>& candidates);

// By what factor both rates must be multiplied for oracle over iteration time to reach `speed`
// (Mercury, Fig. 12), to one part in a million. Of partitions, which are not faster on every faster
// link, a factor below which some do not reach it. Besides predict()'s errors kUnsupported: not
// reached at a million times the rates.
Result<double> factor_for_speed(const Chain& chain, Rates rates, const Policy& policy,
                                double speed);

}  // namespace mercury::model
