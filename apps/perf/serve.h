// mercury-perf serve: the other end of streams and messages.
#pragma once

#include "apps/perf/flow_options.h"

namespace mercury::perf {

// Until a signal. The exit status.
int run_serve(const ServeOptions& options);

}  // namespace mercury::perf
