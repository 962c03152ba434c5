#include "apps/attached_job.h"

#include <cerrno>
#include <cstdio>
#include <utility>

#include "apps/interruption.h"
#include "transport/base/secret_file.h"

namespace mercury {

Status take_launcher(MemberOptions& member) {
  mercury_job_options job;
  mercury_job_options_init(&job, sizeof job);
  const int status = mercury_job_options_from_env(&job);
  if (status == -ENOENT) {
    Result<std::string> secret = secret_of_environment();
    if (!secret) return secret.error();
    member.secret = std::move(*secret);
    return {};
  }
  if (status < 0) {
    return Error(Errc::kInvalidArgument,
                 std::string("the launcher's environment: ") + mercury_last_error());
  }
  member.role = job.role == MERCURY_ROLE_SERVER ? "server" : "worker";
  member.rank = job.rank;
  member.workers = job.workers;
  member.servers = job.servers;
  if (job.name != nullptr) member.job = job.name;
  if (job.rendezvous != nullptr) member.rendezvous = job.rendezvous;
  if (job.secret != nullptr) member.secret = job.secret;
  return {};
}

Status open_job(const MemberOptions& member, AttachedJob& attached) {
  mercury_attach_options attach;
  mercury_attach_options_init(&attach, sizeof attach);
  if (member.mode == "daemon") attach.mode = MERCURY_MODE_DAEMON;
  if (member.mode == "embedded") attach.mode = MERCURY_MODE_EMBEDDED;
  if (!member.listen.empty()) attach.listen = member.listen.c_str();
  if (mercury_attach(&attach, &attached.context) < 0) {
    return Error(Errc::kSystem, std::string("cannot attach: ") + mercury_last_error());
  }
  mercury_job_options job;
  mercury_job_options_init(&job, sizeof job);
  job.name = member.job.c_str();
  job.secret = member.secret.c_str();
  job.role = member.role == "server" ? MERCURY_ROLE_SERVER : MERCURY_ROLE_WORKER;
  job.rank = member.rank;
  job.workers = member.workers;
  job.servers = member.servers;
  job.rendezvous = member.rendezvous.c_str();
  job.policy = member.policy.c_str();
  if (mercury_job_open(attached.context, &job, &attached.job) < 0) {
    return Error(Errc::kSystem, "cannot open job " + member.job + ": " + mercury_last_error());
  }
  return {};
}

int serve_job(const MemberOptions& member, const char* program) {
  AttachedJob attached;
  if (const Status open = open_job(member, attached); !open) {
    std::fprintf(stderr, "%s: %s\n", program, open.error().message.c_str());
    return 1;
  }
  catch_interruptions();
  int status = 0;
  while ((status = mercury_job_wait_end(attached.job, 100)) == -ETIMEDOUT) {
    if (!interrupted()) continue;
    std::fprintf(stderr, "%s: interrupted by %s: job %s loses this server\n", program,
                 interruption_name().c_str(), member.job.c_str());
    return interruption_status();
  }
  if (status < 0) {
    std::fprintf(stderr, "%s: job %s failed: %s\n", program, member.job.c_str(),
                 mercury_last_error());
    return 1;
  }
  std::printf("job %s has ended\n", member.job.c_str());
  return 0;
}

}  // namespace mercury
