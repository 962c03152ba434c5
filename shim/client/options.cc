#include "shim/client/options.h"

#include <cstddef>
#include <string>

#include "scheduler/policy.h"
#include "shim/client/rendezvous.h"

namespace mercury::client {
namespace {

// Programs that were built with an older header have the members where these say: a new one goes
// behind the last.
static_assert(offsetof(mercury_job_options, size) == 0);
static_assert(offsetof(mercury_job_options, name) == 8);
static_assert(offsetof(mercury_job_options, secret) == 16);
static_assert(offsetof(mercury_job_options, role) == 24);
static_assert(offsetof(mercury_job_options, rank) == 28);
static_assert(offsetof(mercury_job_options, workers) == 32);
static_assert(offsetof(mercury_job_options, servers) == 36);
static_assert(offsetof(mercury_job_options, rendezvous) == 40);
static_assert(offsetof(mercury_job_options, deterministic) == 48);
static_assert(offsetof(mercury_job_options, fifo) == 52);
static_assert(offsetof(mercury_job_options, weight) == 56);
static_assert(offsetof(mercury_job_options, timeout_ms) == 60);
static_assert(offsetof(mercury_job_options, rejoin_ms) == 64);
static_assert(offsetof(mercury_job_options, quorum) == 68);
static_assert(offsetof(mercury_job_options, patience_ms) == 72);
static_assert(offsetof(mercury_job_options, policy) == 80);
static_assert(offsetof(mercury_job_options, stall_timeout_ms) == 88);
static_assert(offsetof(mercury_completion, handle) == 8);
static_assert(offsetof(mercury_completion, status) == 16);
static_assert(offsetof(mercury_completion, tensor) == 20);
static_assert(offsetof(mercury_completion, round) == 24);
static_assert(offsetof(mercury_completion, user) == 32);
static_assert(offsetof(mercury_contributors, round) == 8);
static_assert(offsetof(mercury_contributors, workers) == 12);
static_assert(offsetof(mercury_contributors, in_all) == 16);
static_assert(offsetof(mercury_contributors, in_any) == 48);
static_assert(offsetof(mercury_job_stats, operations) == 8);
static_assert(offsetof(mercury_job_stats, bytes_pushed) == 16);
static_assert(offsetof(mercury_job_stats, bytes_pulled) == 24);

constexpr int kMaxWeight = 1000;  // what members of a job accept from each other

Error out_of_range(const char* field, int value, int min, int max) {
  return Error(Errc::kInvalidArgument, std::string("mercury_job_options.") + field + " is " +
                                           std::to_string(value) + ", must be " +
                                           std::to_string(min) + " to " + std::to_string(max));
}

// How many there are, which nobody guesses; 0: nobody has said.
Status check_count(const char* field, const char* variable, int value, int max) {
  if (value >= 1 && value <= max) return {};
  if (value != 0) return out_of_range(field, value, 1, max);
  return Error(Errc::kInvalidArgument, std::string("no number of ") + field +
                                           ": set mercury_job_options." + field + " or " +
                                           variable + " to 1 to " + std::to_string(max));
}

}  // namespace

Result<std::vector<mercury_tensor_options>> read_tensors(const mercury_tensor_options* tensors,
                                                         size_t count) {
  std::vector<mercury_tensor_options> out;
  if (count == 0) return out;
  if (!tensors) return Error(Errc::kInvalidArgument, "tensors may not be NULL");
  const size_t stride = tensors->size;
  const auto* bytes = reinterpret_cast<const char*>(tensors);
  out.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto* element = reinterpret_cast<const mercury_tensor_options*>(bytes + i * stride);
    Result<mercury_tensor_options> one = read_sized(element, "mercury_tensor_options");
    if (!one) return one.error();
    if (one->size != stride) {
      return Error(Errc::kInvalidArgument, "tensor options of one array differ in `size`");
    }
    out.push_back(*one);
  }
  return out;
}

Result<attach::JobOpen> read_job(const mercury_job_options* options) {
  Result<mercury_job_options> in = read_sized(options, "mercury_job_options");
  if (!in) return in.error();
  attach::JobOpen job;
  job.name = in->name ? in->name : "";
  if (!attach::is_valid_job_name(job.name)) {
    return Error(Errc::kInvalidArgument,
                 "job name '" + job.name + "' must be 1 to 63 of [A-Za-z0-9_.-]");
  }
  job.secret = in->secret ? in->secret : "";
  if (job.secret.size() > attach::kMaxSecretBytes) {
    return Error(Errc::kInvalidArgument,
                 "the secret is longer than " + std::to_string(attach::kMaxSecretBytes) + " bytes");
  }
  const int role = raw_value(in->role);
  if (role != MERCURY_WORKER && role != MERCURY_SERVER) {
    return Error(Errc::kInvalidArgument, "mercury_job_options.role is unknown");
  }
  const int max_workers = static_cast<int>(kMaxWorkers);
  const int max_servers = static_cast<int>(kMaxServers);
  if (Status s = check_count("workers", "MERCURY_WORKERS", in->workers, max_workers); !s) {
    return s.error();
  }
  if (Status s = check_count("servers", "MERCURY_SERVERS", in->servers, max_servers); !s) {
    return s.error();
  }
  const int members = role == MERCURY_WORKER ? in->workers : in->servers;
  if (in->rank < -1 || in->rank >= members) return out_of_range("rank", in->rank, -1, members - 1);
  if (in->weight < 1 || in->weight > kMaxWeight) {
    return out_of_range("weight", in->weight, 1, kMaxWeight);
  }
  if (in->timeout_ms < 1) return out_of_range("timeout_ms", in->timeout_ms, 1, 0x7fffffff);
  if (in->rejoin_ms < 0) return out_of_range("rejoin_ms", in->rejoin_ms, 0, 0x7fffffff);
  if (in->quorum < 0 || in->quorum > in->workers) {
    return out_of_range("quorum", in->quorum, 0, in->workers);
  }
  if (in->patience_ms < 0 || (in->quorum > 0 && in->patience_ms == 0)) {
    return out_of_range("patience_ms", in->patience_ms, 1, 0x7fffffff);
  }
  // Built before there was one: as it is where nobody says anything.
  if (options->size < offsetof(mercury_job_options, stall_timeout_ms) + sizeof(int)) {
    in->stall_timeout_ms = attach::kStallTimeoutMs;
  }
  if (in->stall_timeout_ms < 0) {
    return out_of_range("stall_timeout_ms", in->stall_timeout_ms, 0, 0x7fffffff);
  }
  if (in->quorum > 0 && in->deterministic != 0) {
    return Error(Errc::kInvalidArgument,
                 "a deterministic job has no quorum: who is in a sum would differ between runs");
  }
  if (!in->rendezvous || !*in->rendezvous) {
    return Error(Errc::kInvalidArgument,
                 "no rendezvous: set mercury_job_options.rendezvous or MERCURY_RENDEZVOUS to "
                 "ADDRESS:PORT of server 0");
  }
  Result<std::string> policy = canonical_policy(in->policy      ? in->policy
                                                : in->fifo != 0 ? attach::kFifoPolicy
                                                                : "");
  if (!policy) return policy.error();
  Result<std::vector<Endpoint>> rendezvous = resolve_rendezvous(in->rendezvous);
  if (!rendezvous) return rendezvous.error();
  job.rendezvous = std::move(*rendezvous);
  job.role = role == MERCURY_WORKER ? Role::kWorker : Role::kServer;
  job.rank = in->rank;
  job.workers = static_cast<uint16_t>(in->workers);
  job.servers = static_cast<uint16_t>(in->servers);
  job.deterministic = in->deterministic != 0;
  job.policy = std::move(*policy);
  job.weight = static_cast<uint32_t>(in->weight);
  job.timeout_ms = static_cast<uint32_t>(in->timeout_ms);
  job.rejoin_ms = static_cast<uint32_t>(in->rejoin_ms);
  job.quorum = static_cast<uint16_t>(in->quorum);
  job.patience_ms = static_cast<uint32_t>(in->patience_ms);
  job.stall_timeout_ms = static_cast<uint32_t>(in->stall_timeout_ms);
  return job;
}

}  // namespace mercury::client
