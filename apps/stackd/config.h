// mercury-stackd's configuration: one TOML file, every key with default, unit and range in one
// table (config_table.cc), from which the commented default file, --print-config and all error
// messages come. A flag beats an environment variable, which beats the file, which beats the
// default.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury {

// Addresses that are routed within a site alone: RFC 1918's, RFC 4193's, and those of one link.
std::vector<IpPrefix> private_networks();

inline constexpr uint64_t kBitsPerByte = 8;

struct StackdConfig {
  // [port]
  std::string port_kind = "ethdev";
  std::string device = "af_xdp";
  std::string interface;
  std::vector<IpPrefix> addresses;  // at most one of each family
  IpAddress gateway;                // unspecified: none
  IpAddress gateway6;
  uint64_t udp_port = 7470;
  uint64_t engines = 1;
  uint64_t source_ports = 1;
  uint64_t mtu = 0;
  uint64_t rate_bits_per_second = 0;
  uint64_t tx_bound_bytes = 64 * 1024;
  uint64_t incast_queue_bytes = 128 * 1024;
  uint64_t vlan = 0;
  std::string dscp;  // TrafficClasses::parse
  std::string memif_socket = "/run/mercury/memif.sock";
  std::string memif_role = "server";
  uint64_t memif_id = 0;
  std::string device_args;
  std::string hugepages = "auto";
  uint64_t memory_bytes = 256 * 1024 * 1024;
  // [engine]
  std::string polling = "adaptive";
  uint64_t spin_ns = 20'000;
  std::string scheduling = "urgent";
  std::string turns = "fair";
  std::vector<uint32_t> cores;  // none, or one for each engine
  uint64_t max_sessions = 1024;
  // [session]
  std::string congestion = "adaptive";
  uint64_t window_bytes = 1024 * 1024;
  uint64_t delay_target_ns = 10'000'000;
  uint64_t ack_delay_ns = 500'000;
  uint64_t min_probe_timeout_ns = 2'000'000;
  uint64_t handshake_timeout_ns = 10'000'000'000;
  uint64_t peer_timeout_ns = 10'000'000'000;
  // [jobs]
  bool serve = true;
  bool open_jobs = false;
  std::vector<IpPrefix> job_networks = private_networks();
  uint64_t max_jobs = 64;
  uint64_t max_tensors = 65536;
  uint64_t max_weight = 1;
  uint64_t job_bits_per_second = 0;
  uint64_t leave_grace_ns = 5'000'000'000;
  uint64_t job_memory_bytes = 0;  // memory_limits.h
  uint64_t total_memory_bytes = 0;
  std::string job_authentication = "offered";
  // [attach]
  std::string socket = "/run/mercury/stackd.sock";
  std::string socket_mode = "0660";
  std::string socket_group;
  uint64_t max_programs = 256;
  uint64_t program_memory_bytes = 16ULL * 1024 * 1024 * 1024;
  uint64_t programs_memory_bytes = 0;  // memory_limits.h
  // [sockets]
  bool sockets_serve = true;
  bool sockets_open = false;
  std::string sockets_socket;  // sockets_path()
  std::vector<IpPrefix> sockets_networks = private_networks();
  std::string sockets_secret;
  std::string sockets_secret_file;  // instead
  std::string sockets_authentication = "offered";
  uint64_t sockets_probe_ns = 50'000'000;
  uint64_t sockets_silence_ns = 30'000'000'000;
  uint64_t sockets_answer_ns = 3'000'000'000;
  uint64_t sockets_max_programs = 4096;
  uint64_t sockets_max_connections = 65536;
  uint64_t sockets_max_listeners = 4096;
  uint64_t sockets_max_hosts = 1024;
  // [log]
  std::string log_level = "info";

  struct JobSection {  // [[job]]
    std::string name;
    std::string secret;
    uint64_t memory_bytes = 0;
    uint64_t weight = 0;                      // 0: as programs ask, up to max_weight
    std::optional<uint64_t> bits_per_second;  // none: job_bits_per_second
  };
  std::vector<JobSection> jobs;
  std::string sockets_file_secret;  // what sockets_secret_file holds

  std::string file;  // that it was read from; empty: none
  // By "section.key", where what is not default was set: "FILE:LINE", "$VARIABLE" or "--set".
  std::map<std::string, std::string> places;
};

// Where programs ask for their sockets: sockets.socket, or, where that is empty, the default path,
// or beside an attach.socket that is not the default one.
std::string sockets_path(const StackdConfig& config);
bool has_sockets_secret(const StackdConfig& config);
// Whether other hosts may speak Mercury with this one's sockets at all.
bool speaks_to_others(const StackdConfig& config);

// Reads `path` over the defaults, then MERCURY_<SECTION>_<KEY> from the environment, then
// `overrides` ("section.key=value"). What it returns is right in itself, also taken together.
// Lists are given to the last two as ["a", "b"] or a,b.
// Errors: kConfig, "FILE:LINE: KEY: expected ..., got ..."; kInvalidArgument for an override;
// kConfig also for a MERCURY_ variable that is nearly the name of a known one.
Result<StackdConfig> load_config(const std::string& path,
                                 const std::vector<std::string>& overrides);
// "PLACE: KEY: WHAT", for a value that only others, or this machine, show to be wrong. `key` is
// "section.key". kConfig; kInvalidArgument where an override set it.
Error wrong_value(const StackdConfig& config, const std::string& key, const std::string& what);
// The effective configuration, commented, as a file that load_config reads back to the same.
// Secrets are printed as "(hidden)" unless `with_secrets`.
std::string print_config(const StackdConfig& config, bool with_secrets);

}  // namespace mercury
