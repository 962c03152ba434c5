#include "benchmarks/congestion/incast_world.h"

#include <algorithm>
#include <utility>

#include "scheduler/plan/plan.h"
#include "shim/host/sim/job_calls.h"

namespace mercury::congestion {
namespace {

constexpr uint64_t kSetupLimitNs = 30'000'000'000;

sim::VirtualClusterConfig cluster_config(const WorldConfig& config) {
  auto cluster = sim::VirtualClusterConfig::seeded(config.seed, sim::Look::kWokenByNumber);
  cluster.network.host_link = config.link;
  return cluster;
}

}  // namespace

IncastWorld::IncastWorld(const WorldConfig& config)
    : config_(config), cluster_(cluster_config(config)) {
  uint32_t total = 0;
  for (size_t job = 0; job < config.jobs.size(); ++job) {
    jobs_.push_back({config.jobs[job], total});
    for (uint32_t i = 0; i < config.jobs[job]; ++i) {
      auto worker = std::make_unique<IncastWorker>();
      auto memory = *ChannelMemory::create({1024, 2048}, false);
      worker->engine = std::make_unique<EngineChannel>(memory);
      worker->client = std::make_unique<ClientChannel>(memory);
      worker->memory.resize(config.tensors * config.tensor_bytes);
      worker->host = total++;
      worker->job = job;
      workers_.push_back(std::move(worker));
      add_host(false);
    }
  }
  bottleneck_ = network().downlink(cluster_[add_host(true)].id());
  cluster_.after_visit = [this](uint32_t host) {
    if (host < workers_.size()) collect(*workers_[host]);
  };
}

uint32_t IncastWorld::add_host(bool serve) {
  sim::VirtualHostConfig host;
  host.host.lane = config_.lane;
  host.host.policy.serve = serve;
  return cluster_.add_host(host);
}

Status IncastWorld::start() {
  for (uint32_t host = 0; host < cluster_.size(); ++host) {
    if (Status started = cluster_.start(host); !started) return started;
  }
  sim::JobCalls calls(cluster_);
  for (auto& worker : workers_) {
    const WorkerRange& job = jobs_[worker->job];
    OpenJob request;
    request.name = "job-" + std::to_string(worker->job);
    request.workers = static_cast<uint16_t>(job.workers);
    request.servers = 1;
    request.rank = static_cast<int>(worker->host - job.first_worker);
    request.rendezvous = {cluster_[server()].endpoint(0)};
    request.channels = {worker->engine.get()};
    request.client_job = 1;
    calls.open(worker->host, 1, request, [this, w = worker.get()](const OpenedJob& opened) {
      w->slot = opened.slot;
      chunk_bytes_ = chunk_elems(opened.chunk_bytes, sizeof(float)) * uint32_t{sizeof(float)};
    });
  }
  if (Status opened = calls.wait(now_ns() + kSetupLimitNs); !opened) return opened;
  for (auto& worker : workers_) {
    std::vector<TensorDeclaration> tensors(config_.tensors);
    for (uint32_t t = 0; t < config_.tensors; ++t) {
      tensors[t].tensor = TensorId(t);
      // Whole chunks, so that chunks count bytes.
      tensors[t].numel = config_.tensor_bytes / chunk_bytes_ * (chunk_bytes_ / sizeof(float));
      tensors[t].data = worker->memory.data() + t * config_.tensor_bytes;
    }
    calls.declare(worker->host, 1, worker->slot, tensors);
  }
  if (Status declared = calls.wait(now_ns() + kSetupLimitNs); !declared) return declared;
  // A pause, as between two iterations, then all begin at once.
  run(10'000'000);
  for (auto& worker : workers_) {
    for (uint32_t t = 0; t < config_.tensors; ++t) submit(*worker, t);
  }
  return {};
}

void IncastWorld::submit(IncastWorker& worker, uint32_t tensor) {
  const auto priority = static_cast<uint16_t>(config_.priorities ? tensor : 0);
  if (!worker.client->submit(
          {SubmitOp::kPushPull, priority, 1, TensorId(tensor), tensor + uint64_t{1}})) {
    ++failed_;
  }
  cluster_.wake(worker.host);
}

void IncastWorld::collect(IncastWorker& worker) {
  Completion completion;
  while (worker.client->pop(completion)) {
    if (completion.status != Errc::kOk) {
      ++failed_;
      continue;
    }
    submit(worker, completion.tensor.value);
  }
}

void IncastWorld::run(uint64_t time_ns, uint64_t every_ns, const std::function<void()>& each) {
  const uint64_t end_ns = now_ns() + time_ns;
  const auto run_to = [this](uint64_t ns) {
    cluster_.set_timer(0, ns);
    (void)cluster_.run([&] { return now_ns() >= ns; });
  };
  for (uint64_t ns = now_ns() + every_ns; every_ns != 0 && ns < end_ns; ns += every_ns) {
    run_to(ns);
    each();
  }
  run_to(end_ns);
}

uint64_t IncastWorld::pushed_bytes() const {
  return cluster_[server()].total(Counter::kPushChunks) * chunk_bytes_;
}

uint64_t IncastWorld::job_bytes(size_t index) const {
  const WorkerRange& job = jobs_[index];
  uint64_t chunks = 0;
  for (uint32_t i = job.first_worker; i < job.first_worker + job.workers; ++i) {
    chunks += cluster_[i].total(Counter::kResultChunks);
  }
  return chunks * chunk_bytes_;
}

double IncastWorld::payload_rate(uint64_t bytes_per_second) const {
  // Mercury's header, UDP, IPv4, Ethernet with preamble and gap.
  const double wire_bytes = chunk_bytes_ + 48 + 8 + 20 + 38;
  return static_cast<double>(bytes_per_second) * chunk_bytes_ / wire_bytes;
}

}  // namespace mercury::congestion
