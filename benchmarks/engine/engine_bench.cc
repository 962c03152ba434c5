// What Mercury itself takes for a chunk, on one core: the engines of a job's hosts, production code
// from a program's submission to its completion, take turns over a wire that hands pointers on.
//
//   build/benchmarks/engine/engine_bench
//
//   push_pull/MTU/WORKERS/KiB   WORKERS hosts push and pull two tensors of KiB / 2 each through one
//                               server. Time is that of a round of one tensor; worker_ns and
//                               server_ns are what the engines take of it for each chunk of one
//                               worker: pushed, summed, and its sum received.
//
// Payloads are handled as always, but nobody looks at the sums: the tests do.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "benchmarks/engine/pipe_port.h"
#include "shim/channel/channel.h"
#include "shim/host/clock.h"
#include "shim/host/host.h"
#include "transport/base/random.h"

namespace mercury {
namespace {

using bench::PipePort;
using bench::PipeWire;
using PipeHost = HostOf<PipePort>;

constexpr uint32_t kUdpIpv4Bytes = 28;
constexpr uint32_t kFrames = 16'384;
constexpr uint32_t kTensors = 2;  // so that rounds overlap
constexpr ClientId kClient = 1;

struct WorkerHost {
  std::unique_ptr<PipeHost> host;
  std::unique_ptr<EngineChannel> engine_end;
  std::unique_ptr<ClientChannel> program_end;
  std::vector<float> memory;
  JobSlot slot;
  uint32_t done = 0;  // operations that nobody has waited for; they end in the order of submission
};

class Job {
 public:
  Job(uint32_t mtu, uint32_t workers, uint64_t bytes)
      : wire_(kFrames, mtu - kUdpIpv4Bytes), elems_(bytes / kTensors / sizeof(float)) {
    server_ = make_host(0, true);
    for (uint32_t i = 0; i < workers; ++i) {
      WorkerHost& worker = workers_.emplace_back();
      worker.host = make_host(i + 1, false);
      const auto memory = *ChannelMemory::create({}, false);
      worker.engine_end = std::make_unique<EngineChannel>(memory);
      worker.program_end = std::make_unique<ClientChannel>(memory);
      worker.memory.assign(elems_ * kTensors, 0.0F);  // which stay zeros, round after round
    }
  }

  Status open() {
    for (WorkerHost& worker : workers_) {
      OpenJob request{.name = "bench",
                      .rank = static_cast<int>(&worker - workers_.data()),
                      .workers = static_cast<uint16_t>(workers_.size()),
                      .servers = 1,
                      .rendezvous = {server_->port_info(0).local},
                      .channels = {worker.engine_end.get()},
                      .client_job = 1};
      worker.host->send(LaneId(0), command::AttachChannel{worker.engine_end.get()});
      worker.host->jobs().open_job(kClient, request, monotonic_ns(),
                                   [this, &worker](Result<OpenedJob> opened) {
                                     if (!opened) return answer(opened.error());
                                     worker.slot = opened->slot;
                                     chunk_bytes_ = opened->chunk_bytes;
                                     answer({});
                                   });
    }
    if (Status opened = all_answer(); !opened) return opened;
    for (WorkerHost& worker : workers_) {
      std::vector<TensorDeclaration> tensors;
      for (uint32_t t = 0; t < kTensors; ++t) {
        tensors.push_back({.tensor = t,
                           .numel = elems_,
                           .data = reinterpret_cast<std::byte*>(&worker.memory[t * elems_])});
      }
      worker.host->jobs().declare(kClient, worker.slot, tensors, monotonic_ns(),
                                  [this](const Status& declared) { answer(declared); });
    }
    return all_answer();
  }

  // Chunks of one worker in one round of one tensor.
  uint64_t chunks() const { return (elems_ * sizeof(float) + chunk_bytes_ - 1) / chunk_bytes_; }

  bool begin() {
    for (uint32_t t = 0; t < kTensors; ++t) {
      if (!submit(t)) return false;
    }
    return true;
  }
  // Until the tensor whose turn it is has its sums everywhere; then it is pushed again.
  bool one_round() {
    for (;;) {
      bool all = true;
      for (WorkerHost& worker : workers_) {
        Completion completion;
        while (worker.program_end->pop(completion)) {
          if (completion.status != Errc::kOk) return false;
          ++worker.done;
        }
        all = all && worker.done > 0;
      }
      if (all) break;
      poll();
    }
    for (WorkerHost& worker : workers_) --worker.done;
    const uint32_t tensor = turn_;
    turn_ = (turn_ + 1) % kTensors;
    return submit(tensor);
  }

  uint64_t worker_ns = 0, server_ns = 0;
  uint64_t retransmits() const {
    uint64_t sum = server_->counters(0).get(Counter::kRetransmits);
    for (const WorkerHost& worker : workers_) {
      sum += worker.host->counters(0).get(Counter::kRetransmits);
    }
    return sum;
  }

 private:
  std::unique_ptr<PipeHost> make_host(uint32_t index, bool serve) {
    const Endpoint local{IpAddress::v4(10, 0, 0, static_cast<uint8_t>(index + 1)), 7470};
    std::vector<PipeHost::Part> parts;
    parts.push_back({std::make_unique<Counters>(), std::make_unique<PipePort>(wire_, local)});
    HostConfig config;
    config.policy.serve = serve;
    return std::make_unique<PipeHost>(std::move(parts), config, [this] { return random_.next(); });
  }

  void poll() {
    const uint64_t before_ns = monotonic_ns();
    for (WorkerHost& worker : workers_) worker.host->lane(0).poll(before_ns);
    const uint64_t between_ns = monotonic_ns();
    worker_ns += between_ns - before_ns;
    server_->lane(0).poll(between_ns);
    server_ns += monotonic_ns() - between_ns;
  }

  void answer(Status status) {
    ++answers_;
    if (!status) failed_ = std::move(status);
  }
  Status all_answer() {
    while (answers_ < workers_.size()) {
      poll();
      server_->process(monotonic_ns());
      for (WorkerHost& worker : workers_) worker.host->process(monotonic_ns());
    }
    answers_ = 0;
    return failed_;
  }

  bool submit(uint32_t tensor) {
    return std::all_of(workers_.begin(), workers_.end(), [tensor](WorkerHost& worker) {
      return worker.program_end->submit({SubmitOp::kPushPull, 0, 1, tensor, 1 + tensor});
    });
  }

  Random random_{1};
  PipeWire wire_;
  const uint64_t elems_;
  std::unique_ptr<PipeHost> server_;
  std::vector<WorkerHost> workers_;
  uint32_t chunk_bytes_ = 0;
  uint32_t turn_ = 0;
  size_t answers_ = 0;
  Status failed_;
};

void push_pull(benchmark::State& state) {
  const auto workers = static_cast<uint32_t>(state.range(1));
  Job job(static_cast<uint32_t>(state.range(0)), workers,
          static_cast<uint64_t>(state.range(2)) * 1024);
  if (Status opened = job.open(); !opened) {
    return state.SkipWithError(opened.error().message.c_str());
  }
  bool good = job.begin();
  for (int warm_up = 0; good && warm_up < 8; ++warm_up) good = job.one_round();
  job.worker_ns = job.server_ns = 0;
  for (auto _ : state) good = good && job.one_round();
  if (!good) return state.SkipWithError("an exchange failed");
  const auto chunks =
      static_cast<double>(state.iterations()) * static_cast<double>(job.chunks()) * workers;
  state.counters["worker_ns"] = static_cast<double>(job.worker_ns) / chunks;
  state.counters["server_ns"] = static_cast<double>(job.server_ns) / chunks;
  state.counters["sent_again"] = static_cast<double>(job.retransmits());
  state.counters["chunks"] = benchmark::Counter(chunks, benchmark::Counter::kIsRate);
}
BENCHMARK(push_pull)->ArgsProduct({{1500, 9000}, {1, 2, 8}, {1024}})->Args({1500, 1, 256 * 1024});

}  // namespace
}  // namespace mercury

BENCHMARK_MAIN();
