// Workers that train and servers that sum, on a virtual cluster: the jobs of programs, and links
// whose rates change.
//
// Shape: members are numbered, workers first, then servers; hosts likewise, but for the servers
// that run on workers' hosts. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "apps/sim/link_schedule.h"
#include "shim/channel/channel.h"
#include "shim/host/sim/virtual_cluster.h"
#include "transport/base/random.h"

namespace mercury::simulator {

struct HostLinks {
  LinkSchedule up, down;
};

struct TrainingClusterConfig {
  uint64_t seed = 1;
  uint32_t workers = 2, servers = 2;
  uint32_t colocated = 0;  // the first so many servers run on the hosts of the first workers
  uint32_t jobs = 1;
  bool ipv6 = false;
  bool elide = true;  // a PayloadElision lives as long as the cluster
  uint32_t mtu_bytes = 9000;
  uint64_t delay_ns = 1000;  // of each link; a way has two
  uint64_t queue_bytes = 0;  // before each link; 0: room for all windows
  uint64_t window_bytes = SessionConfig().window_bytes;  // the largest
  uint64_t incast_queue_bytes = EngineConfig().incast_queue_bytes;
  Scheduler::Turns turns = Scheduler::Turns::kFair;
  uint64_t ecn_bytes = 0;        // links mark what finds more waiting; 0: never
  uint64_t bucket_bytes = 0;     // idle links then send so much at once
  uint64_t frame_cost_ns = 0;    // of an engine's time, for each frame received or sent
  std::vector<HostLinks> links;  // by host
};

// What runs on a host in virtual time.
class VirtualProgram {
 public:
  virtual ~VirtualProgram() = default;
  virtual void on_time(uint64_t now_ns) = 0;  // now is due_ns()
  virtual void on_completion(const Completion& completion, uint64_t now_ns) = 0;
  virtual uint64_t due_ns() const = 0;  // kNever: it waits for a completion
};

class TrainingCluster {
 public:
  explicit TrainingCluster(const TrainingClusterConfig& config);
  TrainingCluster(const TrainingCluster&) = delete;
  TrainingCluster& operator=(const TrainingCluster&) = delete;

  // Errors: kSystem (descriptors, memory).
  Status create_members();
  // Opens a job on every worker and declares its tensors; `data(worker, tensor)` is their memory.
  // The programs of its workers get consecutive numbers, the first of which comes back.
  using TensorData = std::function<std::byte*(uint32_t worker, uint32_t tensor)>;
  Result<uint32_t> open_job(const OpenJob& base, std::vector<TensorDeclaration> tensors,
                            const TensorData& data);

  // Who gets a program's time and completions; from now on.
  void set_program(uint32_t number, VirtualProgram& program);
  // From within a program's calls, or between runs.
  void push_pull(uint32_t number, uint32_t tensor, uint16_t priority);

  // Link schedules begin.
  void begin_schedules();
  // Runs while `wanted()`, which is asked after each moment. Error: nothing will ever happen again.
  template <class Wanted>
  Status run(Wanted wanted) {
    if (cluster_.run([&wanted] { return !wanted(); })) return {};
    return Error(Errc::kTimedOut, "nothing happens any more");
  }

  uint64_t now_ns() const { return cluster_.now_ns(); }
  sim::SimNetwork& network() { return cluster_.network(); }
  uint32_t hosts() const { return members() - config_.colocated; }
  const sim::LinkStats& uplink(uint32_t host) const;
  const sim::LinkStats& downlink(uint32_t host) const;
  uint64_t total(Counter counter) const { return cluster_.total(counter); }
  Status job_status(uint32_t number) const;

 private:
  struct Client {  // a worker's program
    uint32_t worker = 0;
    JobSlot slot;
    uint32_t client_job = 0;
    std::unique_ptr<EngineChannel> engine_end;
    std::unique_ptr<ClientChannel> end;
    VirtualProgram* program = nullptr;
  };

  Status create_member(uint32_t number);
  Result<uint32_t> add_client(uint32_t worker, size_t tensors);
  void on_timer(size_t timer);
  void collect(uint32_t number);
  void change_links();
  // The cluster's timers: programs by their number, then the links'.
  size_t link_timer() const { return size_t{config_.jobs} * config_.workers; }
  uint32_t members() const { return config_.workers + config_.servers; }
  bool is_beside(uint32_t member) const {
    return member >= config_.workers && member - config_.workers < config_.colocated;
  }
  uint32_t host_of(uint32_t member) const {
    if (member < config_.workers) return member;
    return member - (is_beside(member) ? config_.workers : config_.colocated);
  }

  const TrainingClusterConfig config_;
  Random link_random_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::vector<uint32_t>> clients_of_;    // by member; servers have none
  std::vector<HostLinks> schedules_;                 // by host
  std::vector<std::shared_ptr<SharedLink>> shared_;  // by host; null where one member runs
  uint64_t schedules_begin_ns_ = 0;
  sim::VirtualCluster<> cluster_;  // behind the clients: engines read their channels
};

}  // namespace mercury::simulator
