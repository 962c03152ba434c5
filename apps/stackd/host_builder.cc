#include "apps/stackd/host_builder.h"

#include <grp.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "apps/stackd/authentication.h"
#include "apps/stackd/descriptors.h"
#include "apps/stackd/memory_limits.h"
#include "apps/stackd/ports.h"
#include "apps/stackd/reset_key.h"
#include "shim/proof/secret.h"
#include "transport/wire/seal.h"

namespace mercury {
namespace {

Authentication authentication_of(const std::string& word) {
  if (word == "required") return Authentication::kRequired;
  if (word == "encrypted") return Authentication::kEncrypted;
  return word == "off" ? Authentication::kOff : Authentication::kOffered;
}

std::vector<ThreadConfig> thread_configs(const StackdConfig& config) {
  std::vector<ThreadConfig> threads(config.engines);
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].polling = config.polling == "busy"        ? Polling::kBusy
                         : config.polling == "interrupt" ? Polling::kInterrupt
                                                         : Polling::kAdaptive;
    threads[i].spin_ns = config.spin_ns;
    threads[i].scheduling = scheduling_of(config);
    threads[i].name = "mercury-eng" + std::to_string(i);
    if (i < config.cores.size()) threads[i].core = static_cast<int>(config.cores[i]);
  }
  return threads;
}

}  // namespace

HostConfig host_config(const StackdConfig& config) {
  HostConfig host;
  EngineConfig& engine = host.lane.engine;
  engine.session.window = config.congestion == "fixed" ? WindowKind::kFixed : WindowKind::kAdaptive;
  engine.session.window_bytes = config.window_bytes;
  engine.session.delay_target_ns = config.delay_target_ns;
  engine.incast_queue_bytes = config.incast_queue_bytes / config.engines;
  engine.session.max_ack_delay_ns = config.ack_delay_ns;
  engine.session.min_probe_timeout_ns = config.min_probe_timeout_ns;
  engine.session.handshake_timeout_ns = config.handshake_timeout_ns;
  engine.session.peer_timeout_ns = config.peer_timeout_ns;
  engine.max_sessions = static_cast<uint32_t>(config.max_sessions);
  engine.max_jobs = static_cast<uint32_t>(config.max_jobs);
  engine.tx_bound_bytes = config.tx_bound_bytes;
  if (config.engines > 1) engine.link = std::make_shared<SharedLink>();
  host.lane.exchange.sends.scheduler.max_sessions = engine.max_sessions;
  if (config.turns == "urgency") {
    host.lane.exchange.sends.scheduler.turns = Scheduler::Turns::kUrgency;
  }
  host.lane.exchange.sends.scheduler.max_jobs = static_cast<uint32_t>(config.max_jobs);
  host.policy.serve = config.serve;
  host.policy.open_jobs = config.open_jobs;
  host.policy.networks = config.job_networks;
  host.policy.max_sessions = engine.max_sessions;
  host.policy.max_jobs = static_cast<uint32_t>(config.max_jobs);
  host.policy.max_tensors = static_cast<uint32_t>(config.max_tensors);
  host.policy.max_weight = static_cast<uint32_t>(config.max_weight);
  host.policy.bytes_per_second = config.job_bits_per_second / kBitsPerByte;
  host.policy.leave_grace_ns = config.leave_grace_ns;
  host.policy.authentication = authentication_of(config.job_authentication);
  const MemoryLimits memory = memory_limits(config, physical_memory_bytes());
  host.policy.memory_limit_bytes = memory.job_bytes;
  host.policy.total_memory_bytes = memory.total_bytes;
  host.lane.exchange.sum_bytes = std::max<uint64_t>(1, memory.total_bytes / config.engines);
  host.sums_thread = true;
  for (const StackdConfig::JobSection& job : config.jobs) {
    host.policy.known.push_back(
        {job.name, job.secret, job.memory_bytes, static_cast<uint32_t>(job.weight),
         job.bits_per_second.value_or(config.job_bits_per_second) / kBitsPerByte});
  }
  return host;
}

Scheduling scheduling_of(const StackdConfig& config) {
  if (config.scheduling == "realtime") return Scheduling::kRealtime;
  return config.scheduling == "urgent" ? Scheduling::kUrgent : Scheduling::kNormal;
}

std::vector<uint32_t> usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<uint32_t> cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (uint32_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

Status check_cores(const StackdConfig& config) {
  const std::vector<uint32_t> usable = usable_cores();
  if (usable.empty()) return {};  // what cannot be asked may still work
  for (const uint32_t core : config.cores) {
    if (std::find(usable.begin(), usable.end(), core) != usable.end()) continue;
    return wrong_value(
        config, "engine.cores",
        "expected CPUs that this process may run on (taskset -cp $$ shows them), got " +
            std::to_string(core));
  }
  return {};
}

Result<gid_t> attach_group(const StackdConfig& config) {
  if (config.socket_group.empty()) return static_cast<gid_t>(-1);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody else in the process looks groups up
  if (const group* entry = getgrnam(config.socket_group.c_str())) return entry->gr_gid;
  return wrong_value(config, "attach.group",
                     "expected a group of this host, got \"" + config.socket_group +
                         "\"; groupadd --system " + config.socket_group + " makes it");
}

SocketPolicy socket_policy(const StackdConfig& config) {
  SocketPolicy policy;
  policy.serve = config.sockets_serve;
  policy.others = speaks_to_others(config);
  policy.networks = config.sockets_networks;
  for (const IpPrefix& address : config.addresses) policy.addresses.push_back(address.ip);
  policy.udp_port = static_cast<uint16_t>(config.udp_port);
  policy.key = derive_job_key(kSocketService, config.sockets_secret_file.empty()
                                                  ? config.sockets_secret
                                                  : config.sockets_file_secret);
  policy.authentication = authentication_of(config.sockets_authentication);
  policy.probe_ns = config.sockets_probe_ns;
  policy.silence_ns = config.sockets_silence_ns;
  policy.answer_ns = config.sockets_answer_ns;
  policy.max_connections = static_cast<uint32_t>(config.sockets_max_connections);
  policy.max_descriptors = static_cast<uint32_t>(
      std::min<uint64_t>(socket_room(config, descriptor_limit().soft).descriptors, UINT32_MAX));
  policy.max_listeners = static_cast<uint32_t>(config.sockets_max_listeners);
  policy.max_hosts = static_cast<uint32_t>(config.sockets_max_hosts);
  return policy;
}

Status check_host(const StackdConfig& config) {
  if (Status cores = check_cores(config); !cores) return cores;
  if (Status can = check_authentication(config, wire::can_seal()); !can) return can;
  if (const Result<gid_t> group = attach_group(config); !group) return group.error();
  const PortRow& port = port_of(config);
  return port.check == nullptr ? Status() : port.check(config);
}

void wipe_secrets(StackdConfig& config) {
  for (StackdConfig::JobSection& job : config.jobs) wipe(job.secret);
  wipe(config.sockets_secret);
  wipe(config.sockets_file_secret);
}

Result<BuiltHost> build_host(const StackdConfig& config, Notice notice) {
  if (Status good = check_host(config); !good) return good.error();
  const std::string lacking = authentication_lacking(config, wire::can_seal());
  if (!lacking.empty()) notice(NoticeKind::kTrouble, lacking);
  HostConfig settings = host_config(config);
  const Result<ResetKeys> keys = read_reset_keys(reset_key_path(config.socket));
  if (!keys) return keys.error();
  settings.lane.engine.reset_keys = *keys;
  settings.notice = std::move(notice);
  Result<std::unique_ptr<Host>> host = port_of(config).open(config, settings);
  for (KnownJob& job : settings.policy.known) wipe(job.secret);
  if (!host) return host.error();
  return BuiltHost{std::move(*host), thread_configs(config), *keys->own};
}

}  // namespace mercury
