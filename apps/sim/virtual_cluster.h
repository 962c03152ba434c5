// Hosts with the production control plane, engine, scheduler, aggregator and worker on the
// simulated network, and programs that use them, all in virtual time. Nothing here decides what a
// frame does: this is the clock that drives everything, and who is woken when.
//
// An engine is polled when something happened to it (a frame, room in its NIC, a submission, its
// own deadline), until it has no more work. Processor time does not pass while it works, unless
// frames are given a cost (processor.h).
//
// Shape: hosts are numbered, workers first, then servers. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/sim/link_schedule.h"
#include "apps/sim/processor.h"
#include "shim/channel/channel.h"
#include "shim/host/host.h"
#include "transport/base/deadlines.h"
#include "transport/base/random.h"
#include "transport/port/sim/sim_network.h"
#include "transport/port/sim/sim_port.h"

namespace mercury::simulator {

struct HostLinks {
  LinkSchedule up, down;
};

struct VirtualClusterConfig {
  uint64_t seed = 1;
  uint32_t workers = 2, servers = 2;
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

class VirtualCluster {
 public:
  explicit VirtualCluster(const VirtualClusterConfig& config);
  ~VirtualCluster();
  VirtualCluster(const VirtualCluster&) = delete;
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  // Errors: kSystem (descriptors, memory).
  Status create_hosts();
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
    for (settle(); wanted(); settle()) {
      const uint64_t next_ns = std::min(network_.next_event_ns(), deadlines_.earliest_ns());
      if (next_ns == kNever) return Error(Errc::kTimedOut, "nothing happens any more");
      network_.advance_to(std::max(next_ns, network_.now_ns() + 1));
    }
    return {};
  }

  uint64_t now_ns() const { return network_.now_ns(); }
  sim::SimNetwork& network() { return network_; }
  const sim::LinkStats& uplink(uint32_t host) const;
  const sim::LinkStats& downlink(uint32_t host) const;
  uint64_t total(Counter counter) const;
  Status job_status(uint32_t number) const;
  IpAddress address_of(uint32_t host) const;

 private:
  using Host = HostOf<sim::SimPort>;
  struct Client {  // a program on a host
    uint32_t host = 0;
    JobSlot slot;
    uint32_t client_job = 0;
    std::unique_ptr<EngineChannel> engine_end;
    std::unique_ptr<ClientChannel> end;
    VirtualProgram* program = nullptr;
  };

  Status create_host(uint32_t host);
  Result<uint32_t> add_client(uint32_t host, size_t tensors);
  void settle();
  void take_due();
  void mark(uint32_t host);
  void poll(uint32_t host);
  bool may_work(uint32_t host);
  bool pass(uint32_t host);
  void control(uint32_t host);
  void collect(uint32_t number);
  void change_links();
  // Indexes in deadlines_.
  size_t engine_deadline(uint32_t host) const { return host; }
  size_t control_deadline(uint32_t host) const { return hosts_total() + host; }
  size_t program_deadline(uint32_t number) const { return 2 * size_t{hosts_total()} + number; }
  size_t link_deadline() const { return program_deadline(config_.jobs * config_.workers); }
  uint32_t hosts_total() const { return config_.workers + config_.servers; }

  const VirtualClusterConfig config_;
  sim::SimNetwork network_;
  Random random_;
  Random link_random_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Host>> hosts_;  // behind the clients: engines read their channels
  std::vector<std::vector<uint32_t>> clients_of_;  // by host
  Deadlines deadlines_;
  std::vector<uint32_t> marked_, polling_;
  std::vector<uint8_t> is_marked_;
  std::vector<Processor> processors_;  // by host
  std::vector<HostLinks> schedules_;
  uint64_t schedules_begin_ns_ = 0;
};

}  // namespace mercury::simulator
