// A program's place in a job: attaching, opening, and serving until the job has ended. Errors are
// texts for people, with mercury_last_error()'s in them.
#pragma once

#include <string>

#include "apps/member_options.h"
#include "shim/client/mercurystack/mercury.h"
#include "transport/base/result.h"

namespace mercury {

// A context and a job in it, closed in reverse.
struct AttachedJob {
  mercury_context* context = nullptr;
  mercury_job* job = nullptr;
  AttachedJob() = default;
  AttachedJob(const AttachedJob&) = delete;
  AttachedJob& operator=(const AttachedJob&) = delete;
  ~AttachedJob() {
    mercury_job_close(job);
    mercury_detach(context);
  }
};

// Fills what the launcher has set, and the secret: MERCURY_SECRET, or the first line of the file
// MERCURY_SECRET_FILE. Errors: kInvalidArgument, a malformed variable; kConfig, both of these, or
// no such file.
Status take_launcher(MemberOptions& member);
// Blocks until all members are there. Error: kSystem.
Status open_job(const MemberOptions& member, AttachedJob& attached);
// Opens the job as a server and waits for its end, or for SIGINT or SIGTERM. The exit status;
// `program` is the name under which messages appear on standard error.
int serve_job(const MemberOptions& member, const char* program);

}  // namespace mercury
