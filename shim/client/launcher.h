// What a launcher says about a job in the environment: mercury_job_options_from_env.
//
// The first of these that is there names the member: MERCURY_ROLE or MERCURY_RANK; DMLC_ROLE
// (ps-lite); RANK and WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK (Open MPI); SLURM_PROCID (Slurm);
// MERCURY_WORKERS alone. The other MERCURY_* complete it; what contradicts it is refused, but for
// MERCURY_RENDEZVOUS and MERCURY_JOB, which replace what it says. docs/api.md has the table.
#pragma once

#include <optional>
#include <string>

#include "scheduler/terms/members.h"
#include "transport/base/result.h"

namespace mercury::client {

// What is not said stays empty.
struct LaunchedMember {
  std::optional<Role> role;
  std::optional<int> rank;
  std::optional<int> workers;
  std::optional<int> servers;
  std::optional<std::string> name;
  std::optional<std::string> secret;
  std::optional<std::string> rendezvous;
};

// Null: not set.
using Getenv = const char* (*)(const char* name);

// What the variable says; nothing: it is not set, or empty. kInvalidArgument: it is no whole number
// of `min` to `max`, as the message says.
Result<std::optional<int>> read_number(Getenv getenv, const char* name, int min, int max);

// kNotFound: no launcher; kInvalidArgument: a variable is malformed, which the message names;
// kUnsupported: ps-lite's scheduler, which Mercury does not need.
Result<LaunchedMember> read_launcher(Getenv getenv);

}  // namespace mercury::client
