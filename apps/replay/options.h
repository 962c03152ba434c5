// mercury-replay's command line. Members that the launcher's environment gives are filled from it
// before the options are read, so that an option wins.
#pragma once

#include <optional>
#include <string>

#include "apps/member_options.h"
#include "scheduler/terms/element.h"
#include "transport/base/result.h"

namespace mercury {

struct ReplayOptions : MemberOptions {
  ReplayOptions() { job = "replay"; }
  std::string trace;  // a shipped model's name or a file
  std::string dtype, report, timeline;
  int iterations = 20, warmup = 2;
  double time_scale = 1, size_scale = 1;
  bool verify = true, list = false;
};

// Reads the command line into `options`, which holds the defaults. A value is the status to leave
// with (--help, or 2 after a message on standard error); none: go on.
std::optional<int> parse_command_line(int argc, const char* const* argv, ReplayOptions& options);

// The type named by --dtype; none for "" (the trace's own).
std::optional<Dtype> dtype_named(const std::string& name);

}  // namespace mercury
