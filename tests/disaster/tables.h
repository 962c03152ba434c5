// Tables of sessions that are as large as a scenario's jobs need, and hardly larger: they fill up.
#pragma once

#include "tests/disaster/scenario.h"
#include "transport/base/random.h"

namespace mercury::disaster {

// Sets HostPlan::sessions and Scenario::contended, when all else has been drawn.
void draw_tables(Scenario& s, Random random);
// How many of an engine's sessions open jobs may have, as those without a secret are here.
uint32_t open_sessions(uint32_t sessions);

}  // namespace mercury::disaster
