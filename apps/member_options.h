// Who a program is in a job, as its launcher and its command line say: mercury-replay's and
// mercury-perf's common options. The launcher's word is read before them (take_launcher in
// attached_job.h), so that an option wins.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace mercury {

struct MemberOptions {
  std::string role = "worker", job, rendezvous, mode = "auto", listen;
  std::string policy = "mercury";
  std::string secret;  // of the environment alone: a command line is seen by all users
  int rank = -1, workers = 1, servers = 1;
};

// `member` must outlive `app`.
void describe_member(CLI::App& app, MemberOptions& member);
// What no single option can tell; empty: nothing is wrong.
std::string contradiction(const MemberOptions& member);

}  // namespace mercury
