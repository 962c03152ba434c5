#include "tests/disaster/scenario.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shim/host/sim/virtual_host.h"
#include "tests/disaster/tables.h"
#include "transport/base/random.h"

namespace mercury::disaster {
namespace {

// Each part of a scenario draws from a generator of its own, so that one more draw in one part
// leaves the others as they were.
Random generator(uint64_t seed, uint64_t part) {
  uint64_t state = seed * 0x9e3779b97f4a7c15 + part;
  return Random(split_mix(state));
}

template <class T, size_t kSize>
T one_of(Random& random, const T (&values)[kSize]) {
  return values[random.below(kSize)];
}

double share(Random& random, double chance, double most) {
  return random.chance(chance) ? most * random.uniform() : 0;
}

sim::Faults draw_weather(Random& random) {
  sim::Faults faults;
  faults.loss = share(random, 0.6, random.chance(0.2) ? 0.08 : 0.03);
  faults.burst_start = share(random, 0.25, 0.004);
  faults.burst_frames = 2 + static_cast<double>(random.below(20));
  faults.burst_most_ns = kMs + random.below(20 * kMs);
  faults.duplicate = share(random, 0.4, 0.1);
  faults.reorder = share(random, 0.4, 0.2);
  faults.reorder_delay_ns = 10'000 + random.below(random.chance(0.3) ? 50 * kMs : kMs);
  faults.corrupt = share(random, 0.3, 0.03);
  faults.jitter_ns = random.chance(0.3) ? random.below(2 * kMs) : 0;
  return faults;
}

void draw_network(Scenario& s, Random random) {
  constexpr uint64_t kRates[] = {12'500'000, 125'000'000, 1'250'000'000, 12'500'000'000};
  s.ipv6 = random.chance(0.3);
  s.link.bytes_per_second = one_of(random, kRates);
  s.link.delay_ns = 500 + random.below(random.chance(0.2) ? 2 * kMs : 50'000);
  s.link.queue_bytes = random.chance(0.3) ? 64 * 1024 : 1 << 20;
  if (random.chance(0.8)) s.link.faults = draw_weather(random);
  constexpr uint64_t kTimeouts[] = {kSecond, kSecond, 2 * kSecond, 3 * kSecond};
  s.peer_timeout_ns = one_of(random, kTimeouts);
  s.leave_notice_ns = 2 * kSecond + random.below(2 * kSecond);
  s.window_bytes = 16 * 1024 << random.below(6);
  s.fixed_window = random.chance(0.3);
  if (random.chance(0.5)) s.link.ecn_mark_bytes = s.link.queue_bytes / 4;
  s.first_packet_number = random.chance(0.3) ? 0xffff'ffff - random.below(400) : random.below(3);
  s.in_flight_packets = random.chance(0.2) ? 256 : 4096;
}

void draw_hosts(Scenario& s, Random random) {
  const uint64_t hosts = 2 + random.below(5);
  constexpr uint32_t kMtus[] = {1280, 1500, 1500, 4000, 9000};
  const bool uniform = random.chance(0.7);
  const uint32_t mtu = one_of(random, kMtus);
  for (uint64_t i = 0; i < hosts; ++i) {
    HostPlan host;
    host.lanes = static_cast<uint32_t>(1 + random.below(2));
    host.start_ns = random.chance(0.1) ? random.below(800 * kMs) : 0;
    host.control_delay_ns =
        random.chance(0.5) ? random.below(random.chance(0.2) ? 5 * kMs : 200'000) : 0;
    host.drift_ppm = random.chance(0.3) ? static_cast<int64_t>(random.below(100'001)) - 50'000 : 0;
    host.clock_ns = random.below(uint64_t{1} << 50);
    host.mtu_bytes = uniform ? mtu : one_of(random, kMtus);
    s.hosts.push_back(host);
  }
}

// Engines that take their time, so that frames wait for them, and what they do is not over at once.
void draw_processors(Scenario& s, Random random) {
  if (!random.chance(0.2)) return;
  const uint64_t most_ns = random.chance(0.5) ? 1'000 : 30'000;
  const bool one_is_slow = random.chance(0.3);
  const uint64_t slow = random.below(s.hosts.size());
  for (uint64_t host = 0; host < s.hosts.size(); ++host) {
    const uint64_t cost_ns = 1 + random.below(most_ns);
    if (!one_is_slow || host == slow) s.hosts[host].frame_cost_ns = cost_ns;
  }
  // As much as a pass may do of what is cold, or as a system call in it may last; not where each
  // second brings hundreds of HELLOs that are judged, of which each is a command.
  if (!random.chance(0.5)) return;
  const uint64_t most_command_ns = random.chance(0.8) || s.attacked() ? 100'000 : 3 * kMs;
  for (HostPlan& host : s.hosts) {
    if (host.frame_cost_ns > 0) host.command_cost_ns = random.below(most_command_ns);
  }
}

// From none to all that there may be, and mostly not the same on all hosts.
void draw_source_ports(Scenario& s, Random random) {
  if (!random.chance(0.5)) return;
  constexpr uint32_t kPorts[] = {1, 1, 2, 3, 8, 16};
  for (HostPlan& host : s.hosts) host.source_ports = one_of(random, kPorts);
}

// Some hosts are of earlier releases: each brought a feature, or some, and none lost one. Which has
// seals says whether frames need them.
void draw_releases(Scenario& s, Random random) {
  if (s.seed % 8 != 5 && s.seed % 16 != 0) return;
  for (HostPlan& host : s.hosts) {
    if (random.chance(0.5)) continue;
    host.features = (1U << random.below(11)) - 1;
    if (s.sealed) host.features |= wire::kFeatureStreams | wire::kFeatureSeals;
    if (s.encrypted) host.features |= wire::kFeatureCanEncrypt | wire::kFeatureAsksEncryption;
  }
}

// A path in the middle takes less than both its ends say, from the start and for good.
void draw_narrow_path(Scenario& s, Random random) {
  if (random.chance(0.15))
    s.link.faults.vanish_above_bytes = 1280 + static_cast<uint32_t>(random.below(400));
}

TensorPlan draw_tensor(Random& random, uint32_t number) {
  constexpr Dtype kTypes[] = {Dtype::kF32, Dtype::kF32, Dtype::kI32, Dtype::kI64,
                              Dtype::kF64, Dtype::kF16, Dtype::kBf16};
  TensorPlan t;
  t.number = number;
  t.dtype = one_of(random, kTypes);
  const bool half = size_of(t.dtype) == 2;
  const uint64_t most = half ? 1200 : random.chance(0.1) ? 12'000 : 2500;
  t.numel = random.chance(0.2) ? 1 + random.below(3) : 1 + random.below(most);
  const bool integer = t.dtype == Dtype::kI32 || t.dtype == Dtype::kI64;
  t.op = !integer && random.chance(0.3) ? ReduceOp::kAverage : ReduceOp::kSum;
  t.priority = static_cast<uint16_t>(random.below(random.chance(0.5) ? 4 : 65536));
  t.split = random.chance(0.2);
  return t;
}

std::vector<uint32_t> draw_some(Random& random, size_t of, size_t count) {
  std::vector<uint32_t> all(of);
  for (uint32_t i = 0; i < of; ++i) all[i] = i;
  for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + random.below(of - i)]);
  all.resize(count);
  return all;
}

void draw_jobs(Scenario& s, Random random) {
  const uint64_t jobs = random.chance(0.35) ? 2 + random.below(2) : 1;
  for (uint64_t j = 0; j < jobs; ++j) {
    JobPlan job;
    job.name = "job" + std::to_string(j);
    const uint64_t workers = 1 + random.below(random.chance(0.2) ? 6 : 4);
    for (uint64_t w = 0; w < workers; ++w) {
      job.worker_hosts.push_back(static_cast<uint32_t>(random.below(s.hosts.size())));
    }
    const uint64_t servers = 1 + random.below(std::min<uint64_t>(3, s.hosts.size()));
    job.server_hosts = draw_some(random, s.hosts.size(), servers);
    job.deterministic = random.chance(0.3);
    job.fifo = random.chance(0.15);
    job.any_rank = random.chance(0.15);
    job.weight = static_cast<uint32_t>(1 + random.below(3));
    const uint64_t tensors = 1 + random.below(4);
    for (uint64_t t = 0; t < tensors; ++t) {
      job.tensors.push_back(draw_tensor(random, static_cast<uint32_t>(t * 7 + random.below(7))));
    }
    job.rounds = static_cast<uint32_t>(2 + random.below(6));
    job.compute_ns = random.below(random.chance(0.3) ? 40 * kMs : kMs);
    if (random.chance(0.2)) {
      job.straggler = static_cast<uint32_t>(random.below(workers));
      job.straggle_ns = random.below(300 * kMs);
    }
    job.attempts = static_cast<uint32_t>(1 + random.below(3));
    job.open_timeout_ns = 6 * kSecond + random.below(2 * kSecond);
    if (random.chance(0.5)) job.rejoin_ns = kSecond + random.below(4 * kSecond);
    s.jobs.push_back(std::move(job));
  }
}

// Some jobs need not wait for all of their workers.
void draw_quorums(Scenario& s, Random random) {
  for (JobPlan& job : s.jobs) {
    const uint64_t workers = job.worker_hosts.size();
    const bool some = random.chance(0.3);
    const auto quorum = static_cast<uint16_t>(1 + random.below(workers));
    const uint64_t patience_ns = kMs * (1 + random.below(random.chance(0.5) ? 20 : 500));
    if (!some || job.deterministic || quorum == workers) continue;
    job.quorum = quorum;
    job.patience_ns = patience_ns;
  }
}

// Runs when all is over: small, on all hosts, and called like a job that was there.
JobPlan recovery_job(const Scenario& s, Random random) {
  JobPlan job;
  job.name = s.jobs.front().name;
  for (uint32_t host = 0; host < s.hosts.size(); ++host) job.worker_hosts.push_back(host);
  job.server_hosts = s.jobs.front().server_hosts;
  job.tensors.push_back({3, 1 + random.below(2000), Dtype::kI32, ReduceOp::kSum, 0, false});
  job.rounds = 2;
  job.attempts = 1;
  job.open_timeout_ns = 8 * kSecond;
  job.recovery = true;
  return job;
}

uint32_t programs_of(const Scenario& s) {
  size_t count = 0;
  for (const JobPlan& job : s.jobs) count += job.worker_hosts.size();
  return static_cast<uint32_t>(count);
}

// Short (the protocol rides it out), long (somebody is lost) or, to programs, for ever.
uint64_t draw_outage(const Scenario& s, Random& random) {
  if (random.chance(0.4)) return 1 + random.below(s.peer_timeout_ns / 4);
  if (random.chance(0.15)) return 40 * kSecond;
  return s.peer_timeout_ns / 2 + random.below(3 * s.peer_timeout_ns);
}

// Who leaves early is drawn by draw_leaver(), who moves by draw_moves().
Fault draw_fault(const Scenario& s, Random& random) {
  Fault fault;
  fault.kind = static_cast<FaultKind>(random.below(uint64_t(FaultKind::kProgramLeave)));
  // Most of what happens, happens early: after the rendezvous, in the first rounds.
  fault.at_ns = random.below(random.chance(0.6) ? 60 * kMs : 600 * kMs);
  fault.host = static_cast<uint32_t>(random.below(s.hosts.size()));
  fault.program = static_cast<uint32_t>(random.below(programs_of(s)));
  fault.for_ns = draw_outage(s, random);
  const bool between = fault.kind == FaultKind::kPartition || fault.kind == FaultKind::kOneWay;
  if (between && random.chance(0.5)) {
    const auto other = static_cast<uint32_t>(random.below(s.hosts.size()));
    if (other != fault.host) fault.other = other;
  }
  switch (fault.kind) {
    case FaultKind::kStorm:
      fault.for_ns = std::min(fault.for_ns, 4 * kSecond);
      fault.weather = draw_weather(random);
      fault.weather.loss += 0.3 * random.uniform();
      break;
    case FaultKind::kFlap:
      fault.for_ns = std::min(fault.for_ns, 4 * kSecond);
      fault.amount = kMs + random.below(random.chance(0.5) ? 20 * kMs : 400 * kMs);
      break;
    case FaultKind::kBlackHole:
      fault.amount = 1280 + random.below(400);
      if (random.chance(0.3)) fault.amount = 600 + random.below(680);
      break;
    case FaultKind::kClockJump:
      fault.for_ns = 0;
      fault.amount = draw_outage(s, random);
      break;
    case FaultKind::kPause:
      fault.amount = fault.at_ns % 2;
      break;
    case FaultKind::kProgramStall:
      fault.for_ns = std::min(fault.for_ns, 4 * kSecond);
      break;
    case FaultKind::kProgramCrash:
    case FaultKind::kHostCrash:
      fault.for_ns = random.below(random.chance(0.5) ? 20 * kMs : 2 * s.peer_timeout_ns);
      break;
    default:
      break;
  }
  return fault;
}

// Workers of one job on one host, as with a GPU each, that crashes, some twice: they are lost and
// come back together.
void draw_shared_host(Scenario& s, Random random) {
  if (!random.chance(0.15)) return;
  JobPlan& job = s.jobs[random.below(s.jobs.size())];
  const auto host = static_cast<uint32_t>(random.below(s.hosts.size()));
  if (job.worker_hosts.size() < 2 || contains(job.server_hosts, host)) return;
  const uint64_t together = 2 + random.below(job.worker_hosts.size() - 1);
  std::fill_n(job.worker_hosts.begin(), together, host);
  job.rejoin_ns = 2 * kSecond + random.below(4 * kSecond);
  Fault fault;
  fault.kind = FaultKind::kHostCrash;
  fault.host = host;
  for (uint64_t crashes = 1 + random.below(2); crashes > 0; --crashes) {
    fault.at_ns += random.below(random.chance(0.6) ? 60 * kMs : kSecond);
    fault.for_ns = random.below(random.chance(0.5) ? 20 * kMs : kSecond);
    s.faults.push_back(fault);
    fault.at_ns += fault.for_ns;
  }
}

// Some jobs do not bear with workers that never push again. What they bear with is more than all
// that may keep an honest one from pushing adds up to.
void draw_stalls(Scenario& s, Random random) {
  uint64_t outages_ns = 0;
  for (const Fault& fault : s.faults) outages_ns += fault.for_ns;
  std::vector<uint32_t> bounded;  // programs
  uint32_t program = 0;
  for (JobPlan& job : s.jobs) {
    if (random.chance(0.3)) job.stall_ns = 2 * (outages_ns + 2 * kSecond) + random.below(kSecond);
    for (size_t w = 0; w < job.worker_hosts.size(); ++w, ++program) {
      if (job.stall_ns > 0) bounded.push_back(program);
    }
  }
  if (bounded.empty()) return;
  for (Fault& fault : s.faults) {
    if (fault.kind == FaultKind::kProgramStall && contains(bounded, fault.program)) {
      fault.for_ns = kEndlessNs;
    }
  }
  if (!random.chance(0.2)) return;
  Fault fault;
  fault.kind = FaultKind::kProgramStall;
  fault.at_ns = random.below(random.chance(0.6) ? 60 * kMs : 600 * kMs);
  fault.for_ns = kEndlessNs;
  fault.program = bounded[random.below(bounded.size())];
  s.faults.push_back(fault);
}

// Half of them where nothing else happens: then all is known of what the others must get.
void draw_leaver(Scenario& s, Random random) {
  if (!random.chance(s.faults.empty() ? 0.25 : 0.1)) return;
  Fault fault;
  fault.kind = FaultKind::kProgramLeave;
  fault.at_ns = random.below(random.chance(0.5) ? 60 * kMs : 400 * kMs);
  fault.program = static_cast<uint32_t>(random.below(programs_of(s)));
  s.faults.push_back(fault);
}

// Translators of addresses before one or two hosts, where frames have the seals that moves need: a
// host is seen somewhere else once, or from one moment to the next. One that serves comes home, as
// nobody would find it elsewhere who did not know it before; most others do not, as that would end
// all trouble.
void draw_moves(Scenario& s, Random random) {
  if (!s.sealed || !random.chance(0.75)) return;
  const auto serves = [&s](uint32_t host) {
    return std::any_of(s.jobs.begin(), s.jobs.end(),
                       [host](const JobPlan& job) { return contains(job.server_hosts, host); });
  };
  for (uint64_t hosts = 1 + random.below(2); hosts > 0; --hosts) {
    Fault fault;
    fault.kind = FaultKind::kMove;
    fault.host = static_cast<uint32_t>(random.below(s.hosts.size()));
    if (serves(fault.host)) fault.host = static_cast<uint32_t>(random.below(s.hosts.size()));
    fault.at_ns = random.below(random.chance(0.5) ? 12 * kMs : 100 * kMs);
    const uint64_t most_ns = random.chance(0.6) ? 5 * kMs : random.chance(0.5) ? 50 * kMs : kSecond;
    for (uint64_t moves = 1 + random.below(5); moves > 0; --moves) {
      fault.amount = random.below(5);
      s.faults.push_back(fault);
      fault.at_ns += 1 + random.below(most_ns);
    }
    fault.amount = 0;
    if (random.chance(0.2) || serves(fault.host)) s.faults.push_back(fault);
  }
}

// A job beside the others, on the same servers, with a host of its own: of tiny tensors, which take
// no bandwidth and many packets. Its host goes wrong while it runs, or dies now and then.
void draw_hostile_member(Scenario& s, Random random) {
  if (!random.chance(0.1)) return;
  const auto host = static_cast<uint32_t>(s.hosts.size());
  HostPlan plan;
  plan.lanes = static_cast<uint32_t>(1 + random.below(2));
  plan.clock_ns = random.below(uint64_t{1} << 50);
  s.hosts.push_back(plan);
  JobPlan job;
  job.name = "evil";
  job.hostile = true;
  job.worker_hosts.assign(1 + random.below(3), host);
  job.server_hosts = s.jobs[random.below(s.jobs.size())].server_hosts;
  job.weight = static_cast<uint32_t>(1 + random.below(3));
  for (uint32_t t = 0; t < 4; ++t) {
    job.tensors.push_back({t, 1 + random.below(4), Dtype::kI32, ReduceOp::kSum, 0, false});
  }
  job.rounds = 60;
  job.compute_ns = 2 * kMs;
  job.attempts = static_cast<uint32_t>(1 + random.below(3));
  job.open_timeout_ns = 6 * kSecond;
  if (random.chance(0.5)) job.rejoin_ns = kSecond + random.below(4 * kSecond);
  s.jobs.push_back(std::move(job));
  Fault fault;
  fault.kind = random.chance(0.8) ? FaultKind::kHostile : FaultKind::kHostCrash;
  fault.host = host;
  for (uint64_t times = 1 + random.below(3); times > 0; --times) {
    constexpr Attack kAttacks[] = {Attack::kHoard, Attack::kHoard, Attack::kFarAhead,
                                   Attack::kChatter, Attack::kHellos};
    fault.at_ns += kMs + random.below(random.chance(0.6) ? 40 * kMs : 400 * kMs);
    fault.for_ns = kMs + random.below(random.chance(0.5) ? 100 * kMs : 4 * kSecond);
    fault.attack = one_of(random, kAttacks);
    s.faults.push_back(fault);
    fault.at_ns += fault.for_ns;
  }
}

void draw_strangers(Scenario& s, Random random) {
  if (!random.chance(0.12)) return;
  for (uint64_t attacks = 1 + random.below(3); attacks > 0; --attacks) {
    Fault fault;
    fault.kind = FaultKind::kStranger;
    fault.attack = static_cast<Attack>(random.below(uint64_t(Attack::kHoard)));
    fault.at_ns = random.below(random.chance(0.7) ? 5 * kMs : 100 * kMs);
    fault.for_ns = kMs + random.below(random.chance(0.7) ? 100 * kMs : 2 * kSecond);
    s.faults.push_back(fault);
  }
}

}  // namespace

Endpoint place_of(uint32_t host, size_t lane, uint64_t place, bool ipv6) {
  constexpr uint32_t kElsewhere = 1'000;  // beyond all hosts
  const auto at = static_cast<uint32_t>(place);
  const bool same_address = place % 2 == 1;
  const uint32_t index = place == 0 || same_address ? host : kElsewhere + 16 * host + at;
  const uint64_t port = sim::kVirtualUdpPort + lane + (same_address ? 100 * place : 0);
  return {sim::virtual_address(index, ipv6), static_cast<uint16_t>(port)};
}

Scenario make_scenario(uint64_t seed) {
  Scenario s;
  s.seed = seed;
  draw_network(s, generator(seed, 1));
  draw_hosts(s, generator(seed, 2));
  draw_jobs(s, generator(seed, 3));
  draw_quorums(s, generator(seed, 6));
  draw_narrow_path(s, generator(seed, 7));
  Random random = generator(seed, 4);
  const uint64_t faults = random.chance(0.3) ? 0 : 1 + random.below(4);
  for (uint64_t i = 0; i < faults; ++i) s.faults.push_back(draw_fault(s, random));
  draw_leaver(s, generator(seed, 8));
  draw_shared_host(s, generator(seed, 10));
  draw_stalls(s, generator(seed, 9));
  s.sealed = seed % 8 == 0;
  s.encrypted = seed % 32 == 8;
  if (seed % 8 == 5) s.ranges = 8U << seed / 8 % 4;
  draw_moves(s, generator(seed, 11));
  draw_hostile_member(s, generator(seed, 12));
  draw_strangers(s, generator(seed, 13));
  draw_source_ports(s, generator(seed, 14));
  draw_processors(s, generator(seed, 15));
  draw_releases(s, generator(seed, 16));
  s.jobs.push_back(recovery_job(s, generator(seed, 5)));
  if (seed % 2 == 0) {
    for (JobPlan& job : s.jobs) job.secret = "the secret of " + job.name;
  }
  if ((seed - 1) % 32 >= 24) draw_tables(s, generator(seed, 17));
  return s;
}

// IPv6's, which every path carries.
constexpr uint64_t kLeastMtu = 1280;

bool Scenario::have(wire::Feature feature) const {
  return std::ranges::all_of(
      hosts, [feature](const HostPlan& host) { return (host.features & feature) != 0; });
}

// A quarter of the time-out leaves room for the probe that follows an outage.
bool Scenario::harmless(const Fault& fault) const {
  switch (fault.kind) {
    case FaultKind::kStranger:
    case FaultKind::kHostile:
      return true;
    case FaultKind::kProgramStall:
      return !endless(fault);
    case FaultKind::kPartition:
    case FaultKind::kOneWay:
    case FaultKind::kFlap:
    case FaultKind::kPause:
      return fault.for_ns <= peer_timeout_ns / 4;
    case FaultKind::kBlackHole:  // what is more than the path carries goes in parts
      return fault.amount >= kLeastMtu && have(wire::kFeatureParts);
    default:
      return false;
  }
}

bool Scenario::corrupts() const {
  return link.faults.corrupt > 0 ||
         std::any_of(faults.begin(), faults.end(),
                     [](const Fault& fault) { return fault.weather.corrupt > 0; });
}

bool Scenario::attacked() const {
  return std::any_of(faults.begin(), faults.end(), [](const Fault& fault) {
    return fault.kind == FaultKind::kStranger || fault.kind == FaultKind::kHostile;
  });
}

bool Scenario::takes_sessions(const Fault& stranger) const {
  if (stranger.kind != FaultKind::kStranger) return false;
  const bool evil = std::ranges::any_of(jobs, &JobPlan::hostile);
  return stranger.attack == Attack::kReplay ||
         (stranger.attack == Attack::kHellos && (!listed() || evil));
}

bool Scenario::in_order() const {
  const auto keeps = [](const sim::Faults& weather) {
    return weather.reorder == 0 && weather.jitter_ns == 0;
  };
  return keeps(link.faults) && !attacked() &&
         std::all_of(faults.begin(), faults.end(),
                     [&keeps](const Fault& fault) { return keeps(fault.weather); });
}

Scenario reduced(Scenario s, const Reduction& cut) {
  std::vector<Fault> faults;
  for (uint32_t i = 0; i < s.faults.size(); ++i) {
    if (!cut.without_faults.contains(i)) faults.push_back(s.faults[i]);
  }
  s.faults = std::move(faults);
  for (uint32_t j = 0; j < s.jobs.size(); ++j) {
    JobPlan& job = s.jobs[j];
    if (job.recovery) continue;
    if (cut.without_jobs.contains(j)) job.attempts = 0;
    job.rounds = std::min(job.rounds, cut.max_rounds);
    if (job.tensors.size() > cut.max_tensors) job.tensors.resize(cut.max_tensors);
    for (TensorPlan& tensor : job.tensors) tensor.numel = std::min(tensor.numel, cut.max_numel);
    if (job.worker_hosts.size() > cut.max_workers) job.worker_hosts.resize(cut.max_workers);
    if (job.quorum >= job.worker_hosts.size()) job.quorum = 0;
  }
  sim::Faults& weather = s.link.faults;
  const auto calm = [&cut](const char* name) { return cut.calm.contains(name); };
  if (calm("loss")) weather.loss = 0;
  if (calm("burst")) weather.burst_start = 0;
  if (calm("duplicate")) weather.duplicate = 0;
  if (calm("reorder")) weather.reorder = 0;
  if (calm("corrupt")) weather.corrupt = 0;
  if (calm("jitter")) weather.jitter_ns = 0;
  if (calm("narrow")) weather.vanish_above_bytes = sim::Faults().vanish_above_bytes;
  for (HostPlan& host : s.hosts) {
    if (calm("control")) host.control_delay_ns = 0;
    if (calm("drift")) host.drift_ppm = 0;
    if (calm("late")) host.start_ns = 0;
    if (calm("lanes")) host.sessions *= std::exchange(host.lanes, 1);  // it needs no more
    if (calm("tables")) host.sessions = 0;
    if (calm("ports")) host.source_ports = 1;
  }
  for (JobPlan& job : s.jobs) {
    if (calm("straggler")) job.straggler = ~0U;
    if (calm("retry")) job.attempts = std::min(job.attempts, 1U);
    if (calm("rejoin")) job.rejoin_ns = 0;
    if (calm("quorum")) job.quorum = 0;
    if (calm("stall")) job.stall_ns = 0;
  }
  return s;
}

std::vector<std::string> weather_of(const Scenario& s) {
  std::vector<std::string> names;
  const sim::Faults& weather = s.link.faults;
  if (weather.loss > 0) names.emplace_back("loss");
  if (weather.burst_start > 0) names.emplace_back("burst");
  if (weather.duplicate > 0) names.emplace_back("duplicate");
  if (weather.reorder > 0) names.emplace_back("reorder");
  if (weather.corrupt > 0) names.emplace_back("corrupt");
  if (weather.jitter_ns > 0) names.emplace_back("jitter");
  if (weather.vanish_above_bytes != sim::Faults().vanish_above_bytes) names.emplace_back("narrow");
  for (const char* name : {"control", "drift", "late", "lanes", "tables", "ports", "straggler",
                           "retry", "rejoin", "quorum", "stall"}) {
    names.emplace_back(name);
  }
  return names;
}

}  // namespace mercury::disaster
