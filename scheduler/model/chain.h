// What the model knows of a training job: a chain of layers, and the rates of its links.
// Paper: Mercury, TPDS 2023, section V.A, Table I and assumptions 1 to 3.
//
// Layers stand in the order of the forward pass: the paper's layer l is index l - 1. Times are
// seconds, sizes bytes. An iteration begins at 0 with the backward pass of the last layer and ends
// with its forward pass (section V.A), when every tensor of it has been pulled: iterations do not
// overlap, and the first is like any other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace mercury::model {

struct Layer {
  double forward_s = 0;   // t_fp
  double backward_s = 0;  // t_bp
  double update_s = 0;    // t_upd
  uint64_t bytes = 0;     // S: of the tensor, what partitions and credit count
  double wire_bytes = 0;  // of its frames, each way: `bytes` and what frames it
  uint32_t priority = 0;  // 0 the most urgent; equal ones in the order in which they are ready
};
using Chain = std::vector<Layer>;

// B of Table I, bytes per second, as a worker sees it in each direction. In the paper both are B.
struct Rates {
  double push = 0;
  double pull = 0;
};

// Workers that all compute alike, and servers that share every tensor evenly; bits per second.
struct Cluster {
  uint32_t workers = 1;
  uint32_t servers = 1;
  double worker_up_bps = 0;
  double worker_down_bps = 0;
  double server_up_bps = 0;
  double server_down_bps = 0;
};

// A push is done when all workers' are: its rate is the least of a worker's uplink and its share of
// the servers' downlinks; a pull's likewise. Ours: the paper has as many servers as workers, and
// equal links, where both are B.
constexpr Rates rates_of(const Cluster& cluster) {
  const double servers_per_worker =
      static_cast<double>(cluster.servers) / static_cast<double>(cluster.workers);
  return {std::min(cluster.worker_up_bps, cluster.server_down_bps * servers_per_worker) / 8,
          std::min(cluster.worker_down_bps, cluster.server_up_bps * servers_per_worker) / 8};
}

}  // namespace mercury::model
