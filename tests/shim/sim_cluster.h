// Hosts with the production control plane, engine, scheduler, aggregator and worker on the
// simulated network, in virtual time, all decided by one seed. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/channel/channel.h"
#include "shim/host/sim/job_calls.h"
#include "tests/milliseconds.h"
#include "transport/base/random.h"

namespace mercury {

struct ClusterConfig {
  uint64_t seed = 1;
  uint32_t workers = 2;
  uint32_t servers = 2;
  bool colocated = false;  // the first workers' hosts serve; else servers are hosts of their own
  uint32_t worker_lanes = 1;
  uint32_t server_lanes = 1;
  bool ipv6 = false;
  sim::LinkConfig link;
  sim::SimPortConfig port;  // but its counters
  LaneConfig lane = small_lane();
  std::optional<LaneConfig> server_lane;  // of hosts that serve, if it is another
  uint32_t policy_sessions = 0;           // JobPolicy::max_sessions
  KnownJob known;                         // on all hosts; with a secret its frames have seals
  // For hundreds of hosts: those to which something happened. Who submits then wakes his host.
  sim::Look look = sim::Look::kEveryHost;

  // Tables as small as the tests need, so that a thousand clusters are made in seconds.
  static LaneConfig small_lane() {
    LaneConfig lane;
    lane.engine.max_sessions = 64;
    lane.engine.max_in_flight_packets = 8192;
    lane.exchange.sends.scheduler = {8, 64, 4096, 65536};
    lane.exchange.sends.reserved_ranges = 512;
    return lane;
  }
  // For jobs that lose some of their workers, or go on without them.
  static ClusterConfig three_workers() {
    ClusterConfig config;
    config.workers = 3;
    config.worker_lanes = 2;
    config.lane.engine.session.peer_timeout_ns = 2'000'000'000;
    return config;
  }
  // A few hosts, as the seed decides.
  static ClusterConfig drawn(uint64_t seed, Random& random, uint64_t most_servers) {
    ClusterConfig config;
    config.seed = seed;
    config.workers = static_cast<uint32_t>(1 + random.below(4));
    config.servers = static_cast<uint32_t>(1 + random.below(most_servers));
    config.worker_lanes = static_cast<uint32_t>(1 + random.below(2));
    config.server_lanes = static_cast<uint32_t>(1 + random.below(2));
    return config;
  }
  // Less than `most_lost` of a thousand frames are lost.
  static sim::Faults drawn_faults(Random& random, uint64_t most_lost) {
    sim::Faults faults;
    faults.loss = random.chance(0.7) ? 0.001 * static_cast<double>(random.below(most_lost)) : 0;
    faults.duplicate = random.chance(0.5) ? 0.05 : 0;
    faults.reorder = random.chance(0.5) ? 0.1 : 0;
    faults.reorder_delay_ns = 10'000 + random.below(20'000'000);
    faults.corrupt = random.chance(0.5) ? 0.02 : 0;
    return faults;
  }
  // Where whoever is lost is noticed after 3 s.
  static ClusterConfig stormy(uint64_t seed, Random& random) {
    ClusterConfig config = drawn(seed, random, 2);
    config.lane.engine.session.peer_timeout_ns = 3'000'000'000;
    config.link.mtu_bytes = random.chance(0.5) ? 1500 : 9000;
    config.link.faults = drawn_faults(random, 40);
    return config;
  }
};

// A worker's program: its end of the channels and its tensors.
class SimProgram {
 public:
  struct Done {
    Errc status;
    uint32_t tensor;
    uint32_t round;
  };
  std::vector<EngineChannel*> engine_ends();
  void add_channel();
  // Submits to every engine of the host, as libmercurystack does.
  void submit(SubmitOp op, uint32_t tensor, uint16_t priority, uint64_t cookie);
  void collect();
  bool done(uint64_t cookie) const { return finished_.count(cookie) > 0; }
  Errc status(uint64_t cookie) const { return finished_.at(cookie).status; }
  // Jobs with a quorum: who is missing in the tensor's last round.
  const Absentees& absent(uint32_t tensor) { return absent_[tensor]; }
  std::vector<std::byte>& memory(uint32_t tensor) { return memory_[tensor]; }

  JobSlot slot;
  uint16_t rank = 0;

 private:
  struct Pair {
    std::unique_ptr<EngineChannel> engine;
    std::unique_ptr<ClientChannel> client;
  };
  std::vector<Pair> channels_;
  std::map<uint64_t, size_t> waiting_;  // engines that have not answered
  std::map<uint64_t, Done> finished_;
  std::map<uint64_t, Errc> first_error_;
  std::map<uint32_t, Absentees> absent_;
  std::map<uint32_t, std::vector<std::byte>> memory_;
};

class SimCluster {
 public:
  explicit SimCluster(const ClusterConfig& config);

  // Runs until `until` holds; false if `limit_ns` of virtual time passed first.
  bool run(const std::function<bool()>& until, uint64_t limit_ns) {
    return cluster_.run(until, now_ns() + limit_ns);
  }
  // Opens the job on all workers; the error of the first that failed.
  Status open_job(const OpenJob& base, uint64_t limit_ns);
  // Declares the same tensors on all workers and gives each its memory.
  Status declare(const std::vector<TensorDeclaration>& tensors, uint64_t limit_ns);
  // The same on one worker: one that joins late, or a lost one's next life.
  Status open_job_on(uint32_t worker, const OpenJob& base, uint64_t limit_ns);
  Status declare_on(uint32_t worker, const std::vector<TensorDeclaration>& tensors,
                    uint64_t limit_ns);
  // The program ends without a word, as its daemon notices; program(worker) is its next life.
  // False: the engines did not let go of it in the time limit.
  bool end_program(uint32_t worker, uint64_t limit_ns);
  // The host is gone from one moment to the next, its programs with it; start_host is its reboot.
  // `index`: workers first, then servers.
  void crash_host(uint32_t index);
  void start_host(uint32_t index) { (void)cluster_.start(index); }
  void wake_all() { cluster_.wake_all(); }
  // Every worker leaves, and every engine lets go. False: not in the time limit, or a port has read
  // a payload that was not mapped for it.
  bool close(uint64_t limit_ns);

  HostOf<sim::SimPort>& worker_host(uint32_t i) { return cluster_[i].host(); }
  HostOf<sim::SimPort>& server_host(uint32_t i) { return cluster_[first_server() + i].host(); }
  SimProgram& program(uint32_t worker) { return *programs_[worker]; }
  sim::SimNetwork& network() { return cluster_.network(); }
  std::vector<Endpoint> rendezvous() const;
  // The worker's program in its life, to its host.
  ClientId client(uint32_t worker) const {
    return worker + 1 + uint64_t{lives_[worker] - 1} * 1000;
  }
  uint64_t total(Counter counter) const { return cluster_.total(counter); }
  uint64_t now_ns() const { return cluster_.now_ns(); }

 private:
  uint32_t first_server() const { return config_.colocated ? 0 : config_.workers; }
  void new_life(uint32_t worker);
  void begin_open(sim::JobCalls<>& calls, uint32_t worker, const OpenJob& base);
  void begin_declare(sim::JobCalls<>& calls, uint32_t worker,
                     const std::vector<TensorDeclaration>& tensors);

  ClusterConfig config_;
  std::vector<std::unique_ptr<SimProgram>> programs_;
  std::vector<uint32_t> lives_;
  sim::VirtualCluster<> cluster_;  // before the programs' memory goes
};

}  // namespace mercury
