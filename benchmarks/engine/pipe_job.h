// A job whose hosts are production code from a program's submission to its completion, over a wire
// that hands pointers on (pipe_port.h). What its engines take is Mercury's own; who drives it says
// what time it is and counts what it wants, around poll_workers() and poll_server().
//
// Payloads are handled as always, but nobody looks at the sums: the tests do.
// Owner/thread: one, for all engines, which take turns.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "benchmarks/engine/job_worker.h"
#include "benchmarks/engine/pipe_port.h"
#include "transport/base/random.h"

namespace mercury::bench {

class PipeJob {
 public:
  struct Size {
    uint32_t mtu = 9000;
    uint32_t workers = 1;  // on a host each; one more host serves them
    uint64_t bytes = 0;    // of a worker's gradient
    uint32_t tensors = 2;  // that it is in; at least two, so that rounds overlap
    uint32_t frames = 16'384;
    bool elide_payload = false;  // as PipeWire has it
    JobTerms terms;
    bool sealed = false;  // it has a secret, and its frames are authenticated
  };

  explicit PipeJob(const Size& size)
      : wire_(size.frames, size.mtu - kUdpIpv4Bytes, size.elide_payload),
        terms_(size.terms),
        sealed_(size.sealed),
        tensors_(size.tensors),
        elems_(size.bytes / size.tensors / sizeof(float)) {
    server_ = make_host(0, true);
    for (uint32_t i = 0; i < size.workers; ++i) {
      workers_.push_back(std::make_unique<PipeWorker>(make_host(i + 1, false), tensors_, elems_));
    }
  }

  // Opens the job and declares its tensors. `now` gives the time, in ns.
  template <class Clock>
  Status open(Clock now) {
    const auto told = [this](const Status& status) { answer(status); };
    for (size_t i = 0; i < workers_.size(); ++i) {
      OpenJob request;
      request.name = kJob;
      request.rank = static_cast<int>(i);
      request.workers = static_cast<uint16_t>(workers_.size());
      request.servers = 1;
      request.terms = terms_;
      if (sealed_) request.secret = kSecret;
      request.rendezvous = {server_->port_info(0).local};
      workers_[i]->open(std::move(request), now(), told);
    }
    if (Status opened = all_answer(now); !opened) return opened;
    for (auto& worker : workers_) worker->declare(now(), told);
    return all_answer(now);
  }

  // Chunks of one worker in one round of one tensor.
  uint64_t chunks() const {
    const uint32_t chunk_bytes = workers_.front()->chunk_bytes();
    return (elems_ * sizeof(float) + chunk_bytes - 1) / chunk_bytes;
  }

  bool begin() {
    for (uint32_t t = 0; t < tensors_; ++t) {
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
      for (auto& worker : workers_) {
        if (!worker->collect()) return false;
        all = all && worker->is_done(turn_);
      }
      if (all) break;
      turn();
    }
    for (auto& worker : workers_) worker->take(turn_);
    const uint32_t tensor = turn_;
    if (++turn_ == tensors_) turn_ = 0;
    return submit(tensor);
  }

  void poll_workers(uint64_t now_ns) {
    for (auto& worker : workers_) worker->host().lane(0).poll(now_ns);
  }
  void poll_server(uint64_t now_ns) { server_->lane(0).poll(now_ns); }

  // Of all engines together.
  uint64_t count_of(Counter counter) const {
    uint64_t sum = server_->counters(0).get(counter);
    for (const auto& worker : workers_) sum += worker->host().counters(0).get(counter);
    return sum;
  }
  uint64_t retransmits() const { return count_of(Counter::kRetransmits); }
  uint64_t refused() const {
    uint64_t sum = 0;
    for (const auto& worker : workers_) sum += worker->refused();
    return sum;
  }
  void lose_one_in(uint32_t frames) { wire_.lose_one_in(frames); }
  // Of each program; its completion is popped as any other.
  void submit_what_is_refused() {
    for (auto& worker : workers_) worker->submit_what_is_refused();
  }

 private:
  using PipeHost = HostOf<PipePort>;
  static constexpr uint32_t kUdpIpv4Bytes = 28;
  static constexpr const char* kJob = "bench";
  static constexpr const char* kSecret = "the bench's";
  using PipeWorker = JobWorker<PipeHost>;

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
      for (auto& worker : workers_) worker->host().process(now());
    }
    answers_ = 0;
    return failed_;
  }

  bool submit(uint32_t tensor) {
    return std::all_of(workers_.begin(), workers_.end(),
                       [tensor](auto& worker) { return worker->submit(tensor); });
  }

  Random random_{1};
  PipeWire wire_;
  const JobTerms terms_;
  const bool sealed_;
  const uint32_t tensors_;
  const uint64_t elems_;
  std::unique_ptr<PipeHost> server_;
  std::vector<std::unique_ptr<PipeWorker>> workers_;
  uint32_t turn_ = 0;
  size_t answers_ = 0;
  Status failed_;
};

}  // namespace mercury::bench
