#include "shim/client/launcher.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "shim/channel/attach.h"
#include "shim/client/rendezvous.h"
#include "transport/base/secret_file.h"

namespace mercury::client {
namespace {

std::optional<std::string> read_text(Getenv getenv, const char* name) {
  const char* value = getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

// Reads variables; remembers the first that is wrong.
class Environment {
 public:
  explicit Environment(Getenv getenv) : getenv_(getenv) {}

  std::optional<std::string> text(const char* name) const { return read_text(getenv_, name); }
  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<int> number(const char* name, int min, int max) {
    const Result<std::optional<int>> out = read_number(getenv_, name, min, max);
    if (out) return *out;
    fail(out.error().message);
    return std::nullopt;
  }
  std::optional<Role> role(const char* name) {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    if (*value == "worker") return Role::kWorker;
    if (*value == "server") return Role::kServer;
    fail(std::string(name) + "='" + *value + "': must be worker or server");
    return std::nullopt;
  }
  void fail(std::string why) {
    if (wrong_.empty()) wrong_ = std::move(why);
  }
  bool ok() const { return wrong_.empty(); }
  Error error() const { return Error(Errc::kInvalidArgument, wrong_); }

 private:
  Getenv getenv_;
  std::string wrong_;
};

constexpr int kMaxMembers = static_cast<int>(kMaxWorkers + kMaxServers);

std::string at(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// From two variables that come together.
void read_address(Environment& env, const char* host_name, const char* port_name,
                  LaunchedMember& member) {
  const auto host = env.text(host_name);
  const auto port = env.number(port_name, 1, 65535);
  if (port && !host) env.fail(std::string(host_name) + " is missing beside " + port_name);
  if (host) member.rendezvous = at(*host, port.value_or(kDefaultPort));
}

// A rank must be one of its role's, if it is said how many there are.
void check_rank(Environment& env, const char* name, const LaunchedMember& member) {
  const bool server = member.role == Role::kServer;
  const std::optional<int> count = server ? member.servers : member.workers;
  if (!member.rank || !count || *member.rank < *count) return;
  env.fail(std::string(name) + "=" + std::to_string(*member.rank) + ": there are " +
           std::to_string(*count) + (server ? " servers" : " workers") + ", ranks begin with 0");
}

// A launcher that knows only a rank among all processes.
struct Flat {
  int rank = 0;
  int size = 1;
  const char* size_name = "";
};

// The first MERCURY_SERVERS ranks are the servers: rank 0, whose host torchrun's MASTER_ADDR names,
// is then server 0, where all members meet. With MERCURY_WORKERS equal to the number of processes
// they are all workers and the servers are elsewhere (daemons); so they are without
// MERCURY_SERVERS. True: the servers are among them.
bool split(Environment& env, const Flat& flat, LaunchedMember& member) {
  const std::optional<int> workers = env.number("MERCURY_WORKERS", 1, kMaxWorkers);
  const std::optional<int> servers = env.number("MERCURY_SERVERS", 1, kMaxServers);
  const std::string size =
      std::to_string(flat.size) + " processes were launched (" + flat.size_name + ")";
  member.role = Role::kWorker;
  member.rank = flat.rank;
  member.workers = flat.size;
  bool serves = false;
  if (workers && *workers == flat.size) {
    member.servers = servers;
  } else if (servers && *servers < flat.size) {
    const int rest = flat.size - *servers;
    if (workers && *workers != rest) {
      env.fail("MERCURY_WORKERS=" + std::to_string(*workers) + ": " + size + ", " +
               std::to_string(*servers) + " of them servers");
    }
    serves = true;
    member.workers = rest;
    member.servers = *servers;
    if (flat.rank < *servers) {
      member.role = Role::kServer;
    } else {
      member.rank = flat.rank - *servers;
    }
  } else if (servers) {
    env.fail("MERCURY_SERVERS=" + std::to_string(*servers) + ": only " + size);
  } else if (workers) {
    env.fail("MERCURY_WORKERS=" + std::to_string(*workers) + ": " + size);
  }
  if (*member.workers > static_cast<int>(kMaxWorkers)) {
    env.fail(size + ": a job has at most " + std::to_string(kMaxWorkers) + " workers");
  }
  return serves;
}

bool read_flat(Environment& env, const char* rank_name, const char* size_name,
               LaunchedMember& member) {
  const std::optional<int> size = env.number(size_name, 1, kMaxMembers);
  const std::optional<int> rank = env.number(rank_name, 0, size.value_or(kMaxMembers) - 1);
  if (!size) env.fail(std::string(size_name) + " is missing beside " + rank_name);
  if (!rank) env.fail(std::string(rank_name) + " is missing beside " + size_name);
  return env.ok() && split(env, {*rank, *size, size_name}, member);
}

void read_mercury(Environment& env, LaunchedMember& member) {
  member.role = env.role("MERCURY_ROLE").value_or(Role::kWorker);
  member.rank = env.number("MERCURY_RANK", -1, static_cast<int>(kMaxWorkers) - 1);
  member.workers = env.number("MERCURY_WORKERS", 1, kMaxWorkers);
  member.servers = env.number("MERCURY_SERVERS", 1, kMaxServers);
  check_rank(env, "MERCURY_RANK", member);
}

// How many there are, from ps-lite; what MERCURY_* says beside it must be the same.
std::optional<int> read_count(Environment& env, const char* name, const char* own, int max) {
  const std::optional<int> count = env.number(name, 1, max);
  const std::optional<int> mine = env.number(own, 1, max);
  if (!count) env.fail(std::string(name) + " is missing beside DMLC_ROLE");
  if (count && mine && *count != *mine) {
    env.fail(std::string(own) + "=" + std::to_string(*mine) + ": contradicts " + name + "=" +
             std::to_string(*count));
  }
  return count;
}

void read_dmlc(Environment& env, LaunchedMember& member) {
  member.role = env.role("DMLC_ROLE");
  member.workers = read_count(env, "DMLC_NUM_WORKER", "MERCURY_WORKERS", kMaxWorkers);
  member.servers = read_count(env, "DMLC_NUM_SERVER", "MERCURY_SERVERS", kMaxServers);
  const char* rank = member.role == Role::kServer ? "DMLC_SERVER_ID" : "DMLC_WORKER_ID";
  if (!env.has(rank)) rank = "DMLC_RANK";
  member.rank = env.number(rank, 0, kMaxMembers);
  check_rank(env, rank, member);
  read_address(env, "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", member);
}

// A launcher's identifier as a job's name.
std::string as_name(const std::string& prefix, const std::string& id) {
  std::string name = (prefix + id).substr(0, kMaxJobNameBytes);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !is_job_name(std::string(1, c)); }, '_');
  return name;
}

void read_torchrun(Environment& env, LaunchedMember& member) {
  const bool serves = read_flat(env, "RANK", "WORLD_SIZE", member);
  read_address(env, "MASTER_ADDR", "MASTER_PORT", member);
  // The port is free for rank 0's process; a daemon on that host has its own.
  if (const auto host = env.text("MASTER_ADDR"); host && !serves) {
    member.rendezvous = at(*host, kDefaultPort);
  }
  if (const auto id = env.text("TORCHELASTIC_RUN_ID")) member.name = as_name("torchrun-", *id);
}

// Open MPI names no address; where all processes are on one machine none is needed.
void read_open_mpi(Environment& env, LaunchedMember& member) {
  const char* size = "OMPI_COMM_WORLD_SIZE";
  const bool serves = read_flat(env, "OMPI_COMM_WORLD_RANK", size, member);
  const auto here = env.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxMembers);
  if (serves && here && here == env.number(size, 1, kMaxMembers)) {
    member.rendezvous = at("127.0.0.1", kDefaultPort);
  }
}

// "gpu[03-07,11],login1" -> "gpu03"
std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t end = std::min(list.find(']', i), list.size());
    host.append(list, i + 1, std::min(list.find_first_of("-,]", i), list.size()) - i - 1);
    i = end;
  }
  return host;
}

void read_slurm(Environment& env, LaunchedMember& member) {
  const bool step = env.has("SLURM_STEP_NUM_TASKS");
  const bool serves =
      read_flat(env, "SLURM_PROCID", step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", member);
  // Slurm puts task 0, which is then server 0, on the step's first node.
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const auto nodes = env.text(name);
    if (!serves || !nodes || member.rendezvous) continue;
    member.rendezvous = at(first_host(*nodes), kDefaultPort);
  }
  if (const auto id = env.text("SLURM_JOB_ID")) member.name = as_name("slurm-", *id);
}

void read_overrides(Environment& env, LaunchedMember& member) {
  if (auto name = env.text("MERCURY_JOB")) {
    if (!is_job_name(*name)) {
      env.fail("MERCURY_JOB='" + *name + "': must be 1 to 63 of [A-Za-z0-9_.-]");
    }
    member.name = std::move(name);
  }
  Result<std::string> secret = read_secret(env.text("MERCURY_SECRET").value_or(""),
                                           env.text("MERCURY_SECRET_FILE").value_or(""));
  if (!secret) env.fail(secret.error().message);
  if (secret && !secret->empty()) member.secret = std::move(*secret);
  if (auto rendezvous = env.text("MERCURY_RENDEZVOUS")) {
    if (const Status fits = check_rendezvous(*rendezvous); !fits) {
      env.fail("MERCURY_RENDEZVOUS='" + *rendezvous + "': " + fits.error().message);
    }
    member.rendezvous = std::move(rendezvous);
  }
  // Servers that are daemons are those that the rendezvous lists.
  if (!member.servers && member.rendezvous) {
    const auto count = std::count(member.rendezvous->begin(), member.rendezvous->end(), ',') + 1;
    member.servers = static_cast<int>(std::min<std::ptrdiff_t>(count, kMaxServers));
  }
}

}  // namespace

Result<std::optional<int>> read_number(Getenv getenv, const char* name, int min, int max) {
  const std::optional<std::string> value = read_text(getenv, name);
  if (!value) return std::optional<int>();
  int out = 0;
  const char* end = value->data() + value->size();
  const auto [stop, code] = std::from_chars(value->data(), end, out);
  if (code == std::errc{} && stop == end && out >= min && out <= max) return std::optional(out);
  return Error(Errc::kInvalidArgument, std::string(name) + "='" + *value + "': must be " +
                                           std::to_string(min) + " to " + std::to_string(max));
}

Result<LaunchedMember> read_launcher(Getenv getenv) {
  Environment env(getenv);
  LaunchedMember member;
  if (env.has("MERCURY_ROLE") || env.has("MERCURY_RANK")) {
    read_mercury(env, member);
  } else if (env.has("DMLC_ROLE")) {
    if (*env.text("DMLC_ROLE") == "scheduler") {
      return Error(Errc::kUnsupported,
                   "DMLC_ROLE=scheduler: Mercury needs no scheduler; let the process end");
    }
    read_dmlc(env, member);
  } else if (env.has("RANK") && env.has("WORLD_SIZE")) {
    read_torchrun(env, member);
  } else if (env.has("OMPI_COMM_WORLD_RANK")) {
    read_open_mpi(env, member);
  } else if (env.has("SLURM_PROCID")) {
    read_slurm(env, member);
  } else if (env.has("MERCURY_WORKERS")) {
    read_mercury(env, member);
  } else {
    return Error(Errc::kNotFound,
                 "no launcher: none of MERCURY_ROLE, DMLC_ROLE, RANK, OMPI_COMM_WORLD_RANK, "
                 "SLURM_PROCID and MERCURY_WORKERS is set");
  }
  read_overrides(env, member);
  if (!env.ok()) return env.error();
  return member;
}

}  // namespace mercury::client
