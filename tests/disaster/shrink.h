// Cuts a failing scenario down: the least that still fails.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/disaster/scenario.h"

namespace mercury::disaster {

// Whether the scenario of the seed, cut down so, still fails: what it says, or empty.
using Fails = std::function<std::string(const Reduction&)>;

// Greedy: tries to do without each fault, each kind of weather, each job; then with fewer rounds,
// tensors, workers and elements; until nothing more can go. `fails(Reduction())` must be true.
// `progress` hears of each step that was kept.
Reduction shrink(const Scenario& scenario, const Fails& fails,
                 const std::function<void(const Reduction&)>& progress);

}  // namespace mercury::disaster
