// Equations 1 to 9 and Algorithm 1 of "Accelerating Distributed DNN Training via Transport Layer
// Scheduling" (Mercury, TPDS 2023, section V), as printed, except equation 3.
//
// A vector holds one time per layer, in the order of the forward pass, in seconds: a duration where
// it is called a time, else a moment of the iteration. Pure functions.
#pragma once

#include <vector>

#include "scheduler/model/chain.h"
#include "scheduler/policy.h"

namespace mercury::model {

using Times = std::vector<double>;

// Equations 1 and 2: how long pushing or pulling each tensor takes alone, at `rate` bytes per
// second. Of wire bytes.
Times transfer_times(const Chain& chain, double rate);

// Equation 3: when each layer's gradient is ready. Printed as the sum of t_bp over i = 1..L, which
// does not depend on l; the backward pass goes from L to l, so the sum runs over i = l..L.
Times backward_ends(const Chain& chain);

// Equation 4: when each layer's forward pass ends, from when its tensor was pulled; the last one is
// the iteration's time, equation 5.
Times forward_ends(const Chain& chain, const Times& pulled);

// Equation 6: pushes one after another, WFBP. `push` are push times.
Times wfbp_pushed(const Times& ready, const Times& push);
// Equation 7: each pull has the whole link to itself, although others run at the same time.
Times wfbp_pulled(const Times& pushed, const Times& pull);

// Algorithm 1: when each tensor is pushed, and by equation 8 pulled, where the most urgent packet
// goes first and packets are infinitely small. Urgent is the lowest layer; with kFifo ("Mercury W/O
// Preemption", line 14 changed) the one that has been ready longest.
Times algorithm_1(const Chain& chain, const Times& push, Policy::Order order);

// Equation 9: one worker alone, no communication.
double oracle_s(const Chain& chain);

// Theorem 1: no policy can take less than this, at these rates. Where the rates differ, the slower
// direction alone decides (tests/scheduler/model holds it against the model of both links).
double optimum_s(const Chain& chain, Rates rates);

}  // namespace mercury::model
