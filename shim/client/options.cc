#include "shim/client/options.h"

#include <cstddef>
#include <string>
#include <utility>

#include "scheduler/policy.h"
#include "scheduler/terms/worker_set.h"
#include "shim/client/rendezvous.h"

namespace mercury::client {
namespace {

// Programs that were built with an older header have the members where these say: a new one goes
// behind the last.
static_assert(offsetof(mercury_attach_options, mode) == 8);
static_assert(offsetof(mercury_attach_options, socket) == 16);
static_assert(offsetof(mercury_attach_options, listen) == 24);
static_assert(offsetof(mercury_attach_options, rate) == 32);
static_assert(offsetof(mercury_attach_options, daemon_timeout_ms) == 40);
// Four bytes of padding follow, which say nothing in programs of today: a new one begins at 48.
static_assert(sizeof(mercury_attach_options) == 48);
static_assert(offsetof(mercury_job_options, name) == 8);
static_assert(offsetof(mercury_job_options, secret) == 16);
static_assert(offsetof(mercury_job_options, role) == 24);
static_assert(offsetof(mercury_job_options, rank) == 28);
static_assert(offsetof(mercury_job_options, workers) == 32);
static_assert(offsetof(mercury_job_options, servers) == 36);
static_assert(offsetof(mercury_job_options, rendezvous) == 40);
static_assert(offsetof(mercury_job_options, timeout_ms) == 48);
static_assert(offsetof(mercury_job_options, deterministic) == 52);
static_assert(offsetof(mercury_job_options, policy) == 56);
static_assert(offsetof(mercury_job_options, weight) == 64);
static_assert(offsetof(mercury_job_options, rejoin_ms) == 68);
static_assert(offsetof(mercury_job_options, quorum) == 72);
static_assert(offsetof(mercury_job_options, patience_ms) == 76);
static_assert(offsetof(mercury_job_options, stall_timeout_ms) == 80);
static_assert(offsetof(mercury_tensor_options, id) == 8);
static_assert(offsetof(mercury_tensor_options, dtype) == 12);
static_assert(offsetof(mercury_tensor_options, numel) == 16);
static_assert(offsetof(mercury_tensor_options, op) == 24);
static_assert(offsetof(mercury_tensor_options, priority) == 28);
static_assert(offsetof(mercury_tensor_options, data) == 32);
static_assert(offsetof(mercury_operation, kind) == 8);
static_assert(offsetof(mercury_operation, tensor) == 12);
static_assert(offsetof(mercury_operation, priority) == 16);
static_assert(offsetof(mercury_operation, root) == 20);
static_assert(offsetof(mercury_operation, user_data) == 24);
static_assert(offsetof(mercury_operation, handle) == 32);
static_assert(offsetof(mercury_completion, handle) == 8);
static_assert(offsetof(mercury_completion, user_data) == 16);
static_assert(offsetof(mercury_completion, status) == 24);
static_assert(offsetof(mercury_completion, tensor) == 28);
static_assert(offsetof(mercury_completion, round) == 32);
static_assert(offsetof(mercury_completion, kind) == 36);
static_assert(offsetof(mercury_completion, message) == 40);
static_assert(offsetof(mercury_contributors, round) == 8);
static_assert(offsetof(mercury_contributors, workers) == 12);
static_assert(offsetof(mercury_contributors, in_all) == 16);
static_assert(offsetof(mercury_contributors, in_any) == 48);
static_assert(offsetof(mercury_contributors, in_all_above) == 80);
static_assert(offsetof(mercury_contributors, in_any_above) == 176);
static_assert(sizeof(mercury_contributors::in_all) + sizeof(mercury_contributors::in_all_above) ==
              sizeof(WorkerSet));
static_assert(offsetof(mercury_job_stats, operations) == 8);
static_assert(offsetof(mercury_job_stats, bytes_pushed) == 16);
static_assert(offsetof(mercury_job_stats, bytes_pulled) == 24);

// As long as the daemon's peers wait for it by default (session.peer_timeout).
constexpr int kDaemonTimeoutMs = 10'000;
// A daemon that is well may wait so long for its turn on a busy core, and would be given up.
constexpr int kLeastDaemonTimeoutMs = 200;

constexpr TermOption kTermOptions[] = {
    {"deterministic", &mercury_job_options::deterministic},
    {"policy", &mercury_job_options::policy},
    {"weight", &mercury_job_options::weight},
    {"rejoin_ms", &mercury_job_options::rejoin_ms, INT32_MAX},
    {"quorum", &mercury_job_options::quorum},
    {"patience_ms", &mercury_job_options::patience_ms},
    {"stall_timeout_ms", &mercury_job_options::stall_timeout_ms, 0},
};

// `field` with its struct's name.
Error out_of_range(const std::string& field, int value, int min, int max) {
  return Error(Errc::kInvalidArgument, field + " is " + std::to_string(value) + ", must be " +
                                           std::to_string(min) + " to " + std::to_string(max));
}

// How many there are, which nobody guesses; 0: nobody has said.
Status check_count(const char* field, const char* variable, int value, int max) {
  if (value >= 1 && value <= max) return {};
  if (value != 0) return out_of_range(std::string("mercury_job_options.") + field, value, 1, max);
  return Error(Errc::kInvalidArgument, std::string("no number of ") + field +
                                           ": set mercury_job_options." + field + " or " +
                                           variable + " to 1 to " + std::to_string(max));
}

// A struct of an older header, of `size` bytes, may end before `member`.
bool has_member(const mercury_job_options& in, size_t size, const int32_t& member) {
  const auto end = reinterpret_cast<const char*>(&member + 1) - reinterpret_cast<const char*>(&in);
  return size >= static_cast<size_t>(end);
}

Error in_options(const std::string& what) {
  return Error(Errc::kInvalidArgument, "mercury_job_options." + what);
}

Result<int32_t> value_of(const TermOption& option, int32_t number) {
  if (!option.for_ever) return number;
  if (number == MERCURY_FOREVER) return *option.for_ever;
  if (number != 0 || *option.for_ever != 0) return number;
  return in_options(std::string(option.term) + " is 0, must be 1 or more, or MERCURY_FOREVER: " +
                    find_term(option.term)->meaning);
}

// Elements follow each other at the size that the first one says, and all say the same.
template <class T>
Result<std::vector<T>> read_array(const T* array, size_t count, const char* name,
                                  const char* type) {
  std::vector<T> out;
  if (count == 0) return out;
  if (!array) return Error(Errc::kInvalidArgument, std::string(name) + " may not be NULL");
  const size_t stride = array->size;
  const auto* bytes = reinterpret_cast<const char*>(array);
  for (size_t i = 0; i < count; ++i) {
    Result<T> one = read_sized(reinterpret_cast<const T*>(bytes + i * stride), type);
    if (!one) return one.error();
    if (one->size != stride) {
      return Error(Errc::kInvalidArgument,
                   std::string(name) + ": elements of one array differ in `size`");
    }
    out.push_back(*one);
  }
  return out;
}

// `size` is the caller's.
Result<JobTerms> read_terms(const mercury_job_options& in, size_t size) {
  JobTerms terms = preset_terms();
  for (const TermOption& option : kTermOptions) {
    const Term& term = *find_term(option.term);
    if (const auto* text = std::get_if<TermText>(&option.member)) {
      if (in.*(*text)) terms.*std::get<std::string JobTerms::*>(term.field) = in.*(*text);
      continue;
    }
    const int32_t& number = in.*std::get<TermNumber>(option.member);
    if (!has_member(in, size, number)) continue;
    const Result<int32_t> value = value_of(option, number);
    if (!value) return value.error();
    if (Status set = set_number(term, *value, terms); !set) return in_options(set.error().message);
  }
  const std::string wrong = contradiction(terms, static_cast<uint32_t>(in.workers));
  if (!wrong.empty()) return in_options(wrong);
  Result<std::string> policy = canonical_policy(terms.policy);
  if (!policy) return policy.error();
  terms.policy = std::move(*policy);
  return terms;
}

}  // namespace

std::span<const TermOption> term_options() { return kTermOptions; }

void set_preset_terms(mercury_job_options& options) {
  for (const TermOption& option : kTermOptions) {
    if (const auto* number = std::get_if<TermNumber>(&option.member)) {
      options.*(*number) = static_cast<int32_t>(find_term(option.term)->preset);
    }
  }
}

Result<std::chrono::milliseconds> read_daemon_timeout(const mercury_attach_options& in,
                                                      Getenv getenv) {
  const int said = in.daemon_timeout_ms;
  if (said == MERCURY_FOREVER) return std::chrono::milliseconds(INT32_MAX);
  if (said >= kLeastDaemonTimeoutMs) return std::chrono::milliseconds(said);
  if (said != 0) {
    Error error = out_of_range("mercury_attach_options.daemon_timeout_ms", said,
                               kLeastDaemonTimeoutMs, INT32_MAX);
    error.message += ", MERCURY_FOREVER, or 0 (unsaid)";
    return error;
  }
  const auto set =
      read_number(getenv, "MERCURY_DAEMON_TIMEOUT_MS", kLeastDaemonTimeoutMs, INT32_MAX);
  if (!set) return set.error();
  return std::chrono::milliseconds(set->value_or(kDaemonTimeoutMs));
}

Result<std::vector<mercury_tensor_options>> read_tensors(const mercury_tensor_options* tensors,
                                                         size_t count) {
  return read_array(tensors, count, "tensors", "mercury_tensor_options");
}

Result<std::vector<mercury_operation>> read_operations(const mercury_operation* operations,
                                                       size_t count) {
  return read_array(operations, count, "operations", "mercury_operation");
}

Result<attach::JobOpen> read_job(const mercury_job_options* options) {
  Result<mercury_job_options> in = read_sized(options, "mercury_job_options");
  if (!in) return in.error();
  attach::JobOpen job;
  job.name = in->name ? in->name : "";
  if (!is_job_name(job.name)) {
    return Error(Errc::kInvalidArgument,
                 "job name '" + job.name + "' must be 1 to 63 of [A-Za-z0-9_.-]");
  }
  const std::string_view secret = in->secret ? in->secret : "";
  if (secret.size() > attach::kMaxSecretBytes) {
    return Error(Errc::kInvalidArgument,
                 "the secret is longer than " + std::to_string(attach::kMaxSecretBytes) + " bytes");
  }
  const int32_t role = in->role;
  if (role != MERCURY_ROLE_WORKER && role != MERCURY_ROLE_SERVER) {
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
  const int members = role == MERCURY_ROLE_WORKER ? in->workers : in->servers;
  if (in->rank < -1 || in->rank >= members) {
    return out_of_range("mercury_job_options.rank", in->rank, -1, members - 1);
  }
  if (in->timeout_ms < 1 && in->timeout_ms != MERCURY_FOREVER) {
    return out_of_range("mercury_job_options.timeout_ms", in->timeout_ms, 1, INT32_MAX);
  }
  Result<JobTerms> terms = read_terms(*in, options->size);
  if (!terms) return terms.error();
  if (!in->rendezvous || !*in->rendezvous) {
    return Error(Errc::kInvalidArgument,
                 "no rendezvous: set mercury_job_options.rendezvous or MERCURY_RENDEZVOUS to "
                 "ADDRESS:PORT of server 0");
  }
  Result<std::vector<Endpoint>> rendezvous = resolve_rendezvous(in->rendezvous);
  if (!rendezvous) return rendezvous.error();
  job.rendezvous = std::move(*rendezvous);
  job.role = role == MERCURY_ROLE_WORKER ? Role::kWorker : Role::kServer;
  job.rank = in->rank;
  job.workers = static_cast<uint16_t>(in->workers);
  job.servers = static_cast<uint16_t>(in->servers);
  job.terms = std::move(*terms);
  job.timeout_ms = static_cast<uint32_t>(
      in->timeout_ms == MERCURY_FOREVER ? INT32_MAX : in->timeout_ms);  // what a message carries
  job.secret = secret;  // at last: nothing of it is to be wiped where something is wrong
  return job;
}

}  // namespace mercury::client
