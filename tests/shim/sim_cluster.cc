#include "tests/shim/sim_cluster.h"

#include <algorithm>

namespace mercury {
namespace {

// Between two passes of an engine that nothing has happened to.
constexpr uint64_t kLeastPauseNs = 1000;

sim::VirtualClusterConfig cluster_config(const ClusterConfig& config) {
  auto cluster = sim::VirtualClusterConfig::seeded(config.seed, config.look);
  cluster.network.host_link = config.link;
  cluster.least_pause_ns = kLeastPauseNs;
  return cluster;
}

}  // namespace

void SimProgram::add_channel() {
  Result<std::shared_ptr<ChannelMemory>> memory = ChannelMemory::create({256, 512}, false);
  channels_.push_back(
      {std::make_unique<EngineChannel>(*memory), std::make_unique<ClientChannel>(*memory)});
}

std::vector<EngineChannel*> SimProgram::engine_ends() {
  std::vector<EngineChannel*> ends;
  for (Pair& pair : channels_) ends.push_back(pair.engine.get());
  return ends;
}

void SimProgram::submit(SubmitOp op, uint32_t tensor, uint16_t priority, uint64_t cookie) {
  waiting_[cookie] = channels_.size();
  if (op != SubmitOp::kPull) absent_[tensor] = Absentees::of_no_chunk();
  for (Pair& pair : channels_) {
    if (!pair.client->submit({op, priority, 1, TensorId(tensor), cookie})) {
      first_error_[cookie] = Errc::kAgain;
    }
  }
}

void SimProgram::collect() {
  for (Pair& pair : channels_) {
    Completion completion;
    while (pair.client->pop(completion)) {
      if (completion.absent_words > 0) {
        absent_[completion.tensor.value].add(completion.absent);
      }
      if (completion.status != Errc::kOk)
        first_error_.emplace(completion.cookie, completion.status);
      if (--waiting_[completion.cookie] > 0) continue;
      const auto error = first_error_.find(completion.cookie);
      finished_[completion.cookie] = {error == first_error_.end() ? Errc::kOk : error->second,
                                      completion.tensor.value, completion.round.value};
    }
  }
}

SimCluster::SimCluster(const ClusterConfig& config)
    : config_(config), cluster_(cluster_config(config)) {
  lives_.resize(config.workers);
  programs_.resize(config.workers);
  for (uint32_t i = 0; i < config.workers; ++i) new_life(i);
  for (uint32_t i = 0; i < std::max(config.workers, first_server() + config.servers); ++i) {
    const bool serve = i >= first_server() && i - first_server() < config.servers;
    sim::VirtualHostConfig host;
    host.lanes = serve ? config.server_lanes : config.worker_lanes;
    host.ipv6 = config.ipv6;
    host.port = config.port;
    host.host.lane = serve ? config.server_lane.value_or(config.lane) : config.lane;
    host.host.policy.serve = serve;
    host.host.policy.max_sessions = config.policy_sessions;
    if (!config.known.name.empty()) {
      host.host.policy.known = {config.known};
      host.host.policy.authentication = Authentication::kOffered;
    }
    start_host(cluster_.add_host(host));
  }
  if (config.look != sim::Look::kEveryHost) {  // who is not visited has nothing to collect
    cluster_.after_visit = [this](uint32_t host) {
      if (host < programs_.size()) programs_[host]->collect();
    };
    return;
  }
  cluster_.after_round = [this](uint32_t) {
    for (auto& program : programs_) program->collect();
    return true;
  };
}

void SimCluster::new_life(uint32_t worker) {
  ++lives_[worker];
  programs_[worker] = std::make_unique<SimProgram>();
  for (uint32_t lane = 0; lane < config_.worker_lanes; ++lane) programs_[worker]->add_channel();
}

void SimCluster::crash_host(uint32_t index) {
  cluster_.crash(index);
  if (index < config_.workers) new_life(index);
}

std::vector<Endpoint> SimCluster::rendezvous() const {
  std::vector<Endpoint> all;
  for (uint32_t i = 0; i < config_.servers; ++i) {
    all.push_back(cluster_[first_server() + i].endpoint(0));
  }
  return all;
}

void SimCluster::begin_open(sim::JobCalls<>& calls, uint32_t worker, const OpenJob& base) {
  OpenJob request = base;
  request.workers = static_cast<uint16_t>(config_.workers);
  request.servers = static_cast<uint16_t>(config_.servers);
  request.rendezvous = rendezvous();
  request.channels = programs_[worker]->engine_ends();
  request.client_job = 1;
  if (request.rank == -1) request.rank = static_cast<int>(worker);
  calls.open(worker, client(worker), request, [this, worker](const OpenedJob& opened) {
    programs_[worker]->slot = opened.slot;
    programs_[worker]->rank = opened.rank;
  });
}

Status SimCluster::open_job(const OpenJob& base, uint64_t limit_ns) {
  sim::JobCalls calls(cluster_);
  for (uint32_t i = 0; i < config_.workers; ++i) begin_open(calls, i, base);
  return calls.wait(now_ns() + limit_ns);
}

Status SimCluster::open_job_on(uint32_t worker, const OpenJob& base, uint64_t limit_ns) {
  sim::JobCalls calls(cluster_);
  begin_open(calls, worker, base);
  return calls.wait(now_ns() + limit_ns);
}

void SimCluster::begin_declare(sim::JobCalls<>& calls, uint32_t worker,
                               const std::vector<TensorDeclaration>& tensors) {
  std::vector<TensorDeclaration> own = tensors;
  for (TensorDeclaration& tensor : own) {
    std::vector<std::byte>& memory = programs_[worker]->memory(tensor.tensor.value);
    memory.assign(tensor.numel * size_of(tensor.dtype), std::byte{0});
    tensor.data = memory.data();
  }
  calls.declare(worker, client(worker), programs_[worker]->slot, own);
}

Status SimCluster::declare(const std::vector<TensorDeclaration>& tensors, uint64_t limit_ns) {
  sim::JobCalls calls(cluster_);
  for (uint32_t i = 0; i < config_.workers; ++i) begin_declare(calls, i, tensors);
  return calls.wait(now_ns() + limit_ns);
}

Status SimCluster::declare_on(uint32_t worker, const std::vector<TensorDeclaration>& tensors,
                              uint64_t limit_ns) {
  sim::JobCalls calls(cluster_);
  begin_declare(calls, worker, tensors);
  return calls.wait(now_ns() + limit_ns);
}

bool SimCluster::end_program(uint32_t worker, uint64_t limit_ns) {
  bool left = false;
  size_t attached = config_.worker_lanes;
  worker_host(worker).set_channel_events([&attached](LaneId, const Event& event) {
    if (std::holds_alternative<event::ChannelDetached>(event)) --attached;
  });
  worker_host(worker).jobs().client_gone(client(worker), now_ns(), [&] {
    left = true;
    uint16_t lane = 0;
    for (EngineChannel* channel : programs_[worker]->engine_ends()) {
      worker_host(worker).send(LaneId(lane++), command::DetachChannel{channel});
    }
  });
  const bool gone = run([&] { return left && attached == 0; }, limit_ns);
  worker_host(worker).set_channel_events({});
  if (gone) new_life(worker);
  return gone;
}

bool SimCluster::close(uint64_t limit_ns) {
  size_t gone = 0;
  for (uint32_t i = 0; i < config_.workers; ++i) {
    worker_host(i).jobs().close_job(client(i), programs_[i]->slot, now_ns(), [&gone] { ++gone; });
  }
  return run([this, &gone] { return gone == config_.workers; }, limit_ns) &&
         network().unmapped_reads() == 0;
}

}  // namespace mercury
