#include "tests/disaster/world.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "shim/job/member.h"

namespace mercury::disaster {
namespace {

constexpr uint64_t kInspectionNs = 20 * kMs;
// What the control plane keeps of a job that has ended, it keeps for 10 s at most.
constexpr uint64_t kSettleNs = 30 * kSecond;
constexpr uint64_t kHorizonNs = 600 * kSecond;
constexpr uint32_t kLivelock = 100'000;  // passes at one instant
// An engine that found its NIC full tries again; without this step, every nanosecond.
constexpr uint64_t kLeastPauseNs = 1'000;
// Enough for any frame's header, which holds CRCs of all that follows (wire/header.h).
constexpr size_t kHeadBytes = 64;

sim::VirtualClusterConfig cluster_config(const Scenario& scenario) {
  sim::VirtualClusterConfig config;
  config.network.seed = scenario.seed ^ 0x6d65726375727921;
  config.seed = scenario.seed + 17;
  config.look = sim::Look::kInTurns;
  config.least_pause_ns = kLeastPauseNs;
  return config;
}

sim::LinkConfig link_of(const Scenario& scenario, const HostPlan& plan) {
  sim::LinkConfig link = scenario.link;
  link.mtu_bytes = plan.mtu_bytes;
  return link;
}

}  // namespace

World::World(const Scenario& scenario, std::FILE* log)
    : scenario_(scenario), log_(log), ledger_(scenario_), cluster_(cluster_config(scenario)) {
  for (const HostPlan& host : scenario_.hosts) {
    const sim::LinkConfig link = link_of(scenario_, host);
    cluster_.add(cluster_.network().add_host(link, link), scenario_);
  }
  for (uint32_t j = 0; j < scenario_.jobs.size(); ++j) {
    for (uint32_t rank = 0; rank < scenario_.jobs[j].worker_hosts.size(); ++rank) {
      programs_.push_back(
          std::make_unique<DisasterProgram>(scenario_, static_cast<uint32_t>(programs_.size()), j,
                                            rank, static_cast<Surroundings&>(*this)));
    }
  }
  cluster_.on_timer = [this](size_t timer) { on_timer(timer); };
  cluster_.after_round = [this](uint32_t round) { return after_round(round); };
  cluster_.network().set_tap(
      [](void* world, uint64_t, const Endpoint& source, const Endpoint& target,
         std::span<const std::byte> payload) {
        static_cast<World*>(world)->on_frame(source, target, payload);
      },
      this);
  if (scenario_.attacked()) hostile_.emplace(cluster_.network(), scenario_);
  plan_happenings();
}

void World::on_frame(const Endpoint& source, const Endpoint& target,
                     std::span<const std::byte> frame) {
  read_head(frame);
  check_freshness(frame);
  check_release(target, frame);
  if (hostile_) hostile_->hear(source, target, frame);
}

// A session's keys and tag are new as long as either side's nonce is.
void World::check_freshness(std::span<const std::byte> frame) {
  wire::Header header;
  std::span<const std::byte> payload;
  if (frame.size() < sizeof(wire::CommonHeader) ||
      frame[offsetof(wire::CommonHeader, type)] > std::byte(wire::FrameType::kHelloAck) ||
      wire::decode(frame, header, payload) != wire::DecodeError::kNone) {
    return;
  }
  const auto said = [this](const auto& body) {
    if (body && nonces_.try_emplace(body->nonce, body->session).first->second != body->session) {
      violation("two handshakes have the same nonce");
    }
  };
  if (header.type == wire::FrameType::kHello) said(wire::decode_hello(payload));
  if (header.type == wire::FrameType::kHelloAck) said(wire::decode_hello_ack(payload));
}

// Nobody says what a host of an earlier release does not know. (RESET goes to whom a host that was
// started again does not remember.)
void World::check_release(const Endpoint& target, std::span<const std::byte> frame) {
  constexpr std::pair<wire::FrameType, wire::Feature> kLater[] = {
      {wire::FrameType::kStream, wire::kFeatureStreams},
      {wire::FrameType::kStreamCredit, wire::kFeatureStreams},
      {wire::FrameType::kStreamReset, wire::kFeatureStreams},
      {wire::FrameType::kResetToken, wire::kFeatureResets},
      {wire::FrameType::kPart, wire::kFeatureParts},
      {wire::FrameType::kPathChallenge, wire::kFeatureMoves},
      {wire::FrameType::kPathResponse, wire::kFeatureMoves},
      {wire::FrameType::kSourcePorts, wire::kFeatureSourcePorts}};
  if (frame.size() < sizeof(wire::CommonHeader) || scenario_.attacked()) return;
  const auto type = wire::FrameType(frame[offsetof(wire::CommonHeader, type)]);
  const auto* const later =
      std::ranges::find_if(kLater, [type](const auto& one) { return one.first == type; });
  if (later == std::end(kLater) || scenario_.have(later->second)) return;
  for (uint32_t i = 0; i < scenario_.hosts.size(); ++i) {
    if ((scenario_.hosts[i].features & later->second) != 0) continue;
    for (size_t lane = 0; lane < cluster_[i].lanes(); ++lane) {
      if (cluster_[i].endpoint(lane) == target) {
        violation("a frame that the host's release does not know");
      }
    }
  }
}

void World::read_head(std::span<const std::byte> frame) noexcept {
  uint64_t state = verdict_.contents;
  for (std::span<const std::byte> left = frame.first(std::min(frame.size(), kHeadBytes));
       !left.empty();) {
    uint64_t word = 0;
    const size_t bytes = std::min(left.size(), sizeof word);
    std::memcpy(&word, left.data(), bytes);
    state ^= word;
    state = split_mix(state);
    left = left.subspan(bytes);
  }
  verdict_.contents = state;
}

// --- disasters -------------------------------------------------------------------------------

void World::plan_happenings() {
  network_faults_ = std::make_unique<sim::FaultSchedule>(cluster_.network(), cluster_.size());
  for (uint32_t i = 0; i < scenario_.hosts.size(); ++i) {
    happenings_.push_back({scenario_.hosts[i].start_ns, i, true, true});
  }
  survived_.resize(scenario_.faults.size());
  for (uint32_t i = 0; i < scenario_.faults.size(); ++i) {
    const Fault& fault = scenario_.faults[i];
    happenings_.push_back({fault.at_ns, i, true, false});
    happenings_.push_back({fault.at_ns + fault.for_ns, i, false, false});
    add_network_fault(fault);
  }
  std::stable_sort(happenings_.begin(), happenings_.end(),
                   [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
  network_faults_->start(now_ns());
  cluster_.set_timer(kNetworkFaults, network_faults_->next_ns());
  set_happenings_timer();
}

void World::add_network_fault(const Fault& fault) {
  sim::NetworkFault out;
  out.from_ns = fault.at_ns;
  out.until_ns = fault.at_ns + fault.for_ns;
  out.host = fault.host;
  out.other = fault.other;
  switch (fault.kind) {
    case FaultKind::kPartition:
      out.kind = sim::NetworkFaultKind::kPartition;
      break;
    case FaultKind::kOneWay:
      out.kind = sim::NetworkFaultKind::kOneWay;
      break;
    case FaultKind::kFlap:
      out.kind = sim::NetworkFaultKind::kFlap;
      out.period_ns = fault.amount;
      break;
    case FaultKind::kBlackHole:
      out.kind = sim::NetworkFaultKind::kBlackHole;
      out.mtu_bytes = static_cast<uint32_t>(fault.amount);
      break;
    case FaultKind::kStorm:
      out.kind = sim::NetworkFaultKind::kWeather;
      out.faults = fault.weather;
      break;
    default:
      return;
  }
  network_faults_->add(out);
}

void World::set_happenings_timer() {
  const bool more = next_happening_ < happenings_.size();
  cluster_.set_timer(kHappenings, more ? happenings_[next_happening_].at_ns : kNever);
}

void World::happen(const Happening& happening) {
  if (happening.host_starts) {
    if (!cluster_[happening.fault].up()) start_host(happening.fault);
    return;
  }
  const Fault& fault = scenario_.faults[happening.fault];
  note(name_of(fault.kind), happening.begins ? "begins" : "ends", fault.host, fault.program);
  DisasterHost& host = cluster_[fault.host];
  switch (fault.kind) {
    case FaultKind::kPause:
      host.pause(happening.begins, fault.amount != 0);
      wake(fault.host);
      // Whoever was stalled meanwhile has not looked since.
      for (const auto& program : programs_) {
        if (program->host_index() == fault.host) program->run();
      }
      break;
    case FaultKind::kClockJump:
      if (!happening.begins) break;
      host.leap(fault.amount, now_ns());
      cluster_.wake(fault.host);
      break;
    case FaultKind::kProgramStall:
      programs_[fault.program]->stall(happening.begins);
      programs_[fault.program]->run();  // answers may have come meanwhile
      break;
    case FaultKind::kProgramCrash:
      if (happening.begins && cluster_[programs_[fault.program]->host_index()].up()) {
        survived_[happening.fault] = survivable(fault);
        programs_[fault.program]->crash(fault.at_ns + fault.for_ns);
      }
      break;
    case FaultKind::kProgramLeave:
      if (happening.begins) leave(happening.fault);
      break;
    case FaultKind::kMove:
      if (happening.begins && host.up()) move(happening.fault);
      break;
    case FaultKind::kStranger:
    case FaultKind::kHostile:
      attack(fault, happening.begins);
      break;
    case FaultKind::kHostCrash:
      if (happening.begins && host.up()) kill_host(fault.host);
      if (!happening.begins && !host.up()) start_host(fault.host);
      break;
    default:
      break;  // the network's
  }
}

// All are in the job, it waits for lost workers, and this one is back in time. (With a quorum the
// others may be through before it is.)
bool World::survivable(const Fault& crash) const {
  const DisasterProgram& victim = *programs_[crash.program];
  const JobPlan& job = scenario_.jobs[victim.job()];
  uint64_t back_ns = crash.at_ns + crash.for_ns;
  for (const Fault& fault : scenario_.faults) {
    // Its next life stands still as well, maybe before it has joined again.
    if (fault.kind == FaultKind::kProgramStall && fault.program == crash.program &&
        fault.at_ns <= crash.at_ns + job.rejoin_ns) {
      back_ns = std::max(back_ns, fault.at_ns + fault.for_ns);
    }
    // Who may have sessions takes the place of those that have shown nothing, as its next life's
    // have not yet; it asks again.
    const bool tight = scenario_.hosts.front().sessions > 0;
    if (tight && scenario_.takes_sessions(fault) && fault.at_ns <= crash.at_ns + job.rejoin_ns) {
      back_ns = std::max(back_ns, fault.at_ns + fault.for_ns + kLongestRedialNs);
    }
  }
  return 2 * (back_ns - crash.at_ns) < job.rejoin_ns && job.quorum == 0 &&
         victim.would_come_back() &&
         std::all_of(programs_.begin(), programs_.end(), [&](const auto& program) {
           return program->job() != victim.job() || program->trains();
         });
}

// With a quorum the others go on, if they are enough and all have come.
void World::leave(uint32_t fault) {
  DisasterProgram& leaver = *programs_[scenario_.faults[fault].program];
  const JobPlan& job = scenario_.jobs[leaver.job()];
  survived_[fault] = job.quorum > 0 && job.worker_hosts.size() > job.quorum &&
                     std::all_of(programs_.begin(), programs_.end(), [&](const auto& program) {
                       return program->job() != leaver.job() || program->trains();
                     });
  std::optional<Departure> departure = leaver.leave();
  if (departure) departures_.emplace(leaver.job(), std::move(*departure));
}

// Sessions that are open go on. Those that are being opened may have to be opened again, and nobody
// finds a server elsewhere who has no session with it. Hosts of releases without moves do not
// follow.
void World::move(uint32_t index) {
  const Fault& fault = scenario_.faults[index];
  survived_[index] = scenario_.have(wire::kFeatureMoves) &&
                     std::all_of(programs_.begin(), programs_.end(), [&](const auto& program) {
                       const JobPlan& job = scenario_.jobs[program->job()];
                       const bool serves = contains(job.server_hosts, fault.host);
                       return program->trains() ||
                              (program->is_out() && (program->done() || !serves)) ||
                              !(serves || contains(job.worker_hosts, fault.host));
                     });
  DisasterHost& host = cluster_[fault.host];
  for (size_t lane = 0; lane < host.lanes(); ++lane) {
    const Endpoint seen = place_of(fault.host, lane, fault.amount, scenario_.ipv6);
    if (!cluster_.network().show_as(host.port(lane), seen)) violation("a host cannot move");
  }
}

// Where the host's daemon was, there is nobody, and whoever speaks for it.
void World::attack(const Fault& fault, bool begins) {
  DisasterHost& host = cluster_[fault.host];
  if (fault.kind == FaultKind::kHostile) {
    if (begins && host.up()) kill_host(fault.host);
    if (!begins && !host.up()) start_host(fault.host);
  }
  if (begins) {
    hostile_->begin(fault, now_ns());
  } else {
    hostile_->end(fault);
  }
  cluster_.set_timer(kAttacks, hostile_->next_ns());
}

void World::start_host(uint32_t index) {
  DisasterHost& host = cluster_[index];
  (void)cluster_.start(index);
  cluster_.wake(index);
  note("host", "starts", index, host.life());
  host.host().set_channel_events([this](LaneId, const Event& event) {
    if (const auto* detached = std::get_if<event::ChannelDetached>(&event)) {
      for (auto& program : programs_) program->on_channel_detached(detached->channel);
    } else {
      violation("an engine says that a program broke its channel");
    }
  });
}

void World::kill_host(uint32_t index) {
  note("host", "killed", index, cluster_[index].life());
  cluster_.crash(index);
  for (auto& program : programs_) {
    if (program->host_index() == index) program->daemon_died();
  }
}

// --- time ------------------------------------------------------------------------------------

void World::on_timer(size_t timer) {
  if (timer == kNetworkFaults) {
    network_faults_->apply(now_ns());
    cluster_.set_timer(kNetworkFaults, network_faults_->next_ns());
  } else if (timer == kHappenings) {
    happen(happenings_[next_happening_++]);
    set_happenings_timer();
  } else if (timer == kAttacks) {
    hostile_->act(now_ns());
    cluster_.set_timer(kAttacks, hostile_->next_ns());
  }
}

bool World::after_round(uint32_t round) {
  if (round > kLivelock) violation("nothing comes to rest: a livelock");
  const uint64_t now_ns = this->now_ns();
  for (auto& program : programs_) {
    if (cluster_[program->host_index()].worked() || program->next_ns() <= now_ns) program->run();
  }
  return !over_;
}

// Whether all is over.
bool World::after_moment() {
  if (now_ns() >= next_inspection_ns_) inspect();
  uint64_t next_ns = kNever;
  for (auto& program : programs_) {
    if (cluster_[program->host_index()].programs_run())
      next_ns = std::min(next_ns, program->next_ns());
  }
  cluster_.set_timer(kPrograms, std::max(next_ns, now_ns() + kLeastPauseNs));
  return over_;
}

Verdict World::run() {
  next_inspection_ns_ = now_ns() + kInspectionNs;
  cluster_.set_timer(kInspection, next_inspection_ns_);
  (void)cluster_.run([this] { return after_moment(); });
  end();
  verdict_.trace = notes_ ^ cluster_.network().trace_hash();
  verdict_.virtual_ns = now_ns();
  verdict_.frames = cluster_.network().delivered_frames();
  verdict_.sums = ledger_.sums_checked();
  for (auto& program : programs_) {
    ++verdict_.programs;
    verdict_.succeeded += program->succeeded();
    verdict_.longest_wait_ns = std::max(verdict_.longest_wait_ns, program->longest_wait_ns());
  }
  return verdict_;
}

void World::inspect() {
  next_inspection_ns_ = now_ns() + kInspectionNs;
  cluster_.set_timer(kInspection, next_inspection_ns_);
  for (auto& program : programs_) program->check_patience();
  if (now_ns() > kHorizonNs) return violation("does not end");
  next_stage();
}

bool World::programs_done() const {
  return std::all_of(programs_.begin(), programs_.end(), [this](const auto& program) {
    return program->done() ||
           (stage_ < Stage::kRecovery && scenario_.jobs[program->job()].recovery);
  });
}

// Disasters, then rest, then one more job, then rest.
void World::next_stage() {
  const bool quiet = next_happening_ == happenings_.size() && network_faults_->next_ns() == kNever;
  const bool settling = stage_ == Stage::kSettling || stage_ == Stage::kLastSettling;
  if (!settling && (!quiet || !programs_done())) return;
  if (settling) {
    const std::string left = held();
    if (!left.empty()) {
      if (now_ns() - stage_since_ns_ > kSettleNs) violation("left when all is over:" + left);
      return;
    }
  }
  if (stage_ == Stage::kLastSettling) {
    over_ = true;
    return;
  }
  stage_ = static_cast<Stage>(static_cast<uint8_t>(stage_) + 1);
  stage_since_ns_ = now_ns();
  note("world", "stage", static_cast<uint64_t>(stage_), 0);
  if (stage_ != Stage::kRecovery) return;
  for (auto& program : programs_) {
    if (scenario_.jobs[program->job()].recovery) program->begin(now_ns());
  }
}

std::string World::held() {
  std::string text;
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const std::string held = cluster_[i].held();
    if (!held.empty()) text += " host " + std::to_string(i) + ":" + held + ";";
  }
  return text;
}

void World::end() {
  for (auto& program : programs_) {
    program->check_graveyard();
    const bool untouched = !disturbed(program->job());
    if (verdict_.ok() && untouched && scenario_.jobs[program->job()].attempts > 0 &&
        !program->succeeded() && !program->left_behind() && !program->left_early() &&
        !program->refused()) {
      violation(program->name() + " did not come through, and nothing was wrong with its job");
    }
  }
  for (const uint32_t job : suspected_) {
    if (!disturbed(job))
      violation("a job did not open, and no member of its was refused a session");
  }
  for (uint32_t i = 0; i < cluster_.size(); ++i) {
    const uint64_t mistaken = cluster_[i].total(Counter::kSpuriousLosses);
    if (scenario_.in_order() && mistaken != 0) {
      violation(std::to_string(mistaken) + " packets arrived in order, and were declared lost");
    }
    if (log_ != nullptr && cluster_[i].was_full(0)) {
      std::fprintf(log_, "host %u: a table of sessions was full\n", i);
    }
    cluster_.crash(i);
  }
  if (!verdict_.ok()) return;
  sim::SimNetwork& network = cluster_.network();
  while (network.next_event_ns() != kNever) network.advance_to(network.next_event_ns());
  if (network.unmapped_reads() != 0) {
    violation(std::to_string(network.unmapped_reads()) +
              " payloads were sent from unmapped memory");
  }
  if (network.frames_in_use() != 0) {
    violation(std::to_string(network.frames_in_use()) + " packet buffers are lost");
  }
}

// --- Surroundings ----------------------------------------------------------------------------

void World::violation(const std::string& what) {
  over_ = true;
  if (!verdict_.ok()) return;
  char time[40];
  std::snprintf(time, sizeof time, "%.6f s: ", static_cast<double>(now_ns()) / 1e9);
  verdict_.violation = time + what;
  if (log_ != nullptr) std::fprintf(log_, "%s\n", verdict_.violation.c_str());
}

void World::wake(uint32_t host) {
  cluster_[host].stir();
  cluster_.wake(host);
}

void World::note(const std::string& who, const char* what, uint64_t a, uint64_t b) {
  uint64_t state = notes_ ^ now_ns();
  state = split_mix(state) ^ (a << 32 | b);
  for (const char* c = what; *c != 0; ++c) state = state * 31 + static_cast<uint8_t>(*c);
  state += who.size();
  notes_ = split_mix(state);
  if (log_ == nullptr) return;
  std::fprintf(log_, "%12.6f ms  %s: %s %" PRIu64 " %" PRIu64 "\n",
               static_cast<double>(now_ns()) / 1e6, who.c_str(), what, a, b);
}

void World::explain(const std::string& who, const std::string& why) {
  if (log_ == nullptr) return;
  std::fprintf(log_, "%12.6f ms  %s: %s\n", static_cast<double>(now_ns()) / 1e6, who.c_str(),
               why.c_str());
}

Verdict run_seed(uint64_t seed, const Reduction& reduction, std::FILE* log) {
  const Scenario scenario = reduced(make_scenario(seed), reduction);
  if (log != nullptr) std::fprintf(log, "%s", describe(scenario).c_str());
  World world(scenario, log);
  return world.run();
}

}  // namespace mercury::disaster
