// What may break a job, have it refused, or excuse a delay: which errors and waits are no
// violations.
#include <algorithm>

#include "tests/disaster/world.h"

namespace mercury::disaster {

// The host at the other end of a session of the job moves before it is certain that it has heard of
// this one: each looks for the other where it was. Who is idle says where it is within a quarter of
// the peer time-out, and again soon if that is lost. All sessions have a server at one end.
bool World::crossed(const Fault& move, const JobPlan& job) const {
  return std::any_of(scenario_.faults.begin(), scenario_.faults.end(), [&](const Fault& other) {
    const uint64_t apart_ns = std::max(move.at_ns, other.at_ns) - std::min(move.at_ns, other.at_ns);
    const bool serves = contains(job.server_hosts, move.host);
    return other.kind == FaultKind::kMove && other.host != move.host &&
           (contains(job.server_hosts, other.host) ||
            (serves && contains(job.worker_hosts, other.host))) &&
           other.at_ns <= now_ns() && apart_ns < scenario_.peer_timeout_ns / 2;
  });
}

bool World::disturbed(uint32_t job) const {
  const JobPlan& plan = scenario_.jobs[job];
  if (plan.recovery) return false;
  if (plan.hostile || crowded_out_.contains(job)) return true;
  const auto has = [&plan](uint32_t host) {
    return contains(plan.worker_hosts, host) || contains(plan.server_hosts, host);
  };
  const bool unsure = scenario_.sealed && !scenario_.have(wire::kFeatureConfirmation);
  bool away = false;  // a server is: who comes back does not find it
  // A sealed path is, to a host of which it is not sure that it takes sealed parts: who comes back
  // over it is refused.
  bool narrow = false;
  bool comes_back = false;  // a worker
  for (size_t i = 0; i < scenario_.faults.size(); ++i) {
    const Fault& fault = scenario_.faults[i];
    if (fault.at_ns > now_ns()) continue;
    narrow = narrow || (unsure && fault.kind == FaultKind::kBlackHole && has(fault.host));
    if (scenario_.harmless(fault)) continue;
    if (fault.kind == FaultKind::kMove) {
      if (has(fault.host) && (!survived_[i] || crossed(fault, plan))) return true;
      away = away || contains(plan.server_hosts, fault.host);
    } else if (fault.kind == FaultKind::kProgramLeave) {
      if (departures_.contains(job) && programs_[fault.program]->job() == job && !survived_[i]) {
        return true;
      }
    } else if (fault.kind == FaultKind::kProgramStall) {
      if (programs_[fault.program]->job() == job) return true;
    } else if (fault.kind == FaultKind::kProgramCrash) {
      if (programs_[fault.program]->job() != job) continue;
      if (!survived_[i]) return true;
      comes_back = true;
    } else if (has(fault.host) && (fault.other == ~0U || has(fault.other))) {
      return true;
    }
  }
  return (away || narrow) && comes_back;
}

// What has more sessions than all jobs need together: who comes back, or tries again, while his
// last life's are still there; strangers, where a job has no secret or they have its own; and
// whoever is hostile.
bool World::crowded() const {
  if (scenario_.contended) return true;
  for (size_t i = 0; i < scenario_.faults.size(); ++i) {
    const Fault& fault = scenario_.faults[i];
    if (fault.at_ns > now_ns()) continue;
    if (fault.kind == FaultKind::kHostile || scenario_.takes_sessions(fault)) return true;
    if (fault.kind != FaultKind::kStranger && !scenario_.harmless(fault) && !survived_[i]) {
      return true;
    }
  }
  return false;
}

bool World::crowded_out(uint32_t job, uint64_t since_ns, bool limit) {
  const JobPlan& plan = scenario_.jobs[job];
  bool full = false;
  for (uint32_t i = 0; i < scenario_.hosts.size(); ++i) {
    if (!contains(plan.worker_hosts, i) && !contains(plan.server_hosts, i)) continue;
    full = full || cluster_[i].was_full(since_ns);
  }
  if (limit && !full) violation("refused for a limit, though no table is full");
  if (!full || plan.recovery || !crowded()) return false;
  (limit ? crowded_out_ : suspected_).insert(job);
  return true;
}

const Departure* World::departure(uint32_t job) const {
  const bool alone =
      std::all_of(scenario_.faults.begin(), scenario_.faults.end(), [this](const Fault& fault) {
        return fault.kind == FaultKind::kProgramLeave || fault.at_ns > now_ns();
      });
  const auto departure = departures_.find(job);
  return alone && departure != departures_.end() ? &departure->second : nullptr;
}

uint64_t World::excused_ns(uint64_t since_ns) const {
  uint64_t excused_ns = 0;
  for (const Fault& fault : scenario_.faults) {
    if (fault.kind != FaultKind::kFlap && fault.kind != FaultKind::kStorm &&
        fault.kind != FaultKind::kPause && fault.kind != FaultKind::kProgramStall) {
      continue;
    }
    if (Scenario::endless(fault) && scenario_.jobs[programs_[fault.program]->job()].stall_ns > 0) {
      continue;  // whoever waits for it does so for a bounded time
    }
    const uint64_t from_ns = std::max(fault.at_ns, since_ns);
    const uint64_t until_ns = std::min(fault.at_ns + fault.for_ns, now_ns());
    if (until_ns > from_ns) excused_ns += until_ns - from_ns;
  }
  return excused_ns;
}

}  // namespace mercury::disaster
