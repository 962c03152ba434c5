#include "apps/stackd/config_table.h"

#include <charconv>
#include <string>
#include <string_view>

#include "apps/stackd/port_kinds.h"
#include "scheduler/terms/job_terms.h"
#include "shim/channel/attach.h"
#include "transport/base/endpoint.h"
#include "transport/base/quantity.h"
#include "transport/port/port.h"

namespace mercury {
namespace {

using C = StackdConfig;
constexpr uint64_t kKi = 1024, kMi = 1024 * kKi, kGi = 1024 * kMi;
constexpr uint64_t kUs = 1000, kMs = 1000 * kUs, kS = 1000 * kMs;
constexpr uint64_t kAny = ~uint64_t{0} >> 1;

// Of all kinds of ports, their names and what these mean.
std::string join_kinds(const char* between, bool with_help) {
  std::string all;
  for (const PortKind& kind : kPortKinds) {
    all += all.empty() ? "" : between;
    all += kind.name;
    if (with_help) all += std::string(": ") + kind.help;
  }
  return all;
}
const std::string kPortNames = join_kinds("|", false);
const std::string kPortHelp = join_kinds("; ", true);

const ConfigRow kRows[] = {
    {"port", "kind", &C::port_kind, Unit::kNone, 0, 0, kPortNames.c_str(), kPortHelp.c_str()},
    {"port", "device", &C::device, Unit::kNone, 0, 0, nullptr,
     "ethdev: a PCI address (0000:03:00.0), or af_xdp, af_packet, tap, memif, ring"},
    {"port", "interface", &C::interface, Unit::kNone, 0, 0, nullptr,
     "af_xdp, af_packet: the kernel's interface; tap: the name to give it"},
    {"port", "address", &C::addresses, Unit::kNone, 0, 0, nullptr,
     "this host's IP addresses with prefix length, the first is told to peers; uring: one"},
    {"port", "gateway", &C::gateway, Unit::kNone, 0, 0, nullptr,
     "interfaces of Mercury's own: IPv4 router for other networks; empty = none"},
    {"port", "gateway6", &C::gateway6, Unit::kNone, 0, 0, nullptr, "the same for IPv6"},
    {"port", "udp_port", &C::udp_port, Unit::kNone, 1, 65535 - 64, nullptr,
     "UDP port of the first engine; each further engine takes the next"},
    {"port", "engines", &C::engines, Unit::kNone, 1, attach::kMaxEngines, nullptr,
     "engines, each with a thread; where the device has fewer queues they share by hand-off"},
    {"port", "source_ports", &C::source_ports, Unit::kNone, 1, kMostSourcePorts, nullptr,
     "UDP ports from which each engine's gradients leave, so that routers that choose among equal "
     "paths by ports spread them; those beyond the first follow the last engine's"},
    {"port", "mtu", &C::mtu, Unit::kNone, 0, 16384, nullptr,
     "largest IP packet; 0 = what interface and driver carry"},
    {"port", "rate", &C::rate_bits_per_second, Unit::kBitsPerSecond, 0, kAny, nullptr,
     "the link's rate, at which frames are released so that the most urgent overtakes; 0 = "
     "what the NIC's link says, if anything"},
    {"port", "tx_bound", &C::tx_bound_bytes, Unit::kBytes, 4 * kKi, 16 * kMi, nullptr,
     "bytes that may be ahead of the link: how long an urgent chunk waits"},
    {"port", "incast_queue", &C::incast_queue_bytes, Unit::kBytes, 0, kGi, nullptr,
     "bytes that all senders together may have waiting before this host's link, beside what is on "
     "it, and twice as much for each where no frame is marked or lost; needs rate"},
    {"port", "dscp", &C::dscp, Unit::kNone, 0, 0, nullptr,
     "traffic classes of what is sent, for switches that honour them: \"16:46, 256:26\": chunks of "
     "priorities below 16, and all that chunks wait for, leave with DSCP 46, others below 256 with "
     "26, the rest with none; empty = none"},
    {"port", "vlan", &C::vlan, Unit::kNone, 0, 4094, nullptr,
     "interfaces of Mercury's own: the VLAN whose tag all frames carry, with the priority of their "
     "traffic class; 0 = no tags. Elsewhere the kernel has an interface for each VLAN"},
    {"port", "memif_socket", &C::memif_socket, Unit::kNone, 0, 0, nullptr, "memif: socket path"},
    {"port", "memif_role", &C::memif_role, Unit::kNone, 0, 0, "server|client", "memif: role"},
    {"port", "memif_id", &C::memif_id, Unit::kNone, 0, 65535, nullptr, "memif: connection number"},
    {"port", "device_args", &C::device_args, Unit::kNone, 0, 0, nullptr,
     "further arguments of the DPDK device, as DPDK documents them"},
    {"port", "hugepages", &C::hugepages, Unit::kNone, 0, 0, "auto|on|off",
     "auto: use them if some are free"},
    {"port", "memory", &C::memory_bytes, Unit::kBytes, 64 * kMi, 64 * kGi, nullptr,
     "memory for packet buffers"},
    {"engine", "polling", &C::polling, Unit::kNone, 0, 0, "adaptive|busy|interrupt",
     "adaptive: spin, then sleep; busy: never sleep; interrupt: never spin"},
    {"engine", "spin", &C::spin_ns, Unit::kNanoseconds, 0, kS, nullptr,
     "adaptive: how long an engine without work looks before it sleeps"},
    {"engine", "scheduling", &C::scheduling, Unit::kNone, 0, 0, "normal|urgent|realtime",
     "against other threads on the engine's core; urgent: nice -20; realtime: before all of them"},
    {"engine", "turns", &C::turns, Unit::kNone, 0, 0, "fair|urgency",
     "between jobs; fair: by weight; urgency: none, as if all were one job (for comparison)"},
    {"engine", "cores", &C::cores, Unit::kNone, 0, 0, nullptr,
     "CPU of each engine's thread, in order; empty = not pinned"},
    {"engine", "max_sessions", &C::max_sessions, Unit::kNone, 1, 16384, nullptr,
     "sessions of one engine"},
    {"session", "congestion", &C::congestion, Unit::kNone, 0, 0, "adaptive|fixed",
     "adaptive: the window follows marks, delay and loss of the path; fixed: it never moves"},
    {"session", "window", &C::window_bytes, Unit::kBytes, 16 * kKi, kGi, nullptr,
     "bytes in flight to one peer; adaptive: at most"},
    {"session", "delay_target", &C::delay_target_ns, Unit::kNanoseconds, 0, kS, nullptr,
     "adaptive: queueing delay in the network that is tolerated; 0 = any; 50us suits engines on "
     "cores of their own"},
    {"session", "ack_delay", &C::ack_delay_ns, Unit::kNanoseconds, 0, 100 * kMs, nullptr,
     "longest wait of an acknowledgement"},
    {"session", "min_probe_timeout", &C::min_probe_timeout_ns, Unit::kNanoseconds, 100 * kUs, kS,
     nullptr, "earliest probe for a lost tail; the first in a row may come after an eighth of it"},
    {"session", "handshake_timeout", &C::handshake_timeout_ns, Unit::kNanoseconds, 100 * kMs,
     600 * kS, nullptr, "how long a peer may take to answer a HELLO"},
    {"session", "peer_timeout", &C::peer_timeout_ns, Unit::kNanoseconds, 100 * kMs, 600 * kS,
     nullptr, "a peer that nothing was heard of for so long is lost"},
    {"jobs", "serve", &C::serve, Unit::kNone, 0, 0, nullptr, "sum gradients for jobs on this host"},
    {"jobs", "open", &C::open_jobs, Unit::kNone, 0, 0, nullptr,
     "serve jobs without a secret that no [[job]] names: whoever reaches this host's UDP ports "
     "then uses up to half of its memory for sums, and three quarters of its jobs and sessions"},
    {"jobs", "networks", &C::job_networks, Unit::kNone, 0, 0, nullptr,
     "whose hosts an open job may have this one invite as servers"},
    {"jobs", "max_jobs", &C::max_jobs, Unit::kNone, 1, 1024, nullptr, "jobs at a time"},
    {"jobs", "max_tensors", &C::max_tensors, Unit::kNone, 1, 1 << 20, nullptr,
     "tensors of one job"},
    {"jobs", "max_weight", &C::max_weight, Unit::kNone, 1, kMostWeight, nullptr,
     "largest share among jobs on this host's links that programs may ask for; a [[job]] may have "
     "its own weight"},
    {"jobs", "rate", &C::job_bits_per_second, Unit::kBitsPerSecond, 0, kAny, nullptr,
     "what each member of a job on this host may send; 0 = as much as it can; a [[job]] may have "
     "its own rate"},
    {"jobs", "leave_grace", &C::leave_grace_ns, Unit::kNanoseconds, 0, 600 * kS, nullptr,
     "how long nothing moves at a worker that was told of one that has left with rounds missing, "
     "until it gives up the rest (0: never); with an older server, after any left (0: at once)"},
    {"jobs", "memory", &C::job_memory_bytes, Unit::kBytes, 0, kAny, nullptr,
     "memory for one job's sums, all engines of this host together; 0 = a quarter of the host's"},
    {"jobs", "total_memory", &C::total_memory_bytes, Unit::kBytes, 0, kAny, nullptr,
     "memory for the sums of all jobs together; 0 = half of the host's"},
    {"jobs", "authentication", &C::job_authentication, Unit::kNone, 0, 0,
     "offered|required|encrypted|off",
     "of each frame of jobs with a secret; offered: with hosts that have it; required: other hosts "
     "are refused; encrypted: payloads are encrypted besides, and hosts that cannot are refused"},
    {"attach", "socket", &C::socket, Unit::kNone, 0, 0, nullptr, "where programs attach"},
    {"attach", "mode", &C::socket_mode, Unit::kNone, 0, 0, "0600|0660|0666",
     "the socket's permissions"},
    {"attach", "group", &C::socket_group, Unit::kNone, 0, 0, nullptr,
     "the socket's group; empty = the daemon's"},
    {"attach", "max_programs", &C::max_programs, Unit::kNone, 1, 4096, nullptr,
     "programs at a time"},
    {"attach", "program_memory", &C::program_memory_bytes, Unit::kBytes, kMi, kAny, nullptr,
     "memory that one program may share"},
    {"attach", "total_memory", &C::programs_memory_bytes, Unit::kBytes, 0, kAny, nullptr,
     "memory that all programs together may share; 0 = half of the host's"},
    {"sockets", "serve", &C::sockets_serve, Unit::kNone, 0, 0, nullptr,
     "carry stream sockets of programs that mercury-run starts"},
    {"sockets", "socket", &C::sockets_socket, Unit::kNone, 0, 0, nullptr,
     "where they ask, with attach.mode and attach.group; empty = /run/mercury/sockets.sock, or "
     "where attach.socket is another, that with .tcp behind it"},
    {"sockets", "open", &C::sockets_open, Unit::kNone, 0, 0, nullptr,
     "with other hosts also without a secret: whoever reaches this host's UDP ports then has "
     "sessions, and their memory, and reaches what programs of mercury-run listen at"},
    {"sockets", "networks", &C::sockets_networks, Unit::kNone, 0, 0, nullptr,
     "whose hosts may speak Mercury, with the secret or open; connections to others are the "
     "kernel's at once"},
    {"sockets", "secret", &C::sockets_secret, Unit::kNone, 0, 0, nullptr,
     "what hosts must prove to each other; empty = none, and without open no host may speak "
     "Mercury with this one",
     true},
    {"sockets", "secret_file", &C::sockets_secret_file, Unit::kNone, 0, 0, nullptr,
     "instead of secret: the first line of a file; empty = none"},
    {"sockets", "authentication", &C::sockets_authentication, Unit::kNone, 0, 0,
     "offered|required|encrypted|off",
     "of each frame, where there is a secret; as jobs.authentication"},
    {"sockets", "probe", &C::sockets_probe_ns, Unit::kNanoseconds, kMs, 10 * kS, nullptr,
     "how long the first connection to a host waits for its answer, before it is the kernel's"},
    {"sockets", "silence", &C::sockets_silence_ns, Unit::kNanoseconds, 0, 3600 * kS, nullptr,
     "how long a host that has not answered is not asked again"},
    {"sockets", "answer", &C::sockets_answer_ns, Unit::kNanoseconds, 10 * kMs, 60 * kS, nullptr,
     "how long a connection waits for the answer of a host with which there is a session"},
    {"sockets", "max_programs", &C::sockets_max_programs, Unit::kNone, 1, 65536, nullptr,
     "programs at a time, each thread that is connecting or accepting counts"},
    {"sockets", "max_connections", &C::sockets_max_connections, Unit::kNone, 1, 1 << 20, nullptr,
     "connections at a time, those within this host not counted once they are accepted; one more "
     "is the kernel's"},
    {"sockets", "max_listeners", &C::sockets_max_listeners, Unit::kNone, 1, 1 << 20, nullptr,
     "sockets that listen; one more is reached by the kernel alone"},
    {"sockets", "max_hosts", &C::sockets_max_hosts, Unit::kNone, 1, 16384, nullptr,
     "hosts with which there is a session, or which are remembered as silent"},
    {"log", "level", &C::log_level, Unit::kNone, 0, 0, "debug|info|warning|error",
     "least severe line logged"},
};

constexpr uint32_t kMostCpu = 4095;

bool parse_number(const std::string& text, uint32_t most, uint32_t& out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc{} && stop == end && out <= most;
}

}  // namespace

std::span<const ConfigRow> config_rows() { return kRows; }

std::optional<uint64_t> parse_quantity(const std::string& text, Unit unit) {
  const auto read = [&]() -> Result<uint64_t> {
    switch (unit) {
      case Unit::kBytes:
        return parse_bytes(text);
      case Unit::kNanoseconds:
        return parse_ns(text);
      case Unit::kBitsPerSecond:
        return parse_bits_per_second(text);
      case Unit::kNone:
        break;
    }
    uint64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || stop != end) return Error(Errc::kInvalidArgument, "no number");
    return number;
  }();
  return read ? std::optional(*read) : std::nullopt;
}

std::string print_quantity(uint64_t value, Unit unit) {
  if (value == 0) return "0";
  switch (unit) {
    case Unit::kBytes:
      return print_bytes(value);
    case Unit::kNanoseconds:
      return print_ns(value);
    case Unit::kBitsPerSecond:
      return print_bits_per_second(value);
    case Unit::kNone:
      break;
  }
  return std::to_string(value);
}

bool parse_value(const std::string& text, IpAddress& out) {
  out = IpAddress();
  if (text.empty()) return true;
  const Result<IpAddress> ip = IpAddress::parse(text);
  if (ip) out = *ip;
  return ip.has_value();
}

bool parse_value(const std::string& text, IpPrefix& out) {
  const size_t slash = text.find('/');
  if (slash == 0 || !parse_value(text.substr(0, slash), out.ip)) return false;
  const uint32_t all = out.ip.is_v4() ? 32 : 128;
  uint32_t bits = all;
  if (slash != std::string::npos && !parse_number(text.substr(slash + 1), all, bits)) return false;
  out.bits = static_cast<uint8_t>(bits);
  return !text.empty();
}

bool parse_value(const std::string& text, uint32_t& out) {
  return parse_number(text, kMostCpu, out);
}

std::string print_value(const IpAddress& ip) { return ip == IpAddress() ? "" : ip.to_string(); }
std::string print_value(const IpPrefix& prefix) {
  return prefix.ip.to_string() + "/" + std::to_string(prefix.bits);
}
std::string print_value(uint32_t cpu) { return std::to_string(cpu); }

std::string expected(const ConfigRow& row) {
  if (std::holds_alternative<bool C::*>(row.member)) return "true or false";
  if (std::holds_alternative<std::vector<IpPrefix> C::*>(row.member)) {
    return "a list of addresses such as [\"10.0.0.1/24\"]";
  }
  if (std::holds_alternative<std::vector<uint32_t> C::*>(row.member)) {
    return "a list of CPU numbers such as [2, 3]";
  }
  if (std::holds_alternative<IpAddress C::*>(row.member)) return "an IP address or \"\"";
  if (std::holds_alternative<std::string C::*>(row.member)) {
    return row.choices ? "one of " + std::string(row.choices) : "a string";
  }
  const std::string range = row.max == kAny ? " from " + print_quantity(row.min, row.unit)
                                            : " from " + print_quantity(row.min, row.unit) +
                                                  " to " + print_quantity(row.max, row.unit);
  switch (row.unit) {
    case Unit::kBytes:
      return "a size such as \"64KiB\"" + range;
    case Unit::kNanoseconds:
      return "a time such as \"10ms\"" + range;
    case Unit::kBitsPerSecond:
      return "a rate such as \"10Gbps\"" + range;
    default:
      return "a number" + range;
  }
}

}  // namespace mercury
