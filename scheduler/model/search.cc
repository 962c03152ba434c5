#include "scheduler/model/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "scheduler/model/equations.h"

namespace mercury::model {
namespace {

constexpr std::array<uint64_t, 7> kSteps = {10, 15, 20, 30, 40, 60, 80};  // tenths
constexpr std::array<uint64_t, 12> kCredits = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32};
constexpr uint64_t kLeastBytes = 100'000, kMostBytes = 100'000'000;
constexpr double kMostFactor = 1e6;

}  // namespace

std::vector<Policy> tuning_grid(const Policy& policy) {
  if (policy.release != Policy::Release::kPartition) return {policy};
  std::vector<Policy> grid;
  for (uint64_t decade = kLeastBytes; decade <= kMostBytes; decade *= 10) {
    for (uint64_t step : kSteps) {
      const uint64_t partition_bytes = decade / 10 * step;
      if (partition_bytes > kMostBytes) break;
      for (uint64_t credit : kCredits) {
        grid.push_back(policy);
        grid.back().partition_bytes = partition_bytes;
        grid.back().credit_bytes = partition_bytes * credit;
      }
    }
  }
  return grid;
}

Result<std::vector<Candidate>> tune(const Chain& chain, Rates rates, const Policy& policy) {
  std::vector<Candidate> candidates;
  for (const Policy& each : tuning_grid(policy)) {
    const Result<Prediction> prediction = predict(chain, rates, each);
    if (!prediction) return prediction.error();
    candidates.push_back({each, prediction->iteration_s});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.iteration_s, a.policy.credit_bytes, b.policy.partition_bytes) <
           std::tuple(b.iteration_s, b.policy.credit_bytes, a.policy.partition_bytes);
  });
  return candidates;
}

std::vector<Candidate> best_of_each_size(const std::vector<Candidate>& candidates) {
  std::vector<Candidate> best;
  std::set<uint64_t> sizes;
  for (const Candidate& candidate : candidates) {
    if (sizes.insert(candidate.policy.partition_bytes).second) best.push_back(candidate);
  }
  return best;
}

Result<double> factor_for_speed(const Chain& chain, Rates rates, const Policy& policy,
                                double speed) {
  const double limit_s = oracle_s(chain) / speed;
  const auto reaches = [&](double factor) -> Result<bool> {
    const auto prediction = predict(chain, {rates.push * factor, rates.pull * factor}, policy);
    if (!prediction) return prediction.error();
    return prediction->iteration_s <= limit_s;
  };
  double low = 1 / kMostFactor, high = kMostFactor;
  const Result<bool> ever = reaches(high);
  if (!ever) return ever.error();
  if (!*ever) {
    return Error(Errc::kUnsupported, print_policy(policy) + " does not reach a speed of " +
                                         std::to_string(speed) + " at any bandwidth");
  }
  while (high / low > 1 + 1e-6) {
    const double middle = std::sqrt(low * high);
    const Result<bool> enough = reaches(middle);
    if (!enough) return enough.error();
    (*enough ? high : low) = middle;
  }
  return high;
}

}  // namespace mercury::model
