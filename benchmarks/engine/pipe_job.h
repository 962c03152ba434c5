// A job whose hosts are production code from a program's submission to its completion, over a wire
// that hands pointers on (pipe_port.h). What its engines take is Mercury's own; who drives it says
// what time it is and counts what it wants, around poll_workers() and poll_server().
//
// Payloads are handled as always, but nobody looks at the sums: the tests do.
// Owner/thread: one, for all engines, which take turns.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "benchmarks/engine/pipe_port.h"
#include "shim/channel/channel.h"
#include "shim/host/host.h"
#include "transport/base/random.h"

namespace mercury::bench {

class PipeJob {
 public:
  struct Size {
    uint32_t mtu = 9000;
    uint32_t workers = 1;  // on a host each; one more host serves them
    uint64_t bytes = 0;    // of a worker's gradient, in two tensors: so rounds overlap
    uint32_t frames = 16'384;
    bool elide_payload = false;  // as PipeWire has it
    JobTerms terms;
    bool sealed = false;  // it has a secret, and its frames are authenticated
  };

  explicit PipeJob(const Size& size)
      : wire_(size.frames, size.mtu - kUdpIpv4Bytes, size.elide_payload),
        terms_(size.terms),
        sealed_(size.sealed),
        elems_(size.bytes / kTensors / sizeof(float)) {
    server_ = make_host(0, true);
    for (uint32_t i = 0; i < size.workers; ++i) {
      WorkerHost& worker = workers_.emplace_back();
      worker.host = make_host(i + 1, false);
      const auto memory = *ChannelMemory::create({}, false);
      worker.engine_end = std::make_unique<EngineChannel>(memory);
      worker.program_end = std::make_unique<ClientChannel>(memory);
      worker.memory.assign(elems_ * kTensors, 0.0F);  // which stay zeros, round after round
    }
  }

  // Opens the job and declares its tensors. `now` gives the time, in ns.
  template <class Clock>
  Status open(Clock now) {
    for (WorkerHost& worker : workers_) {
      OpenJob request;
      request.name = kJob;
      request.rank = static_cast<int>(&worker - workers_.data());
      request.workers = static_cast<uint16_t>(workers_.size());
      request.servers = 1;
      request.terms = terms_;
      if (sealed_) request.secret = kSecret;
      request.rendezvous = {server_->port_info(0).local};
      request.channels = {worker.engine_end.get()};
      request.client_job = 1;
      worker.host->send(LaneId(0), command::AttachChannel{worker.engine_end.get()});
      worker.host->jobs().open_job(kClient, request, now(),
                                   [this, &worker](Result<OpenedJob> opened) {
                                     if (!opened) return answer(opened.error());
                                     worker.slot = opened->slot;
                                     chunk_bytes_ = opened->chunk_bytes;
                                     answer({});
                                   });
    }
    if (Status opened = all_answer(now); !opened) return opened;
    for (WorkerHost& worker : workers_) {
      std::vector<TensorDeclaration> tensors;
      for (uint32_t t = 0; t < kTensors; ++t) {
        tensors.push_back({.tensor = TensorId(t),
                           .numel = elems_,
                           .data = reinterpret_cast<std::byte*>(&worker.memory[t * elems_])});
      }
      worker.host->jobs().declare(kClient, worker.slot, tensors, now(),
                                  [this](const Status& declared) { answer(declared); });
    }
    return all_answer(now);
  }

  // Chunks of one worker in one round of one tensor.
  uint64_t chunks() const { return (elems_ * sizeof(float) + chunk_bytes_ - 1) / chunk_bytes_; }

  bool begin() {
    for (uint32_t t = 0; t < kTensors; ++t) {
      if (!submit(t)) return false;
    }
    return true;
  }
  // Until the tensor whose turn it is has its sums everywhere; then it is pushed again. `turn` lets
  // every engine poll once. False: an operation failed.
  template <class Turn>
  bool one_round(Turn turn) {
    for (;;) {
      bool all = true;
      for (WorkerHost& worker : workers_) {
        Completion completion;
        while (worker.program_end->pop(completion)) {
          if (completion.cookie == kRefusedCookie) {
            ++refused_;
            continue;
          }
          if (completion.status != Errc::kOk) return false;
          ++worker.done[completion.tensor.value];
        }
        all = all && worker.done[turn_] > 0;
      }
      if (all) break;
      turn();
    }
    for (WorkerHost& worker : workers_) --worker.done[turn_];
    const uint32_t tensor = turn_;
    turn_ = (turn_ + 1) % kTensors;
    return submit(tensor);
  }

  void poll_workers(uint64_t now_ns) {
    for (WorkerHost& worker : workers_) worker.host->lane(0).poll(now_ns);
  }
  void poll_server(uint64_t now_ns) { server_->lane(0).poll(now_ns); }

  // Of all engines together.
  uint64_t count_of(Counter counter) const {
    uint64_t sum = server_->counters(0).get(counter);
    for (const WorkerHost& worker : workers_) sum += worker.host->counters(0).get(counter);
    return sum;
  }
  uint64_t retransmits() const { return count_of(Counter::kRetransmits); }
  uint64_t refused() const { return refused_; }
  void lose_one_in(uint32_t frames) { wire_.lose_one_in(frames); }
  // Of each program; its completion is popped as any other.
  void submit_what_is_refused() {
    for (WorkerHost& worker : workers_) {
      (void)worker.program_end->submit({SubmitOp::kPull, 0, 1, TensorId(kTensors), kRefusedCookie});
    }
  }

 private:
  using PipeHost = HostOf<PipePort>;
  static constexpr uint32_t kUdpIpv4Bytes = 28;
  static constexpr uint32_t kTensors = 2;
  static constexpr ClientId kClient = 1;
  static constexpr const char* kJob = "bench";
  static constexpr const char* kSecret = "the bench's";
  static constexpr uint64_t kRefusedCookie = 1000;

  struct WorkerHost {
    std::unique_ptr<PipeHost> host;
    std::unique_ptr<EngineChannel> engine_end;
    std::unique_ptr<ClientChannel> program_end;
    std::vector<float> memory;
    JobSlot slot;
    std::array<uint32_t, kTensors> done{};  // operations that nobody has waited for, by tensor
  };

  std::unique_ptr<PipeHost> make_host(uint32_t index, bool serve) {
    const Endpoint local{IpAddress::v4(10, 0, 0, static_cast<uint8_t>(index + 1)), 7470};
    std::vector<PipeHost::Part> parts;
    parts.push_back({std::make_unique<Counters>(), std::make_unique<PipePort>(wire_, local)});
    HostConfig config;
    config.policy.serve = serve;
    if (sealed_) {
      config.policy.authentication = Authentication::kRequired;
      config.policy.known.push_back({.name = kJob, .secret = kSecret});
    }
    return std::make_unique<PipeHost>(std::move(parts), config, [this] { return random_.next(); });
  }

  void answer(Status status) {
    ++answers_;
    if (!status) failed_ = std::move(status);
  }
  template <class Clock>
  Status all_answer(Clock now) {
    while (answers_ < workers_.size()) {
      poll_workers(now());
      poll_server(now());
      server_->process(now());
      for (WorkerHost& worker : workers_) worker.host->process(now());
    }
    answers_ = 0;
    return failed_;
  }

  bool submit(uint32_t tensor) {
    return std::all_of(workers_.begin(), workers_.end(), [tensor](WorkerHost& worker) {
      return worker.program_end->submit({SubmitOp::kPushPull, 0, 1, TensorId(tensor), 1 + tensor});
    });
  }

  Random random_{1};
  PipeWire wire_;
  const JobTerms terms_;
  const bool sealed_;
  const uint64_t elems_;
  std::unique_ptr<PipeHost> server_;
  std::vector<WorkerHost> workers_;
  uint32_t chunk_bytes_ = 0;
  uint32_t turn_ = 0;
  uint64_t refused_ = 0;
  size_t answers_ = 0;
  Status failed_;
};

}  // namespace mercury::bench
