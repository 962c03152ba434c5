// Jobs of many workers that push into one server through one queue of a simulated switch, all the
// time: the production hosts, in virtual time, decided by a seed. For the measurement of congestion
// control.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shim/channel/channel.h"
#include "shim/host/sim/virtual_cluster.h"

namespace mercury::congestion {

struct WorldConfig {
  uint64_t seed = 1;
  std::vector<uint32_t> jobs = {8};  // how many workers each has
  uint32_t tensors = 16;             // of each job, all in flight at once
  uint64_t tensor_bytes = 256 * 1024;
  bool priorities = false;  // each tensor has one of its own; else all are equal
  sim::LinkConfig link;     // every cable; the server's downlink is the bottleneck
  LaneConfig lane;
};

class IncastWorld {
 public:
  explicit IncastWorld(const WorldConfig& config);

  // Opens the jobs, declares the tensors and begins to push.
  Status start();
  // Runs for so long, calling `each` about every `every_ns` of it (0: never).
  void run(uint64_t time_ns, uint64_t every_ns = 0, const std::function<void()>& each = {});

  sim::SimNetwork& network() { return cluster_.network(); }
  sim::LinkId bottleneck() const { return bottleneck_; }  // the switch's queue before the server
  uint64_t now_ns() const { return cluster_.now_ns(); }
  // Payload that the server has taken so far, and sums that a job's workers have back.
  uint64_t pushed_bytes() const;
  uint64_t job_bytes(size_t job) const;
  size_t workers() const { return workers_.size(); }
  uint64_t sent_bytes(size_t worker) const {  // by one worker, to the server
    return cluster_[static_cast<uint32_t>(worker)].total(Counter::kTxBytes);
  }
  // What the bottleneck carries in payload, per second, at a rate of its own.
  double payload_rate(uint64_t bytes_per_second) const;
  uint64_t total(Counter counter) const { return cluster_.total(counter); }
  uint64_t failed() const { return failed_; }

 private:
  struct IncastWorker {
    std::unique_ptr<EngineChannel> engine;
    std::unique_ptr<ClientChannel> client;
    std::vector<std::byte> memory;
    uint32_t host = 0;
    size_t job = 0;
    JobSlot slot;
  };
  struct WorkerRange {
    uint32_t workers = 0;
    uint32_t first_worker = 0;
  };

  uint32_t add_host(bool serve);
  uint32_t server() const { return cluster_.size() - 1; }
  void collect(IncastWorker& worker);
  void submit(IncastWorker& worker, uint32_t tensor);

  WorldConfig config_;
  std::vector<WorkerRange> jobs_;
  std::vector<std::unique_ptr<IncastWorker>>
      workers_;                    // as their hosts, behind which the server is
  sim::VirtualCluster<> cluster_;  // before the workers' memory goes
  sim::LinkId bottleneck_;
  uint32_t chunk_bytes_ = 0;
  uint64_t failed_ = 0;
};

}  // namespace mercury::congestion
