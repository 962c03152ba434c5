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
#include <string>
#include <vector>

#include "benchmarks/goodput/watched_port.h"
#include "shim/channel/channel.h"
#include "shim/host/sim/job_calls.h"
#include "transport/base/mapped_memory.h"

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
      : nic_queue_bytes_(setting.nic_queue_bytes), cluster_(cluster_config(setting)) {
    for (const bool serve : {false, true}) {
      sim::VirtualHostConfig host;
      host.port.tx_queue_bytes = setting.nic_queue_bytes;
      host.host.policy.serve = serve;
      cluster_.add_host(host, [this, serve](std::unique_ptr<sim::SimPort> port) {
        return std::make_unique<WatchedPort>(std::move(port), serve ? nullptr : &watch_);
      });
    }
  }

  Result<Measured> run() {
    Status ready;
    for (const uint32_t host : {kWorker, kServer}) {
      if (ready) ready = cluster_.start(host);
    }
    if (ready) ready = open();
    if (ready) ready = declare();
    if (!ready) return ready.error();
    if (!submit(kLarge, 10)) return Error(Errc::kAgain, "the channel is full");
    Measured measured;
    std::vector<uint64_t> waits_ns;
    for (uint32_t i = 0; i < kSubmissions; ++i) {
      // Another phase of the link and of the window each time.
      const uint64_t until_ns = cluster_.now_ns() + 20'000 + cluster_.random().below(200'000);
      drive([&] { return cluster_.now_ns() >= until_ns; }, until_ns);
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
  static constexpr uint32_t kWorker = 0, kServer = 1;

  static sim::VirtualClusterConfig cluster_config(const Setting& setting) {
    sim::VirtualClusterConfig config;
    config.network.host_link.mtu_bytes = setting.mtu_bytes;
    return config;
  }

  Status open() {
    OpenJob request;
    request.name = "urgent";
    request.workers = request.servers = 1;
    request.rendezvous = {cluster_[kServer].endpoint(0)};
    request.channels = {&engine_};
    request.client_job = 1;
    sim::JobCalls calls(cluster_);
    calls.open(kWorker, 1, request, [this](const OpenedJob& opened) { slot_ = opened.slot; });
    return calls.wait(cluster_.now_ns() + kLimitNs);
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
    sim::JobCalls calls(cluster_);
    calls.declare(kWorker, 1, slot_, tensors);
    return calls.wait(cluster_.now_ns() + kLimitNs);
  }

  bool submit(uint32_t tensor, uint16_t priority) {
    return client_.submit(
        {SubmitOp::kPushPull, priority, 1, TensorId(tensor), tensor + uint64_t{1}});
  }

  Status measure_one(Measured& measured, std::vector<uint64_t>& waits_ns) {
    watch_.begin(kUrgent, cluster_[kWorker].port(0).tx_queued_bytes());
    const uint64_t start_ns = cluster_.now_ns();
    if (!submit(kUrgent, 0)) return Error(Errc::kAgain, "the channel is full");
    Completion completion;
    bool done = false;
    drive(
        [&] {
          while (client_.pop(completion)) done = done || completion.tensor == kUrgent;
          return done;
        },
        start_ns + kLimitNs);
    if (!done) return Error(Errc::kTimedOut, "the urgent tensor did not come back");
    if (completion.status != Errc::kOk) return Error(completion.status, "the exchange failed");
    measured.most_frames = std::max(measured.most_frames, watch_.frames_ahead);
    measured.most_bytes = std::max(measured.most_bytes, watch_.bytes_ahead);
    const sim::SimNetwork& network = cluster_.network();
    const uint64_t rate = network.config(network.uplink(cluster_[kWorker].id())).bytes_per_second;
    waits_ns.push_back(watch_.handed_at_ns - start_ns +
                       watch_.nic_bytes_ahead * 1'000'000'000 / rate);
    return {};
  }

  bool drive(const std::function<bool()>& until, uint64_t end_ns) {
    if (cluster_.run(until, end_ns)) return true;
    cluster_.network().advance_to(end_ns);
    return cluster_.run(until, end_ns);
  }

  const uint64_t nic_queue_bytes_;
  // It takes no room until it is touched: only its first chunks leave.
  MappedMemory large_ = MappedMemory::anonymous(kLargeBytes, PROT_READ | PROT_WRITE, MAP_NORESERVE);
  std::vector<float> urgent_ = std::vector<float>(kUrgentElements, 1.0F);
  Watch watch_;
  std::shared_ptr<ChannelMemory> memory_ = *ChannelMemory::create({256, 512}, false);
  EngineChannel engine_{memory_};
  ClientChannel client_{memory_};
  sim::VirtualCluster<sim::VirtualHost<WatchedPort>> cluster_;  // before the channel goes
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
