#include "tests/disaster/disaster_host.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tests/disaster/tables.h"
#include "transport/engine/shared_link.h"

namespace mercury::disaster {
namespace {

constexpr uint64_t kFarNs = ~uint64_t{0} / 1'000'000;
// Servers say who waits in vain for one that has left. Whoever was told so guesses what else waits
// in vain, for those who were told, too.
constexpr uint64_t kGraceNs = 1'000'000'000;
// Thirteen HELLOs: of nine, in 3 s, all were lost in the worst weather of one seed in some 345,000.
constexpr uint64_t kHandshakeTimeoutNs = 5'000'000'000;

// With so many an engine refuses one that is asked for, of open jobs at least.
uint32_t most_sessions(const Scenario& scenario, const HostPlan& plan) {
  if (plan.sessions == 0) return ~0U;
  return scenario.listed() ? plan.sessions : open_sessions(plan.sessions);
}

// Tables as small as the scenarios need: a host must be made in microseconds.
sim::VirtualHostConfig host_config(const Scenario& scenario, const HostPlan& plan) {
  sim::VirtualHostConfig made;
  made.lanes = plan.lanes;
  made.ipv6 = scenario.ipv6;
  made.frame_cost_ns = plan.frame_cost_ns;
  made.command_cost_ns = plan.command_cost_ns;
  made.source_ports = plan.source_ports;
  HostConfig& config = made.host;
  SessionConfig& session = config.lane.engine.session;
  session.peer_timeout_ns = scenario.peer_timeout_ns;
  session.handshake_timeout_ns = kHandshakeTimeoutNs;
  session.window_bytes = scenario.window_bytes;
  session.window = scenario.fixed_window ? WindowKind::kFixed : WindowKind::kAdaptive;
  session.first_packet_number = scenario.first_packet_number;
  // As a daemon has, where strangers ask for them: the bounds on those add up to fewer.
  const uint32_t plenty = scenario.attacked() ? 1024 : 128;
  config.lane.engine.max_sessions = plan.sessions != 0 ? plan.sessions : plenty;
  config.lane.engine.max_in_flight_packets = scenario.in_flight_packets;
  if (plan.lanes > 1) config.lane.engine.link = std::make_shared<SharedLink>();
  config.lane.exchange.sends.scheduler = {32, config.lane.engine.max_sessions, scenario.ranges,
                                          65536};
  config.lane.exchange.sends.reserved_ranges = scenario.ranges / 8;
  config.policy.leave_grace_ns = kGraceNs;
  config.policy.max_jobs = 32;
  config.policy.wire_features = plan.features;
  config.policy.max_sessions = config.lane.engine.max_sessions;
  if (scenario.sealed) config.policy.authentication = Authentication::kRequired;
  if (scenario.encrypted) config.policy.authentication = Authentication::kEncrypted;
  for (const JobPlan& job : scenario.jobs) {
    if (!job.secret.empty() && !job.recovery) {
      config.policy.known.push_back({.name = job.name, .secret = job.secret});
    }
  }
  return made;
}

}  // namespace

uint64_t Clock::network_ns(uint64_t local_ns) const {
  if (local_ns == kNever) return kNever;
  if (local_ns <= local_ns_) return since_ns_;
  __extension__ using Wide = unsigned __int128;
  const uint64_t wanted_ns = local_ns - local_ns_;
  if (drift_ppm_ == 0) return since_ns_ + wanted_ns;
  const auto rate = static_cast<uint64_t>(1'000'000 + drift_ppm_);
  uint64_t passed_ns = wanted_ns < kFarNs
                           ? wanted_ns * 1'000'000 / rate
                           : static_cast<uint64_t>(Wide{wanted_ns} * 1'000'000 / rate);
  while (passed_ns + drift_of(passed_ns) < wanted_ns) ++passed_ns;
  return since_ns_ + passed_ns;
}

DisasterHost::DisasterHost(sim::SimNetwork& network, sim::HostId id, uint32_t index,
                           const Scenario& scenario)
    : VirtualHost(network, id, index, host_config(scenario, scenario.hosts[index]),
                  [this] { return random_.next(); }),
      plan_(scenario.hosts[index]),
      full_at_(most_sessions(scenario, plan_)),
      sealed_(scenario.sealed),
      encrypted_(scenario.encrypted),
      clock_(plan_.clock_ns, plan_.drift_ppm),
      random_(scenario.seed * 131 + index) {}

Status DisasterHost::start() {
  ++life_;
  asked_.clear();
  control_due_ns_ = 0;
  stir();
  return VirtualHost::start();
}

void DisasterHost::pause(bool still, bool daemon_alone) {
  still_ = still;
  daemon_alone_ = daemon_alone;
  if (!runs()) return;
  for (const auto& call : std::exchange(asked_, {})) call();
}

void DisasterHost::ask(std::function<void()> call) {
  if (runs()) return call();
  asked_.push_back(std::move(call));
}

bool DisasterHost::lane_due(size_t lane, uint64_t local_ns) {
  Lane<sim::SimPort>& l = this->lane(lane);
  return l.port().rx_waiting() || l.engine().commands_waiting() > 0 ||
         l.engine().next_deadline_ns() <= local_ns;
}

sim::Visit DisasterHost::visit(uint64_t now_ns, bool) {
  worked_ = false;
  if (!runs()) return {};
  const uint64_t local_ns = clock_.local_ns(now_ns);
  const bool all = std::exchange(stirred_, false);
  uint32_t work = 0;
  for (size_t i = 0; i < lanes(); ++i) {
    if (!all && !lane_due(i, local_ns)) continue;
    if (!may_work(i, now_ns)) {
      stirred_ |= all;
      continue;
    }
    note_full(i, now_ns);
    work += pass(i, now_ns, local_ns);
    note_full(i, now_ns);
    if (lane(i).engine().take_moved() != 0) {
      control_due_ns_ = std::min(control_due_ns_, now_ns + plan_.control_delay_ns);
    }
  }
  if (control_due_ns_ <= now_ns || host().next_deadline_ns() <= local_ns) {
    control_due_ns_ = kNever;
    host().process(local_ns);
    ++work;
  }
  worked_ = work > 0;
  return {.work = work, .next_ns = worked_ ? now_ns : next_due_ns(now_ns)};
}

uint64_t DisasterHost::next_due_ns(uint64_t now_ns) {
  uint64_t due_ns = std::min(control_due_ns_, clock_.network_ns(host().next_deadline_ns()));
  for (size_t i = 0; i < lanes(); ++i) {
    const bool waits =
        stirred_ || lane(i).port().rx_waiting() || lane(i).engine().commands_waiting() > 0;
    const uint64_t lane_ns =
        waits ? now_ns : clock_.network_ns(lane(i).engine().next_deadline_ns());
    due_ns = std::min(due_ns, std::max(lane_ns, free_ns(i)));
  }
  return due_ns;
}

// Within a pass it may have been, as sessions that end go last in it.
void DisasterHost::note_full(size_t lane, uint64_t now_ns) {
  if (this->lane(lane).engine().session_count() < full_at_) return;
  full_ns_ = now_ns;
}

bool DisasterHost::was_full(uint64_t since_ns) {
  bool full = full_ns_ != kNever && full_ns_ >= since_ns;
  for (size_t i = 0; up() && i < lanes(); ++i) {
    full = full || lane(i).engine().session_count() >= full_at_;
  }
  return full;
}

std::string DisasterHost::held() {
  std::string text;
  const auto note = [&text](const char* what, uint64_t count) {
    if (count != 0) text += " " + std::to_string(count) + " " + what;
  };
  if (!up()) return text;
  if (!jobs().idle()) text += " the control plane";
  note("timer of the control plane", host().next_deadline_ns() != kNever);
  for (size_t lane = 0; lane < lanes(); ++lane) {
    Lane<sim::SimPort>& l = this->lane(lane);
    note("sessions", l.engine().session_count());
    note("blocks of sent packets", l.engine().sent_pool().blocks_in_use());
    note("timer", l.engine().next_deadline_ns() != kNever);
    note("senders with credit", l.engine().credit().registered_senders());
    note("senders that count as active", l.engine().credit().active_senders());
    note("senders expected", l.engine().credit().expected_senders());
    note("programs' channels", l.exchange().channel_count());
    const ExchangeUsage usage = l.exchange().usage();
    note("bytes of sums", usage.aggregator_bytes);
    note("ranges", usage.ranges);
    note("lost chunks", usage.lost_chunks);
    note("bound sessions", usage.sessions);
    note("jobs", usage.jobs);
    note("undelivered completions", usage.completions);
    note("bytes in the NIC", l.port().tx_queued_bytes());
    const Counters& counters = host().counters(lane);
    const uint64_t opened = counters.get(Counter::kSessionsOpened);
    note("sessions that opened with or without seals, against the plan",
         counters.get(Counter::kSessionsSealed) - (sealed_ ? opened : 0));
    note("sessions that are encrypted, against the plan",
         counters.get(Counter::kSessionsEncrypted) - (encrypted_ ? opened : 0));
  }
  return text;
}

}  // namespace mercury::disaster
