#include "benchmarks/congestion/incast_world.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "scheduler/plan/plan.h"

namespace mercury::congestion {
namespace {

constexpr uint64_t kSetupLimitNs = 30'000'000'000;
// The control plane has nothing to do while tensors flow: its threads run this often.
constexpr uint64_t kControlNs = 1'000'000;

sim::NetworkConfig network_config(const WorldConfig& config) {
  sim::NetworkConfig network;
  network.seed = config.seed;
  network.host_link = config.link;
  return network;
}

}  // namespace

IncastWorld::IncastWorld(const WorldConfig& config)
    : config_(config), network_(network_config(config)), random_(config.seed) {
  uint32_t total = 0;
  for (size_t job = 0; job < config.jobs.size(); ++job) {
    jobs_.push_back({config.jobs[job], total});
    for (uint32_t i = 0; i < config.jobs[job]; ++i) {
      auto worker = std::make_unique<Worker>();
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
  add_host(true);
  bottleneck_ = network_.downlink(sim::HostId(total));
  is_due_.resize(hosts_.size());
}

IncastWorld::~IncastWorld() = default;

void IncastWorld::add_host(bool serve) {
  const auto index = static_cast<uint32_t>(hosts_.size());
  auto counters = std::make_unique<Counters>();
  sim::SimPortConfig port;
  port.counters = counters.get();
  port.tag = index;
  const IpAddress ip = IpAddress::v4(10, 0, static_cast<uint8_t>(index / 250),
                                     static_cast<uint8_t>(index % 250 + 1));
  const sim::HostId host = network_.add_host();
  auto made = sim::SimPort::create(network_, host, {ip, 7470}, port);
  std::vector<SimHost::Part> parts;
  parts.push_back({std::move(counters), std::move(*made)});
  HostConfig host_config;
  host_config.lane = config_.lane;
  host_config.policy.serve = serve;
  hosts_.push_back(
      std::make_unique<SimHost>(std::move(parts), host_config, [this] { return random_.next(); }));
}

bool IncastWorld::run_all(const std::function<bool()>& until, uint64_t limit_ns) {
  const uint64_t end_ns = now_ns() + limit_ns;
  for (;;) {
    for (bool work = true; work;) {
      work = false;
      for (auto& host : hosts_) {
        work = host->lane(0).poll(now_ns()) > 0 || work;
        host->process(now_ns());
      }
    }
    if (until()) return true;
    uint64_t next_ns = network_.next_event_ns();
    for (const auto& host : hosts_) {
      next_ns =
          std::min({next_ns, host->next_deadline_ns(), host->lane(0).engine().next_deadline_ns()});
    }
    next_ns = std::max(next_ns, now_ns() + 1);
    if (next_ns > end_ns) return false;
    network_.advance_to(next_ns);
  }
}

Status IncastWorld::start() {
  size_t answers = 0;
  std::optional<Error> wrong;
  for (auto& worker : workers_) {
    const Job& job = jobs_[worker->job];
    OpenJob request;
    request.name = "job-" + std::to_string(worker->job);
    request.workers = static_cast<uint16_t>(job.workers);
    request.servers = 1;
    request.rank = static_cast<int>(worker->host - job.first_worker);
    request.rendezvous = {hosts_.back()->port_info(0).local};
    request.channels = {worker->engine.get()};
    request.client_job = 1;
    SimHost& host = *hosts_[worker->host];
    host.send(LaneId(0), command::AttachChannel{worker->engine.get()});
    host.jobs().open_job(1, request, now_ns(), [&, w = worker.get()](Result<OpenedJob> opened) {
      ++answers;
      if (!opened) {
        wrong = opened.error();
        return;
      }
      w->slot = opened->slot;
      chunk_bytes_ = chunk_elems(opened->chunk_bytes, sizeof(float)) * uint32_t{sizeof(float)};
    });
  }
  const auto all = [&] { return answers == workers_.size() || wrong.has_value(); };
  if (!run_all(all, kSetupLimitNs)) return Error(Errc::kTimedOut, "a job did not open");
  if (wrong) return *wrong;
  answers = 0;
  for (auto& worker : workers_) {
    std::vector<TensorDeclaration> tensors(config_.tensors);
    for (uint32_t t = 0; t < config_.tensors; ++t) {
      tensors[t].tensor = TensorId(t);
      // Whole chunks, so that chunks count bytes.
      tensors[t].numel = config_.tensor_bytes / chunk_bytes_ * (chunk_bytes_ / sizeof(float));
      tensors[t].data = worker->memory.data() + t * config_.tensor_bytes;
    }
    hosts_[worker->host]->jobs().declare(1, worker->slot, tensors, now_ns(), [&](Status status) {
      ++answers;
      if (!status) wrong = status.error();
    });
  }
  if (!run_all(all, kSetupLimitNs)) return Error(Errc::kTimedOut, "a declaration had no answer");
  if (wrong) return *wrong;
  // A pause, as between two iterations, then all begin at once.
  const uint64_t begin_ns = now_ns() + 10'000'000;
  run_all([&] { return now_ns() >= begin_ns; }, 20'000'000);
  for (auto& worker : workers_) {
    for (uint32_t t = 0; t < config_.tensors; ++t) submit(*worker, t);
  }
  for (size_t i = 0; i < hosts_.size(); ++i) poll(i);
  return {};
}

void IncastWorld::submit(Worker& worker, uint32_t tensor) {
  const auto priority = static_cast<uint16_t>(config_.priorities ? tensor : 0);
  if (!worker.client->submit(
          {SubmitOp::kPushPull, priority, 1, TensorId(tensor), tensor + uint64_t{1}})) {
    ++failed_;
  }
}

void IncastWorld::collect(Worker& worker) {
  Completion completion;
  while (worker.client->pop(completion)) {
    if (completion.status != Errc::kOk) {
      ++failed_;
      continue;
    }
    submit(worker, completion.tensor.value);
  }
}

void IncastWorld::poll(size_t index) {
  SimHost& host = *hosts_[index];
  for (bool more = true; more;) {
    more = host.lane(0).poll(now_ns()) > 0;
    if (index < workers_.size()) collect(*workers_[index]);
  }
}

void IncastWorld::run(uint64_t time_ns, uint64_t every_ns, const std::function<void()>& each) {
  const uint64_t end_ns = now_ns() + time_ns;
  uint64_t control_ns = now_ns();
  uint64_t each_ns = every_ns == 0 ? kNever : now_ns() + every_ns;
  while (now_ns() < end_ns) {
    due_.clear();
    for (sim::SimPort* port : network_.touched()) due_.push_back(port->tag());
    network_.clear_touched();
    uint64_t next_ns = end_ns;
    for (size_t i : due_) is_due_[i] = true;
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (is_due_[i] || hosts_[i]->lane(0).engine().next_deadline_ns() <= now_ns()) poll(i);
      is_due_[i] = false;
      next_ns = std::min(next_ns, hosts_[i]->lane(0).engine().next_deadline_ns());
    }
    if (now_ns() >= control_ns) {
      for (auto& host : hosts_) host->process(now_ns());
      control_ns = now_ns() + kControlNs;
    }
    if (now_ns() >= each_ns) {
      each();
      each_ns += every_ns;
    }
    next_ns = std::min({next_ns, network_.next_event_ns(), control_ns, each_ns});
    network_.advance_to(std::max(next_ns, now_ns() + 1));
  }
}

uint64_t IncastWorld::pushed_bytes() const {
  return hosts_.back()->counters(0).get(Counter::kPushChunks) * chunk_bytes_;
}

uint64_t IncastWorld::job_bytes(size_t index) const {
  const Job& job = jobs_[index];
  uint64_t chunks = 0;
  for (size_t i = job.first_worker; i < job.first_worker + job.workers; ++i) {
    chunks += hosts_[i]->counters(0).get(Counter::kResultChunks);
  }
  return chunks * chunk_bytes_;
}

double IncastWorld::payload_rate(uint64_t bytes_per_second) const {
  // Mercury's header, UDP, IPv4, Ethernet with preamble and gap.
  const double wire_bytes = chunk_bytes_ + 48 + 8 + 20 + 38;
  return static_cast<double>(bytes_per_second) * chunk_bytes_ / wire_bytes;
}

uint64_t IncastWorld::total(Counter counter) const {
  uint64_t sum = 0;
  for (const auto& host : hosts_) sum += host->counters(0).get(counter);
  return sum;
}

}  // namespace mercury::congestion
