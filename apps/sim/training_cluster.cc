#include "apps/sim/training_cluster.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "shim/host/sim/job_calls.h"

namespace mercury::simulator {
namespace {

// Virtual: an hour of waiting costs nothing, and slow links must not fail a job.
constexpr uint64_t kPatienceNs = 3'600'000'000'000;

uint64_t bytes_per_second(const LinkSchedule& schedule) { return schedule.bps() / 8; }

sim::VirtualClusterConfig cluster_config(const TrainingClusterConfig& config) {
  auto cluster = sim::VirtualClusterConfig::seeded(config.seed, sim::Look::kWoken);
  cluster.network.elide_shared = config.elide;
  return cluster;
}

sim::LinkConfig link_config(const TrainingClusterConfig& config, const LinkSchedule& schedule) {
  sim::LinkConfig link;
  link.bytes_per_second = bytes_per_second(schedule);
  link.delay_ns = config.delay_ns;
  link.mtu_bytes = config.mtu_bytes;
  link.ecn_mark_bytes = config.ecn_bytes;
  link.bucket_bytes = config.bucket_bytes;
  const uint64_t peers = config.colocated > 0 ? config.workers + config.servers
                                              : std::max(config.workers, config.servers);
  link.queue_bytes = config.queue_bytes != 0
                         ? config.queue_bytes
                         : (peers * config.jobs + 2) * (config.window_bytes + 64 * 1024);
  return link;
}

// Tables as large as this cluster can need.
LaneConfig lane_config(const TrainingClusterConfig& config) {
  LaneConfig lane;
  const uint32_t peers = config.workers + config.servers;
  const uint32_t sessions = std::min(60'000U, 2 * peers * (config.jobs + 1) + 16);
  const uint64_t window_packets = config.window_bytes / (config.mtu_bytes - 200) + 2;
  lane.engine.max_sessions = sessions;
  // Twice: a job has a half at most.
  lane.engine.max_in_flight_packets = static_cast<uint32_t>(std::min<uint64_t>(
      2 * (uint64_t{peers} * config.jobs * (window_packets + kSentBlockRecords) + 4096), 1 << 24));
  lane.engine.session.window_bytes = config.window_bytes;
  lane.engine.incast_queue_bytes = config.incast_queue_bytes;
  lane.exchange.sends.scheduler = {config.jobs + 1, sessions, 1 << 18, 65536, config.turns};
  return lane;
}

}  // namespace

TrainingCluster::TrainingCluster(const TrainingClusterConfig& config)
    : config_(config),
      link_random_(config.seed + 1),
      clients_of_(members()),
      schedules_(config.links),
      cluster_(cluster_config(config)) {
  for (HostLinks& host : schedules_) {
    host.up.begin(link_random_);
    host.down.begin(link_random_);
  }
  for (uint32_t host = 0; host < hosts(); ++host) {
    shared_.push_back(host < config.colocated ? std::make_shared<SharedLink>() : nullptr);
  }
  cluster_.after_visit = [this](uint32_t member) {
    for (const uint32_t number : clients_of_[member]) collect(number);
  };
  cluster_.on_timer = [this](size_t timer) { on_timer(timer); };
}

Status TrainingCluster::create_members() {
  for (uint32_t number = 0; number < members(); ++number) {
    if (Status made = create_member(number); !made) return made;
  }
  return {};
}

Status TrainingCluster::create_member(uint32_t number) {
  const uint32_t host = host_of(number);
  const HostLinks& links = schedules_[host];
  sim::VirtualHostConfig made;
  made.ipv6 = config_.ipv6;
  // The engine learns the rate once.
  made.port.report_rate = links.up.change_ns() == kNever && links.down.change_ns() == kNever;
  made.frame_cost_ns = config_.frame_cost_ns;
  made.host.lane = lane_config(config_);
  made.host.lane.engine.link = shared_[host];
  made.host.policy.serve = number >= config_.workers;
  made.host.policy.max_jobs = config_.jobs + 1;
  if (is_beside(number)) return cluster_.start(cluster_.add_beside(host, made));
  return cluster_.start(
      cluster_.add_host(made, link_config(config_, links.up), link_config(config_, links.down)));
}

Result<uint32_t> TrainingCluster::add_client(uint32_t worker, size_t tensors) {
  const auto slots =
      static_cast<uint32_t>(std::clamp<size_t>(std::bit_ceil(tensors + 1), 64, 65'536));
  auto memory = ChannelMemory::create({slots, slots}, false);
  if (!memory) return memory.error();
  const auto number = static_cast<uint32_t>(clients_.size());
  auto client = std::make_unique<Client>();
  client->worker = worker;
  client->client_job = 1;
  client->engine_end = std::make_unique<EngineChannel>(*memory);
  client->end = std::make_unique<ClientChannel>(*memory);
  clients_.push_back(std::move(client));
  clients_of_[worker].push_back(number);
  return number;
}

Result<uint32_t> TrainingCluster::open_job(const OpenJob& base,
                                           std::vector<TensorDeclaration> tensors,
                                           const TensorData& data) {
  const auto first = static_cast<uint32_t>(clients_.size());
  sim::JobCalls calls(cluster_);
  for (uint32_t worker = 0; worker < config_.workers; ++worker) {
    const Result<uint32_t> number = add_client(worker, tensors.size());
    if (!number) return number.error();
    OpenJob request = base;
    request.workers = static_cast<uint16_t>(config_.workers);
    request.servers = static_cast<uint16_t>(config_.servers);
    request.rank = static_cast<int>(worker);
    request.timeout_ns = kPatienceNs;
    request.client_job = clients_[*number]->client_job;
    request.channels = {clients_[*number]->engine_end.get()};
    for (uint32_t server = 0; server < config_.servers; ++server) {
      request.rendezvous.push_back(cluster_[config_.workers + server].endpoint(0));
    }
    calls.open(worker, *number + 1, request,
               [this, number](const OpenedJob& opened) { clients_[*number]->slot = opened.slot; });
  }
  if (Status opened = calls.wait(); !opened) return opened.error();
  for (uint32_t worker = 0; worker < config_.workers; ++worker) {
    const uint32_t number = first + worker;
    for (TensorDeclaration& tensor : tensors) tensor.data = data(worker, tensor.tensor.value);
    calls.declare(worker, number + 1, clients_[number]->slot, tensors);
  }
  if (Status declared = calls.wait(); !declared) return declared.error();
  return first;
}

void TrainingCluster::set_program(uint32_t number, VirtualProgram& program) {
  clients_[number]->program = &program;
  cluster_.set_timer(number, program.due_ns());
}

void TrainingCluster::push_pull(uint32_t number, uint32_t tensor, uint16_t priority) {
  Client& client = *clients_[number];
  // One operation per tensor is in flight at most, and there is room for all.
  (void)client.end->submit(
      {SubmitOp::kPushPull, priority, client.client_job, TensorId(tensor), tensor + 1});
  cluster_.wake(client.worker);
}

void TrainingCluster::on_timer(size_t timer) {
  if (timer == link_timer()) return change_links();
  const auto number = static_cast<uint32_t>(timer);
  VirtualProgram& program = *clients_[number]->program;
  program.on_time(now_ns());
  cluster_.set_timer(number, program.due_ns());
}

void TrainingCluster::collect(uint32_t number) {
  Client& client = *clients_[number];
  Completion completion;
  if (!client.end->pop(completion)) return;
  do {
    if (client.program != nullptr) client.program->on_completion(completion, now_ns());
  } while (client.end->pop(completion));
  if (client.program != nullptr) cluster_.set_timer(number, client.program->due_ns());
}

// --- links --------------------------------------------------------------------------------------

void TrainingCluster::begin_schedules() {
  schedules_begin_ns_ = now_ns();
  change_links();
}

void TrainingCluster::change_links() {
  uint64_t next_ns = kNever;
  for (uint32_t host = 0; host < hosts(); ++host) {
    const sim::HostId id(host);
    for (const bool up : {true, false}) {
      LinkSchedule& schedule = up ? schedules_[host].up : schedules_[host].down;
      while (schedule.change_ns() != kNever &&
             schedules_begin_ns_ + schedule.change_ns() <= now_ns()) {
        schedule.advance(link_random_);
        network().set_rate(up ? network().uplink(id) : network().downlink(id),
                           bytes_per_second(schedule));
      }
      if (schedule.change_ns() != kNever) {
        next_ns = std::min(next_ns, schedules_begin_ns_ + schedule.change_ns());
      }
    }
  }
  cluster_.set_timer(link_timer(), next_ns);
}

// --- what was seen ------------------------------------------------------------------------------

const sim::LinkStats& TrainingCluster::uplink(uint32_t host) const {
  return cluster_.network().stats(cluster_.network().uplink(sim::HostId(host)));
}
const sim::LinkStats& TrainingCluster::downlink(uint32_t host) const {
  return cluster_.network().stats(cluster_.network().downlink(sim::HostId(host)));
}

Status TrainingCluster::job_status(uint32_t number) const {
  const Client& client = *clients_[number];
  return cluster_[client.worker].host().jobs().job_status(number + 1, client.slot);
}

}  // namespace mercury::simulator
