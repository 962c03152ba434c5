#include "apps/sim/simulation.h"

#include <algorithm>
#include <optional>

#include "apps/sim/elision.h"
#include "apps/sim/pcap.h"
#include "apps/sim/training_cluster.h"
#include "apps/trace/shipped.h"

namespace mercury::simulator {
namespace {

constexpr uint64_t kSampleNs = 1'000'000;  // of links, for a timeline

// Iterations of a worker that count.
uint64_t counted(const TrainingWorker& worker, uint32_t warmup) {
  const size_t done = worker.iterations().size();
  return done > warmup ? done - warmup : 0;
}

template <class Value>
double mean_s(const SimulatedJob& job, uint32_t warmup, Value value) {
  uint64_t sum_ns = 0, count = 0;
  for (const auto& worker : job.workers) {
    sum_ns += value(*worker);
    count += counted(*worker, warmup);
  }
  return count == 0 ? 0 : static_cast<double>(sum_ns) * 1e-9 / static_cast<double>(count);
}

TrainingClusterConfig cluster_config(const SimOptions& options, const RunOptions& run) {
  TrainingClusterConfig config;
  config.seed = run.seed;
  config.workers = options.workers;
  config.servers = options.servers;
  config.colocated = run.colocated;
  config.jobs = static_cast<uint32_t>(1 + run.others.size());
  config.ipv6 = options.ipv6;
  config.elide = !run.payload;
  config.mtu_bytes = options.mtu;
  config.delay_ns = run.delay_ns;
  config.queue_bytes = run.queue_bytes;
  config.window_bytes = run.window_bytes;
  config.ecn_bytes = run.ecn_bytes;
  config.bucket_bytes = run.bucket_bytes;
  config.incast_queue_bytes = run.incast_queue_bytes;
  config.frame_cost_ns = run.frame_cost_ns;
  if (run.turns == "urgency") config.turns = Scheduler::Turns::kUrgency;
  for (uint32_t host = 0; host < options.workers + options.servers - run.colocated; ++host) {
    const bool worker = host < options.workers;
    const uint32_t number = worker ? host : host - options.workers + run.colocated;
    config.links.push_back({schedule_of(options, run, worker, number, true),
                            schedule_of(options, run, worker, number, false)});
  }
  return config;
}

class Simulation {
 public:
  Simulation(const SimOptions& options, const RunOptions& run, const SimulationHooks& hooks)
      : options_(options), run_(run), hooks_(hooks), cluster_(cluster_config(options, run)) {}

  Result<SimulationResult> run() {
    if (Status made = cluster_.create_members(); !made) return made.error();
    if (!run_.pcap.empty()) {
      if (Status opened = pcap_.open(run_.pcap); !opened) return opened.error();
      cluster_.network().set_tap(&PcapWriter::tap, &pcap_);
    }
    if (Status opened = open_jobs(); !opened) return opened.error();
    if (Status trained = train(); !trained) return trained.error();
    if (!run_.pcap.empty()) {
      if (Status written = pcap_.close(); !written) return written.error();
    }
    return std::move(result_);
  }

 private:
  Status open_jobs() {
    std::vector<OtherJob> all{{options_.trace, options_.policy, true}};
    all.insert(all.end(), run_.others.begin(), run_.others.end());
    for (const OtherJob& job : all) {
      auto trace = read_trace(trace_path(job.trace));
      if (!trace) return trace.error();
      result_.jobs.push_back({model_name(job.trace),
                              job.has_policy ? job.policy : options_.policy,
                              std::move(*trace),
                              {}});
    }
    for (SimulatedJob& job : result_.jobs) {
      if (Status opened = open_job(job); !opened) return opened;
    }
    return {};
  }

  Status open_job(SimulatedJob& job) {
    TrainingConfig training;
    training.iterations = run_.iterations;
    training.warmup = run_.warmup;
    training.jitter = run_.jitter;
    training.payload = run_.payload;
    training.spans = !run_.timeline.empty();
    training.seed = run_.seed + programs_.size();
    training.goes_on = [this, &job] {
      return std::any_of(
          result_.jobs.begin(), result_.jobs.end(),
          [&job](const SimulatedJob& other) { return &other != &job && !other.finished(); });
    };
    for (uint32_t rank = 0; rank < options_.workers; ++rank) {
      training.slowdown = slowdown_of(run_, rank);
      job.workers.push_back(
          std::make_unique<TrainingWorker>(job.trace, training, options_.workers, rank));
    }
    std::vector<TensorDeclaration> tensors;
    for (uint32_t n = 0; n < job.trace.tensors.size(); ++n) {
      const TraceTensor& tensor = job.trace.tensors[n];
      tensors.push_back(
          {TensorId(n), tensor.numel, tensor.dtype, ReduceOp::kSum, tensor.priority, nullptr});
      for (const auto& worker : job.workers) {
        if (Result<std::byte*> memory = worker->memory(n); !memory) return memory.error();
      }
    }
    OpenJob open;
    open.name = "job" + std::to_string(programs_.size() / options_.workers);
    open.terms.policy = print_policy(job.policy);
    const Result<uint32_t> first = cluster_.open_job(
        open, std::move(tensors),
        [&](uint32_t rank, uint32_t tensor) { return *job.workers[rank]->memory(tensor); });
    if (!first) return first.error();
    for (uint32_t rank = 0; rank < options_.workers; ++rank) {
      programs_.push_back({job.workers[rank].get(), *first + rank});
    }
    return {};
  }

  Status train() {
    result_.begin_ns = cluster_.now_ns();
    for (const TrainingProgram& program : programs_)
      program.worker->begin(cluster_, program.number);
    cluster_.begin_schedules();
    if (run_.warmup == 0) count_traffic(false);
    uint64_t steps = 0;
    Status ran = cluster_.run([&] {
      if (++steps % 4096 == 0) look_up();
      if (!run_.timeline.empty()) sample_links();
      return unfinished() && !result_.interrupted;
    });
    count_traffic(true);
    result_.frames = cluster_.network().delivered_frames();
    result_.retransmits = cluster_.total(Counter::kRetransmits);
    result_.trace_hash = cluster_.network().trace_hash();
    for (size_t reason = 0; reason < sim::kDropCount; ++reason) {
      result_.drops += cluster_.network().drops(static_cast<sim::Drop>(reason));
    }
    for (const TrainingProgram& program : programs_) {
      result_.mismatches += program.worker->mismatches();
      if (!program.worker->status()) return program.worker->status();
    }
    return ran;
  }

  // The first that is not finished is nearly always the same.
  bool unfinished() {
    while (finished_ < programs_.size() && programs_[finished_].worker->finished()) ++finished_;
    if (!warm_ && programs_.front().worker->iterations().size() >= run_.warmup) {
      warm_ = true;
      if (run_.warmup > 0) count_traffic(false);
    }
    return finished_ < programs_.size();
  }

  void look_up() {
    if (hooks_.interrupted && hooks_.interrupted()) result_.interrupted = true;
    if (!hooks_.progress) return;
    uint64_t done = 0;
    for (const TrainingProgram& program : programs_) {
      done += std::min<uint64_t>(program.worker->iterations().size(), run_.iterations);
    }
    hooks_.progress(done, programs_.size() * run_.iterations);
  }

  void sample_links() {
    if (cluster_.now_ns() < next_sample_ns_) return;
    next_sample_ns_ = cluster_.now_ns() + kSampleNs;
    for (uint32_t worker = 0; worker < options_.workers; ++worker) {
      result_.samples.push_back({cluster_.now_ns(), worker, cluster_.uplink(worker).wire_bytes,
                                 cluster_.downlink(worker).wire_bytes});
    }
  }

  void count_traffic(bool end) {
    const uint32_t hosts = cluster_.hosts();
    for (const bool up : {true, false}) {
      std::vector<Traffic>& traffic = up ? result_.up : result_.down;
      traffic.resize(hosts);
      for (uint32_t host = 0; host < hosts; ++host) {
        const sim::LinkStats& stats = up ? cluster_.uplink(host) : cluster_.downlink(host);
        if (!end) {
          traffic[host] = {stats.frames, stats.wire_bytes, 0};
        } else {
          traffic[host] = {stats.frames - traffic[host].frames,
                           stats.wire_bytes - traffic[host].wire_bytes, stats.max_backlog_ps};
        }
      }
    }
  }

  struct TrainingProgram {
    TrainingWorker* worker = nullptr;
    uint32_t number = 0;
  };
  const SimOptions& options_;
  const RunOptions& run_;
  const SimulationHooks& hooks_;
  PcapWriter pcap_;
  SimulationResult result_;
  TrainingCluster cluster_;  // before the tensors' memory goes
  std::vector<TrainingProgram> programs_;
  size_t finished_ = 0;
  bool warm_ = false;
  uint64_t next_sample_ns_ = 0;
};

}  // namespace

double SimulatedJob::iteration_s(uint32_t warmup) const {
  return mean_s(*this, warmup, [&](const TrainingWorker& worker) -> uint64_t {
    if (counted(worker, warmup) == 0) return 0;
    return worker.iterations().back().end_ns - worker.iterations()[warmup].begin_ns;
  });
}
double SimulatedJob::spread(uint32_t warmup) const {
  uint64_t shortest = kNever, longest = 0;
  for (const auto& worker : workers) {
    for (size_t i = warmup; i < worker->iterations().size(); ++i) {
      const uint64_t ns = worker->iterations()[i].end_ns - worker->iterations()[i].begin_ns;
      shortest = std::min(shortest, ns);
      longest = std::max(longest, ns);
    }
  }
  if (shortest >= longest) return 0;
  return 1e-9 * static_cast<double>(longest - shortest) / iteration_s(warmup);
}
double SimulatedJob::ready_s(size_t tensor, uint32_t warmup) const {
  return mean_s(*this, warmup,
                [&](const TrainingWorker& worker) { return worker.tensors()[tensor].ready_ns; });
}
double SimulatedJob::pulled_s(size_t tensor, uint32_t warmup) const {
  return mean_s(*this, warmup,
                [&](const TrainingWorker& worker) { return worker.tensors()[tensor].pulled_ns; });
}
bool SimulatedJob::finished() const {
  return std::all_of(workers.begin(), workers.end(),
                     [](const auto& worker) { return worker->finished(); });
}
size_t SimulatedJob::iterations() const {
  size_t least = workers.front()->iterations().size();
  for (const auto& worker : workers) least = std::min(least, worker->iterations().size());
  return least;
}

Result<SimulationResult> simulate(const SimOptions& options, const RunOptions& run,
                                  const SimulationHooks& hooks) {
  std::optional<PayloadElision> elision;
  if (!run.payload) elision.emplace();
  return Simulation(options, run, hooks).run();
}

}  // namespace mercury::simulator
