// One host's engine over a real port, with its program's calls on the same thread: how many frames
// of a given payload a core handles. Each tensor is one frame there and one back, its sum; it is
// pushed again as soon as that is there. Start one with --serve, and one with its address as
// --peer.
//
// Both end when standard input does, and print what their port's counters say: the first of all its
// time when it ends, the other of the time that is measured as soon as that is over.
// {"goodput_bytes_per_s": payload of one direction per second, "payload_bytes": of a frame,
// "received_frames", "sent_frames", "acks_sent", "retransmits", "idle_passes": a part of one,
// "verified": every sum is right}.
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "benchmarks/engine/job_worker.h"
#include "benchmarks/goodput/ports.h"
#include "shim/host/clock.h"
#include "shim/host/host.h"
#include "shim/host/random.h"

namespace mercury::goodput {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kPeerTimeoutNs = 20'000 * kMillisecond;
constexpr uint64_t kWarmUpNs = 300 * kMillisecond;
constexpr uint64_t kSpinNs = 20'000;      // then it lets others run, as engines do
constexpr uint32_t kMostInFlight = 1024;  // the channel's rings have room for as many

struct LoopOptions {
  PortOptions port;
  std::string peer;
  bool serve = false;
  uint32_t payload_bytes = 64;
  uint32_t in_flight = 512;
  double seconds = 2;
};

constexpr std::array kShown{Counter::kRxFrames,    Counter::kTxFrames, Counter::kAcksSent,
                            Counter::kRetransmits, Counter::kPolls,    Counter::kIdlePolls};
constexpr std::array kNames{"received_frames", "sent_frames", "acks_sent", "retransmits"};
using Shown = std::array<uint64_t, kShown.size()>;

template <Port P>
class EngineLoop {
 public:
  EngineLoop(std::unique_ptr<Counters> counters, std::unique_ptr<P> port,
             const LoopOptions& options)
      : options_(options) {
    HostConfig config;
    config.policy.serve = options.serve;
    std::vector<typename HostOf<P>::Part> parts;
    parts.push_back({std::move(counters), std::move(port)});
    worker_.emplace(std::make_unique<HostOf<P>>(std::move(parts), config, system_random),
                    options.serve ? 0 : options.in_flight, options.payload_bytes / sizeof(float));
  }

  Status run() {
    if (options_.serve) {
      serve();
      return {};
    }
    fill();
    if (Status opened = open(); !opened) return opened;
    for (uint32_t t = 0; t < options_.in_flight; ++t) (void)worker_->submit(t);
    if (Status warm = exchange(monotonic_ns() + kWarmUpNs); !warm) return warm;
    const uint64_t done_before = done_;
    const Shown before = shown();
    const uint64_t begin_ns = monotonic_ns();
    Status measured = exchange(begin_ns + static_cast<uint64_t>(options_.seconds * 1e9));
    if (!measured) return measured;
    const double taken_s = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    const Shown after = shown();
    const uint64_t done = done_ - done_before;
    if (Status rest = drain(); !rest) return rest;
    const bool verified = holds();
    print(before, after, static_cast<double>(done) * options_.payload_bytes / taken_s, verified);
    while (std::getchar() != EOF) {  // as reference_loop --hold
    }
    if (!verified) return Error(Errc::kProtocol, "a tensor does not hold the sum");
    return {};
  }

 private:
  HostOf<P>& host() { return worker_->host(); }
  Shown shown() {
    Shown values{};
    for (size_t i = 0; i < kShown.size(); ++i) values[i] = host().counters(0).get(kShown[i]);
    return values;
  }
  void print(const Shown& before, const Shown& after, double goodput, bool verified) const {
    std::printf("{\"goodput_bytes_per_s\": %.0f, \"payload_bytes\": %u", goodput,
                options_.payload_bytes);
    for (size_t i = 0; i < kNames.size(); ++i) {
      std::printf(", \"%s\": %lu", kNames[i], after[i] - before[i]);
    }
    const auto passes = static_cast<double>(after[4] - before[4]);
    std::printf(", \"idle_passes\": %.3f, \"verified\": %s}\n",
                static_cast<double>(after[5] - before[5]) / (passes > 0 ? passes : 1),
                verified ? "true" : "false");
    std::fflush(stdout);
  }

  // Looked at once a millisecond: it is a system call.
  bool input_ended() {
    if (now_ns_ < next_look_ns_) return false;
    next_look_ns_ = now_ns_ + kMillisecond;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return ::poll(&input, 1, 0) > 0;
  }
  void serve() {
    while (!input_ended()) poll();
    print({}, shown(), 0, true);
  }

  void poll() {
    now_ns_ = monotonic_ns();
    auto& lane = host().lane(0);
    if (lane.poll(now_ns_, monotonic_ns) > 0) {
      busy_at_ns_ = now_ns_;
    } else if (now_ns_ - busy_at_ns_ > kSpinNs) {
      sched_yield();
    }
    if (lane.engine().take_moved() != 0 || host().next_deadline_ns() <= now_ns_) {
      host().process(now_ns_);
    }
  }

  Status open() {
    const Result<Endpoint> server = Endpoint::parse(options_.peer, host().port_info(0).local.port);
    if (!server) return server.error();
    OpenJob request;
    request.name = "engine";
    request.rank = 0;
    request.workers = request.servers = 1;
    request.rendezvous = {*server};
    now_ns_ = monotonic_ns();
    std::optional<Status> told;
    const auto reply = [&told](Status status) { told = std::move(status); };
    worker_->open(std::move(request), now_ns_, reply);
    if (Status opened = answer(told); !opened) return opened;
    if (worker_->chunk_bytes() < options_.payload_bytes) {
      return Error(Errc::kInvalidArgument, "--payload: a frame carries " +
                                               std::to_string(worker_->chunk_bytes()) +
                                               " bytes at most");
    }
    worker_->declare(now_ns_, reply);
    return answer(told);
  }
  Status answer(std::optional<Status>& told) {
    told.reset();
    const uint64_t deadline_ns = monotonic_ns() + kPeerTimeoutNs;
    while (!told) {
      poll();
      if (now_ns_ > deadline_ns) return Error(Errc::kTimedOut, "nothing heard from the peer");
    }
    return *told;
  }

  Status exchange(uint64_t until_ns) {
    while (now_ns_ < until_ns) {
      if (Status taken = take(); !taken) return taken;
      for (; worker_->is_done(next_); advance()) (void)worker_->submit(next_);
    }
    return {};
  }
  Status drain() {
    for (uint32_t left = options_.in_flight; left > 0;) {
      if (Status taken = take(); !taken) return taken;
      for (; left > 0 && worker_->is_done(next_); advance()) --left;
    }
    return {};
  }
  Status take() {
    poll();
    if (!worker_->collect()) return Error(Errc::kProtocol, "an operation failed");
    if (now_ns_ - busy_at_ns_ > kPeerTimeoutNs) return Error(Errc::kTimedOut, "nothing arrives");
    return {};
  }
  void advance() {
    worker_->take(next_);
    next_ = next_ + 1 == options_.in_flight ? 0 : next_ + 1;
    ++done_;
  }

  // With one worker the sum is what was pushed, and lands where it was pushed from.
  void fill() {
    for (size_t i = 0; i < worker_->memory().size(); ++i) {
      worker_->memory()[i] = static_cast<float>(i % (1 << 24));
    }
  }
  bool holds() {
    for (size_t i = 0; i < worker_->memory().size(); ++i) {
      if (worker_->memory()[i] != static_cast<float>(i % (1 << 24))) return false;
    }
    return true;
  }

  const LoopOptions options_;
  std::optional<bench::JobWorker<HostOf<P>>> worker_;  // of no tensors, where it serves
  uint64_t now_ns_ = 0;
  uint64_t busy_at_ns_ = monotonic_ns();
  uint64_t next_look_ns_ = 0;
  uint32_t next_ = 0;
  uint64_t done_ = 0;
};

Status run(const LoopOptions& options) {
  if (options.serve == !options.peer.empty()) {
    return Error(Errc::kInvalidArgument, "one of --serve and --peer");
  }
  if (options.payload_bytes % sizeof(float) != 0) {
    return Error(Errc::kInvalidArgument, "--payload: whole floats, four bytes each");
  }
  auto counters = std::make_unique<Counters>();
  Result<AnyPort> port = open_port(options.port, *counters);
  if (!port) return port.error();
  return std::visit(
      [&]<class P>(std::unique_ptr<P>& opened) {
        return EngineLoop<P>(std::move(counters), std::move(opened), options).run();
      },
      *port);
}

}  // namespace
}  // namespace mercury::goodput

int main(int argc, char** argv) {
  mercury::goodput::LoopOptions options;
  CLI::App app("Pushes tensors of one frame each over one port, with the engine alone.");
  mercury::goodput::add_options(app, options.port);
  app.add_flag("--serve", options.serve, "this end sums");
  app.add_option("--peer", options.peer, "the end that sums: ADDRESS[:UDP-PORT]");
  app.add_option("--payload", options.payload_bytes, "bytes of a tensor, which is one frame")
      ->check(CLI::Range(4U, 65536U));
  app.add_option("--in-flight", options.in_flight, "tensors at once")
      ->check(CLI::Range(1U, mercury::goodput::kMostInFlight));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(0.1, 3600.0));
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  const mercury::Status status = mercury::goodput::run(options);
  if (status) return 0;
  std::fprintf(stderr, "engine_loop: %s\n", status.error().message.c_str());
  return 1;
}
