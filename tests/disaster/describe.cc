// Scenarios and reductions as text, and back.
#include <charconv>
#include <cstdio>
#include <sstream>

#include "tests/disaster/scenario.h"

namespace mercury::disaster {
namespace {

std::string ms(uint64_t time_ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f ms", static_cast<double>(time_ns) / 1e6);
  return text;
}

std::string weather(const sim::Faults& faults) {
  char text[200];
  std::snprintf(text, sizeof text,
                "loss %.4f, bursts %.5f of %.0f, duplicates %.3f, reordered %.3f by %.3f ms, "
                "corrupt %.4f, jitter %.3f ms",
                faults.loss, faults.burst_start, faults.burst_frames, faults.duplicate,
                faults.reorder, static_cast<double>(faults.reorder_delay_ns) / 1e6, faults.corrupt,
                static_cast<double>(faults.jitter_ns) / 1e6);
  std::string out = text;
  if (faults.vanish_above_bytes != sim::Faults().vanish_above_bytes) {
    out += ", nothing above " + std::to_string(faults.vanish_above_bytes) + " bytes";
  }
  return out;
}

template <class Numbers>
std::string joined(const Numbers& numbers) {
  std::ostringstream out;
  const char* between = "";
  for (const auto& number : numbers) {
    out << between << number;
    between = ".";
  }
  return out.str();
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

bool to_number(const std::string& text, uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

std::string describe(const JobPlan& job) {
  std::ostringstream out;
  out << job.name << ": workers on hosts " << joined(job.worker_hosts) << ", servers on hosts "
      << joined(job.server_hosts) << ", " << job.rounds << " rounds, computing up to "
      << ms(job.compute_ns) << ", " << job.attempts << " attempts"
      << (job.deterministic ? ", deterministic" : "") << (job.fifo ? ", fifo" : "")
      << (job.any_rank ? ", ranks given out" : "") << (job.hostile ? ", hostile" : "");
  if (job.quorum > 0) out << ", " << job.quorum << " are enough after " << ms(job.patience_ns);
  if (job.rejoin_ns > 0) out << ", waits for lost workers " << ms(job.rejoin_ns);
  if (job.stall_ns > 0) out << ", bears with stalled workers " << ms(job.stall_ns);
  if (job.straggler != ~0U) {
    out << ", straggler " << job.straggler << " by up to " << ms(job.straggle_ns);
  }
  out << "\n";
  for (const TensorPlan& t : job.tensors) {
    out << "    tensor " << t.number << ": " << t.numel << " x " << mercury::name_of(t.dtype) << " "
        << mercury::name_of(t.op) << ", priority " << t.priority
        << (t.split ? ", push then pull" : "") << "\n";
  }
  return out.str();
}

}  // namespace

const char* name_of(FaultKind kind) {
  static constexpr const char* kNames[kFaultKinds] = {
      "partition",  "one-way partition", "link flap",     "black hole", "storm",          "pause",
      "clock jump", "program stall",     "program crash", "host crash", "program leaves", "move",
      "stranger",   "hostile member"};
  return kNames[static_cast<size_t>(kind)];
}

const char* name_of(Attack attack) {
  static constexpr const char* kNames[static_cast<size_t>(Attack::kCount)] = {
      "HELLOs", "replay", "copies", "forgeries", "hoarding", "far ahead", "chatter"};
  return kNames[static_cast<size_t>(attack)];
}

std::string describe(const Fault& fault) {
  std::ostringstream out;
  out << name_of(fault.kind) << " at " << ms(fault.at_ns) << " for " << ms(fault.for_ns);
  if (fault.kind == FaultKind::kProgramStall || fault.kind == FaultKind::kProgramCrash ||
      fault.kind == FaultKind::kProgramLeave) {
    out << ", program " << fault.program;
    return out.str();
  }
  const bool stranger = fault.kind == FaultKind::kStranger;
  if (stranger || fault.kind == FaultKind::kHostile) out << ", " << name_of(fault.attack);
  if (stranger) return out.str();
  out << ", host " << fault.host;
  if (fault.kind == FaultKind::kPartition || fault.kind == FaultKind::kOneWay) {
    out << (fault.other == ~0U ? " and all others" : " and host " + std::to_string(fault.other));
  }
  if (fault.kind == FaultKind::kPause && fault.amount != 0) out << ", but for its programs";
  if (fault.kind == FaultKind::kFlap) out << ", period " << ms(fault.amount);
  if (fault.kind == FaultKind::kBlackHole) out << ", above " << fault.amount << " bytes";
  if (fault.kind == FaultKind::kClockJump) out << ", by " << ms(fault.amount);
  if (fault.kind == FaultKind::kMove) out << ", to place " << fault.amount;
  if (fault.kind == FaultKind::kStorm) out << ", " << weather(fault.weather);
  return out.str();
}

std::string describe(const Scenario& s) {
  std::ostringstream out;
  out << "seed " << s.seed << "\n  network: " << (s.ipv6 ? "IPv6" : "IPv4") << ", "
      << s.link.bytes_per_second << " bytes/s, delay " << ms(s.link.delay_ns) << ", queue "
      << s.link.queue_bytes << " bytes\n  weather: " << weather(s.link.faults)
      << "\n  peer time-out " << ms(s.peer_timeout_ns) << ", notice of leaving "
      << ms(s.leave_notice_ns) << (s.fixed_window ? ", fixed window " : ", window up to ")
      << s.window_bytes << " bytes, first packet " << s.first_packet_number << ", "
      << s.in_flight_packets << " packets in flight and " << s.ranges << " ranges per engine"
      << (s.sealed ? ", frames are authenticated" : "") << (s.encrypted ? " and encrypted" : "")
      << "\n";
  for (size_t i = 0; i < s.hosts.size(); ++i) {
    const HostPlan& host = s.hosts[i];
    out << "  host " << i << ": " << host.lanes << " engines, " << host.source_ports
        << " source ports each, MTU " << host.mtu_bytes << ", starts at " << ms(host.start_ns)
        << ", control plane late by " << ms(host.control_delay_ns) << ", clock drifts "
        << host.drift_ppm << " ppm, a frame takes " << host.frame_cost_ns << " ns, a command "
        << host.command_cost_ns << " ns";
    if (host.sessions != 0) out << ", " << host.sessions << " sessions per engine";
    if (host.features != ~uint32_t{0}) out << ", an earlier release's features " << host.features;
    out << "\n";
  }
  for (const JobPlan& job : s.jobs) out << "  " << describe(job);
  for (size_t i = 0; i < s.faults.size(); ++i) {
    out << "  fault " << i << ": " << describe(s.faults[i]) << "\n";
  }
  return out.str();
}

std::string Reduction::to_string() const {
  std::ostringstream out;
  if (!without_faults.empty()) out << "faults=" << joined(without_faults) << " ";
  if (!calm.empty()) out << "no=" << joined(calm) << " ";
  if (!without_jobs.empty()) out << "jobs=" << joined(without_jobs) << " ";
  if (max_rounds != ~0U) out << "rounds=" << max_rounds << " ";
  if (max_tensors != ~0U) out << "tensors=" << max_tensors << " ";
  if (max_numel != ~uint64_t{0}) out << "numel=" << max_numel << " ";
  if (max_workers != ~0U) out << "workers=" << max_workers << " ";
  std::string text = out.str();
  if (!text.empty()) text.pop_back();
  return text;
}

Result<Reduction> Reduction::parse(const std::string& text) {
  Reduction cut;
  for (const std::string& part : split(text, ' ')) {
    const Error bad(Errc::kInvalidArgument, "--reduce: '" + part + "' is not understood");
    const size_t equals = part.find('=');
    if (equals == std::string::npos) return bad;
    const std::string key = part.substr(0, equals);
    const std::vector<std::string> values = split(part.substr(equals + 1), '.');
    if (key == "no") {
      cut.calm.insert(values.begin(), values.end());
      continue;
    }
    std::vector<uint64_t> numbers(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (!to_number(values[i], numbers[i])) return bad;
    }
    if (numbers.empty()) return bad;
    if (key == "faults") {
      for (uint64_t n : numbers) cut.without_faults.insert(static_cast<uint32_t>(n));
    } else if (key == "jobs") {
      for (uint64_t n : numbers) cut.without_jobs.insert(static_cast<uint32_t>(n));
    } else if (key == "rounds") {
      cut.max_rounds = static_cast<uint32_t>(numbers[0]);
    } else if (key == "tensors") {
      cut.max_tensors = static_cast<uint32_t>(numbers[0]);
    } else if (key == "numel") {
      cut.max_numel = numbers[0];
    } else if (key == "workers") {
      cut.max_workers = static_cast<uint32_t>(numbers[0]);
    } else {
      return bad;
    }
  }
  return cut;
}

}  // namespace mercury::disaster
