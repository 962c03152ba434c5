#include "apps/sim/virtual_cluster.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

namespace mercury::simulator {
namespace {

constexpr uint16_t kUdpPort = 7470;
// Virtual: an hour of waiting costs nothing, and slow links must not fail a job.
constexpr uint64_t kPatienceNs = 3'600'000'000'000;

uint64_t bytes_per_second(const LinkSchedule& schedule) { return schedule.bps() / 8; }

sim::NetworkConfig network_config(const VirtualClusterConfig& config) {
  sim::NetworkConfig network;
  network.seed = config.seed;
  network.elide_shared = config.elide;
  return network;
}

sim::LinkConfig link_config(const VirtualClusterConfig& config, const LinkSchedule& schedule) {
  sim::LinkConfig link;
  link.bytes_per_second = bytes_per_second(schedule);
  link.delay_ns = config.delay_ns;
  link.mtu_bytes = config.mtu_bytes;
  link.ecn_mark_bytes = config.ecn_bytes;
  link.bucket_bytes = config.bucket_bytes;
  const uint64_t peers = std::max(config.workers, config.servers);
  link.queue_bytes = config.queue_bytes != 0
                         ? config.queue_bytes
                         : (peers * config.jobs + 2) * (config.window_bytes + 64 * 1024);
  return link;
}

// Tables as large as this cluster can need.
LaneConfig lane_config(const VirtualClusterConfig& config) {
  LaneConfig lane;
  const uint32_t peers = config.workers + config.servers;
  const uint32_t sessions = std::min(60'000U, 2 * peers * (config.jobs + 1) + 16);
  const uint64_t window_packets = config.window_bytes / (config.mtu_bytes - 200) + 2;
  lane.engine.max_sessions = sessions;
  lane.engine.max_in_flight_packets = static_cast<uint32_t>(std::min<uint64_t>(
      uint64_t{peers} * config.jobs * (window_packets + kSentBlockRecords) + 4096, 1 << 24));
  lane.engine.session.window_bytes = config.window_bytes;
  lane.engine.incast_queue_bytes = config.incast_queue_bytes;
  lane.exchange.sends.scheduler = {config.jobs + 1, sessions, 1 << 18, 65536, config.turns};
  return lane;
}

}  // namespace

VirtualCluster::VirtualCluster(const VirtualClusterConfig& config)
    : config_(config),
      network_(network_config(config)),
      random_(config.seed),
      link_random_(config.seed + 1),
      clients_of_(hosts_total()),
      deadlines_(2 * size_t{hosts_total()} + size_t{config.jobs} * config.workers + 1),
      is_marked_(hosts_total()),
      processors_(hosts_total(), Processor(config.frame_cost_ns)),
      schedules_(config.links) {
  for (HostLinks& host : schedules_) {
    host.up.begin(link_random_);
    host.down.begin(link_random_);
  }
}

VirtualCluster::~VirtualCluster() { hosts_.clear(); }

IpAddress VirtualCluster::address_of(uint32_t host) const {
  if (!config_.ipv6) {
    return IpAddress::v4(10, 0, static_cast<uint8_t>(host / 250),
                         static_cast<uint8_t>(host % 250 + 1));
  }
  char text[40];
  std::snprintf(text, sizeof text, "fd00::%x", host + 1);
  return *IpAddress::parse(text);
}

Status VirtualCluster::create_hosts() {
  for (uint32_t host = 0; host < hosts_total(); ++host) {
    if (Status made = create_host(host); !made) return made;
  }
  return {};
}

Status VirtualCluster::create_host(uint32_t host) {
  const HostLinks& links = schedules_[host];
  const sim::HostId id =
      network_.add_host(link_config(config_, links.up), link_config(config_, links.down));
  sim::SimPortConfig port;
  port.tag = host;
  // The engine learns the rate once.
  port.report_rate = links.up.change_ns() == kNever && links.down.change_ns() == kNever;
  auto counters = std::make_unique<Counters>();
  port.counters = counters.get();
  auto made = sim::SimPort::create(network_, id, {address_of(host), kUdpPort}, port);
  if (!made) return made.error();
  std::vector<Host::Part> parts;
  parts.push_back({std::move(counters), std::move(*made)});
  HostConfig config;
  config.lane = lane_config(config_);
  config.policy.serve = host >= config_.workers;
  config.policy.max_jobs = config_.jobs + 1;
  hosts_.push_back(
      std::make_unique<Host>(std::move(parts), config, [this] { return random_.next(); }));
  if (hosts_.back()->event_fd() < 0 || hosts_.back()->lane(0).doorbell() < 0) {
    return Error(Errc::kSystem, "too many hosts for this process's limit of open files");
  }
  control(host);
  return {};
}

Result<uint32_t> VirtualCluster::add_client(uint32_t host, size_t tensors) {
  const auto slots =
      static_cast<uint32_t>(std::clamp<size_t>(std::bit_ceil(tensors + 1), 64, 65'536));
  auto memory = ChannelMemory::create({slots, slots}, false);
  if (!memory) return memory.error();
  const auto number = static_cast<uint32_t>(clients_.size());
  auto client = std::make_unique<Client>();
  client->host = host;
  client->client_job = 1;
  client->engine_end = std::make_unique<EngineChannel>(*memory);
  client->end = std::make_unique<ClientChannel>(*memory);
  clients_.push_back(std::move(client));
  clients_of_[host].push_back(number);
  hosts_[host]->send(LaneId(0), command::AttachChannel{clients_.back()->engine_end.get()});
  return number;
}

Result<uint32_t> VirtualCluster::open_job(const OpenJob& base,
                                          std::vector<TensorDeclaration> tensors,
                                          const TensorData& data) {
  const auto first = static_cast<uint32_t>(clients_.size());
  Status failed;
  uint32_t waiting = 0;
  const auto end = [&](const Status& status) {
    --waiting;
    if (!status && failed) failed = status;
  };
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
      request.rendezvous.push_back({address_of(config_.workers + server), kUdpPort});
    }
    ++waiting;
    hosts_[worker]->jobs().open_job(*number + 1, request, now_ns(),
                                    [this, end, number](Result<OpenedJob> opened) {
                                      if (opened) clients_[*number]->slot = opened->slot;
                                      end(opened ? Status() : Status(opened.error()));
                                    });
    control(worker);
  }
  if (Status ran = run([&] { return waiting > 0; }); !ran) return ran.error();
  if (!failed) return failed.error();
  for (uint32_t worker = 0; worker < config_.workers; ++worker) {
    const uint32_t number = first + worker;
    for (TensorDeclaration& tensor : tensors) tensor.data = data(worker, tensor.tensor.value);
    ++waiting;
    hosts_[worker]->jobs().declare(number + 1, clients_[number]->slot, tensors, now_ns(), end);
    control(worker);
  }
  if (Status ran = run([&] { return waiting > 0; }); !ran) return ran.error();
  return failed ? Result<uint32_t>(first) : Result<uint32_t>(failed.error());
}

void VirtualCluster::set_program(uint32_t number, VirtualProgram& program) {
  clients_[number]->program = &program;
  deadlines_.set(program_deadline(number), program.due_ns());
}

void VirtualCluster::push_pull(uint32_t number, uint32_t tensor, uint16_t priority) {
  Client& client = *clients_[number];
  // One operation per tensor is in flight at most, and there is room for all.
  (void)client.end->submit(
      {SubmitOp::kPushPull, priority, client.client_job, TensorId(tensor), tensor + 1});
  mark(client.host);
}

// --- the clock ----------------------------------------------------------------------------------

void VirtualCluster::mark(uint32_t host) {
  if (is_marked_[host]) return;
  is_marked_[host] = 1;
  marked_.push_back(host);
}

// Everything that can happen now has happened when it returns.
void VirtualCluster::settle() {
  for (const sim::SimPort* port : network_.touched()) mark(port->tag());
  network_.clear_touched();
  do {
    take_due();
    polling_.swap(marked_);
    for (const uint32_t host : polling_) {
      is_marked_[host] = 0;
      poll(host);
    }
    polling_.clear();
  } while (!marked_.empty() || deadlines_.earliest_ns() <= now_ns());
}

void VirtualCluster::take_due() {
  deadlines_.take_due(now_ns(), [this](size_t index) {
    if (index < hosts_total()) return mark(static_cast<uint32_t>(index));
    if (index < program_deadline(0)) {
      return control(static_cast<uint32_t>(index - hosts_total()));
    }
    if (index == link_deadline()) return change_links();
    const auto number = static_cast<uint32_t>(index - program_deadline(0));
    VirtualProgram& program = *clients_[number]->program;
    program.on_time(now_ns());
    deadlines_.set(index, program.due_ns());
  });
}

void VirtualCluster::poll(uint32_t host) {
  Lane<sim::SimPort>& lane = hosts_[host]->lane(0);
  bool commands = false;
  bool more = true;
  while (more && may_work(host)) {
    commands = commands || lane.engine().commands_waiting();
    more = pass(host);
  }
  if (lane.engine().take_reported() || commands) control(host);
  for (const uint32_t number : clients_of_[host]) collect(number);
  const uint64_t next_ns = more ? processors_[host].free_ns() : lane.engine().next_deadline_ns();
  deadlines_.set(engine_deadline(host), std::max(next_ns, now_ns() + 1));
}

bool VirtualCluster::may_work(uint32_t host) {
  const sim::SimPort& port = hosts_[host]->lane(0).port();
  const uint32_t burst = frames_per_pass(kBurst, port.info().max_udp_payload);
  return processors_[host].may_work(now_ns(), port.rx_waiting_frames(), burst);
}

// Whether there may be more to do at once: a pass that did less than any of its limits has left
// nothing.
bool VirtualCluster::pass(uint32_t host) {
  Lane<sim::SimPort>& lane = hosts_[host]->lane(0);
  const Counters& counters = hosts_[host]->counters(0);
  const auto frames = [&counters] {
    return counters.get(Counter::kRxFrames) + counters.get(Counter::kTxFrames);
  };
  const uint64_t before = frames();
  const uint32_t work = lane.poll(now_ns());
  processors_[host].worked(now_ns(), frames() - before);
  return work >= kLeastBurst || lane.port().rx_waiting();
}

// The control plane hears what its engine reported, and what time it is.
void VirtualCluster::control(uint32_t host) {
  hosts_[host]->process(now_ns());
  deadlines_.set(control_deadline(host), std::max(hosts_[host]->next_deadline_ns(), now_ns() + 1));
  if (hosts_[host]->lane(0).engine().commands_waiting()) mark(host);
}

void VirtualCluster::collect(uint32_t number) {
  Client& client = *clients_[number];
  Completion completion;
  if (!client.end->pop(completion)) return;
  do {
    if (client.program != nullptr) client.program->on_completion(completion, now_ns());
  } while (client.end->pop(completion));
  if (client.program != nullptr) {
    deadlines_.set(program_deadline(number), client.program->due_ns());
  }
}

// --- links --------------------------------------------------------------------------------------

void VirtualCluster::begin_schedules() {
  schedules_begin_ns_ = now_ns();
  change_links();
}

void VirtualCluster::change_links() {
  uint64_t next_ns = kNever;
  for (uint32_t host = 0; host < hosts_total(); ++host) {
    const sim::HostId id(host);
    for (const bool up : {true, false}) {
      LinkSchedule& schedule = up ? schedules_[host].up : schedules_[host].down;
      while (schedule.change_ns() != kNever &&
             schedules_begin_ns_ + schedule.change_ns() <= now_ns()) {
        schedule.advance(link_random_);
        network_.set_rate(up ? network_.uplink(id) : network_.downlink(id),
                          bytes_per_second(schedule));
      }
      if (schedule.change_ns() != kNever) {
        next_ns = std::min(next_ns, schedules_begin_ns_ + schedule.change_ns());
      }
    }
  }
  deadlines_.set(link_deadline(), next_ns);
}

// --- what was seen ------------------------------------------------------------------------------

const sim::LinkStats& VirtualCluster::uplink(uint32_t host) const {
  return network_.stats(network_.uplink(sim::HostId(host)));
}
const sim::LinkStats& VirtualCluster::downlink(uint32_t host) const {
  return network_.stats(network_.downlink(sim::HostId(host)));
}

uint64_t VirtualCluster::total(Counter counter) const {
  uint64_t sum = 0;
  for (const auto& host : hosts_) sum += host->counters(0).get(counter);
  return sum;
}

Status VirtualCluster::job_status(uint32_t number) const {
  return hosts_[clients_[number]->host]->jobs().job_status(number + 1, clients_[number]->slot);
}

}  // namespace mercury::simulator
