#include "apps/sim/run_expected.h"

#include <algorithm>
#include <optional>

#include "apps/sim/workload.h"
#include "scheduler/model/equations.h"
#include "scheduler/model/predict.h"

namespace mercury::simulator {
namespace {

// Servers on workers' hosts have no links.
uint64_t even_bps(const SimOptions& options, const RunOptions& run, bool worker, bool uplink) {
  const uint32_t first = worker ? 0 : run.colocated;
  const uint32_t end = worker ? options.workers : options.servers;
  if (first == end) return 0;
  const uint64_t bps = schedule_of(options, run, worker, first, uplink).bps();
  for (uint32_t n = first; n < end; ++n) {
    const LinkSchedule schedule = schedule_of(options, run, worker, n, uplink);
    if (schedule.changes() || schedule.bps() != bps) return 0;
  }
  return bps;
}

}  // namespace

EvenLinks even_links(const SimOptions& options, const RunOptions& run) {
  return {even_bps(options, run, true, true), even_bps(options, run, true, false),
          even_bps(options, run, false, true), even_bps(options, run, false, false)};
}

Expected expected(const SimOptions& options, const RunOptions& run, const SimulatedJob& job) {
  double slowest = 0, fastest = 100;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    slowest = std::max(slowest, slowdown_of(run, rank));
    fastest = std::min(fastest, slowdown_of(run, rank));
  }
  model::Chain chain = chain_of(job.trace, framing_of(options));
  for (model::Layer& layer : chain) {
    layer.forward_s *= slowest;
    layer.backward_s *= slowest;
    layer.update_s *= slowest;
  }
  Expected out;
  out.oracle_s = model::oracle_s(chain);

  const EvenLinks links = even_links(options, run);
  const uint64_t all[] = {links.worker_up, links.server_down, links.server_up, links.worker_down};
  if (std::ranges::find(all, 0U) != std::end(all)) return out;
  out.latency_s = 4e-9 * static_cast<double>(run.delay_ns);
  for (const uint64_t bps : all)
    out.latency_s += 8.0 * (options.mtu + 38) / static_cast<double>(bps);

  if (slowest != fastest || run.jitter != 0 || run.colocated > 0) return out;
  SimOptions even = options;
  even.worker_up_bps = links.worker_up;
  even.worker_down_bps = links.worker_down;
  even.server_up_bps = links.server_up;
  even.server_down_bps = links.server_down;
  const model::Rates rates = rates_of(cluster_of(even));
  const model::Chain unframed = without_framing(chain);
  out.optimum_s = optimum_s(unframed, rates);
  const auto predicted = predict(chain, rates, job.policy);
  const auto bare = predict(unframed, rates, job.policy);
  if (predicted && bare) {  // else there are more partitions than the model takes
    out.model_s = predicted->iteration_s;
    out.framing_s = predicted->iteration_s - bare->iteration_s;
  }
  return out;
}

}  // namespace mercury::simulator
