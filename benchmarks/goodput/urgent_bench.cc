// How much leaves before the most urgent chunk, behind a 400 MB tensor: over the simulated network,
// in virtual time, with the production host on both ends.
//
//   urgent_bench                    prints a table and JSON
//   urgent_bench --check            also fails if more than 2 frames and the stated bound left
//   first
//
// A chunk is ahead of the urgent one if its first byte is on the wire between the submission and
// the urgent one's first byte, or if it was still in the NIC at the submission.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/goodput/watched_port.h"
#include "shim/channel/channel.h"
#include "shim/host/host.h"
#include "transport/base/mapped_memory.h"
#include "transport/base/random.h"
#include "transport/port/sim/sim_network.h"

namespace mercury::goodput {
namespace {

constexpr uint64_t kLargeBytes = 400'000'000;
constexpr uint32_t kLarge = 0;
constexpr uint32_t kUrgent = 1;
constexpr uint64_t kUrgentElements = 16;
constexpr uint32_t kSubmissions = 100;
constexpr uint64_t kLimitNs = 10'000'000'000;

struct Setting {
  const char* name;
  uint32_t mtu_bytes;
  uint64_t nic_queue_bytes;  // 0: two frames
};

// A NIC that holds two frames and says when they leave, and one that takes whatever it is given, as
// virtual devices do, so that only the engine's own bound keeps it short.
constexpr Setting kSettings[] = {
    {"shallow NIC, 1500", 1500, 0},
    {"shallow NIC, 9000", 9000, 0},
    {"deep NIC, 1500", 1500, 64 << 20},
    {"deep NIC, 9000", 9000, 64 << 20},
};

struct Measured {
  uint32_t most_frames = 0;
  uint64_t most_bytes = 0;
  uint64_t longest_ns = 0;
  uint64_t median_ns = 0;
  uint64_t bound_bytes = 0;
  uint32_t frame_bytes = 0;
  uint32_t allowed_frames() const {
    return 2 + static_cast<uint32_t>((bound_bytes + frame_bytes - 1) / frame_bytes);
  }
};

// One worker and one server.
class Bench {
 public:
  explicit Bench(const Setting& setting)
      : nic_queue_bytes_(setting.nic_queue_bytes), network_(network_config(setting)) {
    worker_ = add_host(setting, 1, false);
    server_ = add_host(setting, 2, true);
    memory_ = *ChannelMemory::create({256, 512}, false);
    engine_ = std::make_unique<EngineChannel>(memory_);
    client_ = std::make_unique<ClientChannel>(memory_);
  }

  Result<Measured> run() {
    Status ready = open();
    if (!ready) return ready.error();
    ready = declare();
    if (!ready) return ready.error();
    if (!submit(kLarge, 10)) return Error(Errc::kAgain, "the channel is full");
    Measured measured;
    std::vector<uint64_t> waits_ns;
    for (uint32_t i = 0; i < kSubmissions; ++i) {
      // Another phase of the link and of the window each time.
      const uint64_t until_ns = network_.now_ns() + 20'000 + random_.below(200'000);
      drive([&] { return network_.now_ns() >= until_ns; }, until_ns);
      const Status status = measure_one(measured, waits_ns);
      if (!status) return status.error();
    }
    std::sort(waits_ns.begin(), waits_ns.end());
    measured.longest_ns = waits_ns.back();
    measured.median_ns = waits_ns[waits_ns.size() / 2];
    measured.frame_bytes = watch_.frame_bytes;
    measured.bound_bytes = EngineConfig{}.tx_bound_bytes;
    if (nic_queue_bytes_ == 0) measured.bound_bytes = 2 * uint64_t{watch_.frame_bytes};
    return measured;
  }

 private:
  using SimHost = HostOf<WatchedPort>;

  static sim::NetworkConfig network_config(const Setting& setting) {
    sim::NetworkConfig config;
    config.host_link.mtu_bytes = setting.mtu_bytes;
    return config;
  }

  std::unique_ptr<SimHost> add_host(const Setting& setting, uint8_t number, bool serve) {
    const sim::HostId host = network_.add_host();
    auto counters = std::make_unique<Counters>();
    sim::SimPortConfig config;
    config.counters = counters.get();
    config.tx_queue_bytes = setting.nic_queue_bytes;
    Result<std::unique_ptr<sim::SimPort>> port =
        sim::SimPort::create(network_, host, {IpAddress::v4(10, 0, 0, number), 7470}, config);
    auto watched = std::make_unique<WatchedPort>(std::move(*port), serve ? nullptr : &watch_);
    std::vector<SimHost::Part> parts;
    parts.push_back({std::move(counters), std::move(watched)});
    HostConfig host_config;
    host_config.policy.serve = serve;
    return std::make_unique<SimHost>(std::move(parts), host_config,
                                     [this] { return random_.next(); });
  }

  Status open() {
    OpenJob request;
    request.name = "urgent";
    request.workers = request.servers = 1;
    request.rendezvous = {server_->port_info(0).local};
    request.channels = {engine_.get()};
    request.client_job = 1;
    worker_->send(LaneId(0), command::AttachChannel{engine_.get()});
    std::optional<Result<OpenedJob>> reply;
    worker_->jobs().open_job(1, request, network_.now_ns(),
                             [&reply](Result<OpenedJob> opened) { reply = opened; });
    if (!drive([&] { return reply.has_value(); }, network_.now_ns() + kLimitNs)) {
      return Error(Errc::kTimedOut, "the job did not open");
    }
    if (!*reply) return reply->error();
    slot_ = (*reply)->slot;
    return {};
  }

  Status declare() {
    if (!large_) return Error(Errc::kNoMemory, "no address space for the tensor");
    std::vector<TensorDeclaration> tensors(2);
    tensors[0].tensor = kLarge;
    tensors[0].numel = kLargeBytes / sizeof(float);
    tensors[0].data = large_.data();
    tensors[1].tensor = kUrgent;
    tensors[1].numel = kUrgentElements;
    tensors[1].data = reinterpret_cast<std::byte*>(urgent_.data());
    std::optional<Status> reply;
    worker_->jobs().declare(1, slot_, tensors, network_.now_ns(),
                            [&reply](Status status) { reply = status; });
    if (!drive([&] { return reply.has_value(); }, network_.now_ns() + kLimitNs)) {
      return Error(Errc::kTimedOut, "the declaration had no answer");
    }
    return *reply;
  }

  bool submit(uint32_t tensor, uint16_t priority) {
    return client_->submit(
        {SubmitOp::kPushPull, priority, 1, TensorId(tensor), tensor + uint64_t{1}});
  }

  Status measure_one(Measured& measured, std::vector<uint64_t>& waits_ns) {
    watch_.begin(kUrgent, worker_->lane(0).port().sim().tx_queued_bytes());
    const uint64_t start_ns = network_.now_ns();
    if (!submit(kUrgent, 0)) return Error(Errc::kAgain, "the channel is full");
    Completion completion;
    bool done = false;
    drive(
        [&] {
          while (client_->pop(completion)) done = done || completion.tensor == kUrgent;
          return done;
        },
        start_ns + kLimitNs);
    if (!done) return Error(Errc::kTimedOut, "the urgent tensor did not come back");
    if (completion.status != Errc::kOk) return Error(completion.status, "the exchange failed");
    measured.most_frames = std::max(measured.most_frames, watch_.frames_ahead);
    measured.most_bytes = std::max(measured.most_bytes, watch_.bytes_ahead);
    const uint64_t rate = network_.config(network_.uplink(sim::HostId(0))).bytes_per_second;
    waits_ns.push_back(watch_.handed_at_ns - start_ns +
                       watch_.nic_bytes_ahead * 1'000'000'000 / rate);
    return {};
  }

  bool poll_all() {
    const uint64_t now_ns = network_.now_ns();
    watch_.now_ns = now_ns;
    uint32_t work = 0;
    for (SimHost* host : {worker_.get(), server_.get()}) {
      work += host->lane(0).poll(now_ns);
      host->process(now_ns);
    }
    return work > 0;
  }

  bool drive(const std::function<bool()>& until, uint64_t end_ns) {
    for (;;) {
      while (poll_all()) {
      }
      if (until()) return true;
      uint64_t next_ns = network_.next_event_ns();
      for (SimHost* host : {worker_.get(), server_.get()}) {
        next_ns = std::min(
            {next_ns, host->next_deadline_ns(), host->lane(0).engine().next_deadline_ns()});
      }
      next_ns = std::max(next_ns, network_.now_ns() + 1);
      if (next_ns > end_ns) {
        network_.advance_to(end_ns);
        while (poll_all()) {
        }
        return until();
      }
      network_.advance_to(next_ns);
    }
  }

  const uint64_t nic_queue_bytes_;
  // It takes no room until it is touched: only its first chunks leave.
  MappedMemory large_ = MappedMemory::anonymous(kLargeBytes, PROT_READ | PROT_WRITE, MAP_NORESERVE);
  std::vector<float> urgent_ = std::vector<float>(kUrgentElements, 1.0F);
  Random random_{1};
  Watch watch_;
  sim::SimNetwork network_;
  std::shared_ptr<ChannelMemory> memory_;
  std::unique_ptr<EngineChannel> engine_;
  std::unique_ptr<ClientChannel> client_;
  std::unique_ptr<SimHost> worker_;
  std::unique_ptr<SimHost> server_;
  JobSlot slot_;
};

int run(bool check) {
  bool within = true;
  std::printf("%-20s %8s %8s %9s %11s %11s\n", "behind 400 MB", "frames", "allowed", "bytes",
              "median ns", "longest ns");
  std::string json;
  for (const Setting& setting : kSettings) {
    Result<Measured> measured = Bench(setting).run();
    if (!measured) {
      std::fprintf(stderr, "urgent_bench: %s: %s\n", setting.name,
                   measured.error().message.c_str());
      return 1;
    }
    const Measured& m = *measured;
    std::printf("%-20s %8u %8u %9lu %11lu %11lu\n", setting.name, m.most_frames, m.allowed_frames(),
                m.most_bytes, m.median_ns, m.longest_ns);
    within = within && m.most_frames <= m.allowed_frames();
    json += (json.empty() ? "" : ", ") + std::string("{\"setting\": \"") + setting.name +
            "\", \"frames_ahead\": " + std::to_string(m.most_frames) +
            ", \"allowed_frames\": " + std::to_string(m.allowed_frames()) +
            ", \"bytes_ahead\": " + std::to_string(m.most_bytes) +
            ", \"median_ns\": " + std::to_string(m.median_ns) +
            ", \"longest_ns\": " + std::to_string(m.longest_ns) + "}";
  }
  std::printf("[%s]\n", json.c_str());
  if (check && !within) {
    std::fprintf(stderr, "urgent_bench: more left before the most urgent chunk than is allowed\n");
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace mercury::goodput

int main(int argc, char** argv) {
  const bool check = argc == 2 && std::strcmp(argv[1], "--check") == 0;
  if (argc > 1 && !check) {
    std::fprintf(stderr, "usage: %s [--check]\n", argv[0]);
    return 2;
  }
  return mercury::goodput::run(check);
}
