// What one seed decides before virtual time begins: hosts, jobs, weather, and every disaster with
// its time. The run draws nothing that is not derived from here, so a scenario can be cut down
// (Reduction) and run again.
//
// Shape: hosts are numbered; jobs name them. Times are virtual, from the start of the run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "scheduler/terms/element.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"
#include "transport/port/sim/link.h"
#include "transport/wire/hello.h"

namespace mercury::disaster {

inline bool contains(const std::vector<uint32_t>& list, uint32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kSecond = 1'000 * kMs;

enum class FaultKind : uint8_t {
  kPartition,     // two hosts, or one and all others, do not hear each other
  kOneWay,        // what one host sends does not arrive
  kFlap,          // a host's link goes down and up
  kBlackHole,     // large frames vanish
  kStorm,         // loss, bursts, duplicates, reordering, corruption, jitter on one host's links
  kPause,         // a host stands still: engines, control plane and programs, or not these
  kClockJump,     // a host's clock leaps forward
  kProgramStall,  // a program does nothing for a while, or for ever; its daemon runs
  kProgramCrash,  // a program ends in mid-flight; another is started in its place
  kHostCrash,     // a daemon is killed and started again
  kProgramLeave,  // a program closes its job in order, long before the others are through
  kMove,          // others see a host at another port or address from now on, or at its own
  kStranger,      // somebody who is no member attacks all hosts (hostile.h)
  kHostile,       // the daemon of the evil job's host is killed, and its sessions' peers attacked
  kCount
};
// For ever, to whoever waits: far beyond every bound. Then it goes on, so that a run ends.
inline constexpr uint64_t kEndlessNs = 150 * kSecond;
inline constexpr size_t kFaultKinds = static_cast<size_t>(FaultKind::kCount);
const char* name_of(FaultKind kind);

// What a stranger does, and a member (hostile.h).
enum class Attack : uint8_t {
  kHellos,    // says HELLOs without end, from addresses of his own
  kReplay,    // says again what he has heard, from where it came and from elsewhere
  kCopies,    // says what he hears from elsewhere, before it is there
  kForge,     // says what no one said, without the tag
  kHoard,     // a member: takes sums, and acknowledges the oldest alone
  kFarAhead,  // a member: counts on far beyond, and acknowledges what nobody sent
  kChatter,   // a member: says in the control stream what it has said before, without end
  kCount
};
const char* name_of(Attack attack);

struct Fault {
  FaultKind kind = FaultKind::kPartition;
  uint64_t at_ns = 0;
  uint64_t for_ns = 0;
  uint32_t host = 0;
  uint32_t other = ~uint32_t{0};  // the other host, or all
  uint32_t program = 0;           // kProgram*
  uint64_t amount = 0;  // kFlap: period in ns; kBlackHole: MTU; kClockJump: ns; kMove: where;
                        // kPause: not 0: programs go on
  sim::Faults weather;  // kStorm
  Attack attack = Attack::kHellos;  // kStranger, kHostile
};
std::string describe(const Fault& fault);
// Where others see the engine of a host (kMove); place 0 is its own address.
Endpoint place_of(uint32_t host, size_t lane, uint64_t place, bool ipv6);

struct HostPlan {
  uint32_t lanes = 1;
  uint64_t start_ns = 0;          // when its daemon starts
  uint64_t control_delay_ns = 0;  // how long its control plane takes to hear of an event
  int64_t drift_ppm = 0;
  uint64_t clock_ns = 0;  // what its clock shows at the start
  uint32_t mtu_bytes = 1500;
  uint64_t frame_cost_ns = 0;    // of an engine's time, for each frame received or sent
  uint64_t command_cost_ns = 0;  // and for each command of the control plane
  uint32_t source_ports = 1;     // of each engine
  // What its sessions know of wire::Feature: all, or what an earlier release did.
  uint32_t features = ~uint32_t{0};
  uint32_t sessions = 0;  // that each of its engines may have; 0: more than there can be
};

struct TensorPlan {
  uint32_t number = 0;
  uint64_t numel = 0;
  Dtype dtype = Dtype::kI32;
  ReduceOp op = ReduceOp::kSum;
  uint16_t priority = 0;
  bool split = false;  // push, then pull, instead of both in one
};

struct JobPlan {
  std::string name;
  std::string secret;
  std::vector<uint32_t> worker_hosts;  // by rank; each a program of its own
  std::vector<uint32_t> server_hosts;
  bool deterministic = false;
  bool fifo = false;
  bool any_rank = false;  // the coordinator gives the ranks out
  uint32_t weight = 1;
  std::vector<TensorPlan> tensors;
  uint32_t rounds = 1;
  uint64_t compute_ns = 0;   // at most, between a round's sum and the next push
  uint32_t straggler = ~0U;  // the rank that takes straggle_ns longer
  uint64_t straggle_ns = 0;
  uint32_t attempts = 1;  // how often a program opens the job before it gives up
  uint64_t open_timeout_ns = 0;
  uint64_t rejoin_ns = 0;  // how long the job waits for a worker that was lost; 0: not at all
  // Not 0: so many contributions are enough for a sum, patience_ns after the first.
  uint16_t quorum = 0;
  uint64_t patience_ns = 0;
  uint64_t stall_ns = 0;  // how long it bears with workers that do not push; 0: for ever
  bool hostile = false;   // nothing is promised to it
  bool recovery = false;  // runs when all is over, and must succeed: nothing stays broken
};

struct Scenario {
  uint64_t seed = 0;
  bool ipv6 = false;
  sim::LinkConfig link;
  uint64_t peer_timeout_ns = 0;
  // Whoever waits in vain for one that has left hears of it in this time, if nothing else happens.
  uint64_t leave_notice_ns = 0;
  uint64_t window_bytes = 0;
  bool fixed_window = false;
  uint64_t first_packet_number = 0;
  uint32_t in_flight_packets = 0;  // records that the sessions of an engine share
  uint32_t ranges = 2048;          // of what an engine has to send
  bool sealed = false;             // frames are authenticated, as jobs have secrets
  bool encrypted = false;          // their payloads are encrypted, too
  bool contended = false;          // engines have room for each job, and not for all at once
  std::vector<HostPlan> hosts;
  std::vector<JobPlan> jobs;
  std::vector<Fault> faults;

  // Whether hosts list the jobs: those that have secrets. Others are open, as anybody's are.
  bool listed() const { return !jobs.front().secret.empty(); }
  // Whether all hosts know it.
  bool have(wire::Feature feature) const;
  // No fault but weather that the protocol must ride out: every operation succeeds.
  bool harmless(const Fault& fault) const;
  static bool endless(const Fault& fault) {
    return fault.kind == FaultKind::kProgramStall && fault.for_ns >= kEndlessNs;
  }
  bool corrupts() const;
  bool in_order() const;  // no frame overtakes another on its way
  bool attacked() const;  // by a stranger or a member
  // A stranger whose HELLOs hosts let in: a member's, or of a job that is open, or whose secret he
  // has.
  bool takes_sessions(const Fault& stranger) const;
};

// What --shrink takes away. Text: "faults=0.3 no=loss.jitter jobs=1 rounds=2 tensors=1 numel=10".
struct Reduction {
  std::set<uint32_t> without_faults;  // indexes into the seed's scenario
  std::set<std::string> calm;         // weather switched off: loss burst duplicate reorder ...
  std::set<uint32_t> without_jobs;
  uint32_t max_rounds = ~0U;
  uint32_t max_tensors = ~0U;
  uint64_t max_numel = ~uint64_t{0};
  uint32_t max_workers = ~0U;

  std::string to_string() const;
  static Result<Reduction> parse(const std::string& text);
};

Scenario make_scenario(uint64_t seed);
Scenario reduced(Scenario scenario, const Reduction& reduction);
// The weather that can be switched off, for Reduction::calm.
std::vector<std::string> weather_of(const Scenario& scenario);
std::string describe(const Scenario& scenario);

}  // namespace mercury::disaster
