#include "apps/member_options.h"

#include <CLI/CLI.hpp>

#include "scheduler/policy.h"
#include "scheduler/terms/members.h"

namespace mercury {
namespace {

std::string wrong_policy(std::string& text) {
  const Result<Policy> policy = parse_engine_policy(text);
  return policy ? std::string() : policy.error().message;
}

}  // namespace

void describe_member(CLI::App& app, MemberOptions& member) {
  app.add_option("--role", member.role)->check(CLI::IsMember({"worker", "server"}));
  app.add_option("--rank", member.rank, "within the role; -1: any free one")
      ->check(CLI::Range(-1, int{kMaxWorkers} - 1));
  app.add_option("--workers", member.workers)->check(CLI::Range(1, int{kMaxWorkers}));
  app.add_option("--servers", member.servers)->check(CLI::Range(1, int{kMaxServers}));
  app.add_option("--rendezvous", member.rendezvous, "server 0's ADDRESS:PORT, or all servers'");
  app.add_option("--job", member.job,
                 "the job's name; its secret is that of $MERCURY_SECRET or $MERCURY_SECRET_FILE");
  app.add_option("--mode", member.mode)->check(CLI::IsMember({"auto", "daemon", "embedded"}));
  app.add_option("--listen", member.listen, "embedded: this program's ADDRESS[:PORT]");
  app.add_option("--policy", member.policy, "how gradients are exchanged: " + engine_policy_names())
      ->check(CLI::Validator(wrong_policy, "POLICY"));
}

std::string contradiction(const MemberOptions& member) {
  if (member.rendezvous.empty()) {
    return "--rendezvous is missing: server 0's ADDRESS:PORT (a launcher may set it: docs/api.md)";
  }
  // 1 without a launcher; 0: there is one, and it does not say.
  if (member.workers == 0) return "--workers is missing (a launcher may set MERCURY_WORKERS)";
  if (member.servers == 0) return "--servers is missing (a launcher may set MERCURY_SERVERS)";
  const int members = member.role == "worker" ? member.workers : member.servers;
  if (member.rank >= members) {
    return "--rank " + std::to_string(member.rank) + " is not below the " +
           std::to_string(members) + " " + member.role + "s of the job";
  }
  return {};
}

}  // namespace mercury
