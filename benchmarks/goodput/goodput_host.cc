// One side of Mercury's line-rate measurement: the production host over any port, pushing and
// pulling tensors that fill a working set, round after round.
//
//   goodput_host --role server --port uring --address 127.0.0.1
//   goodput_host --role worker --port uring --address 127.0.0.2 --peer 127.0.0.1
//
// The server prints {"ready": ADDRESS} and serves until SIGTERM or SIGINT. The worker prints
// {"goodput_bytes_per_s": payload of one direction per second, "frames": received, ...}.
//
// Verified: in every round of every tensor 64 elements, spread over it, that differ from round to
// round; at the end every element. With one worker the sum equals what was pushed and lands where
// it was pushed from, so this shows wrong bytes and wrong places; that every chunk's sum came back
// is what a completion says, and what `frames` confirms.
#include <poll.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <future>
#include <optional>
#include <vector>

#include "benchmarks/goodput/ports.h"
#include "shim/channel/channel.h"
#include "shim/runtime/control_thread.h"
#include "shim/runtime/host.h"
#include "shim/runtime/random.h"

namespace mercury::goodput {
namespace {

constexpr uint64_t kGoodbyeNs = 500'000'000;
constexpr uint64_t kStallNs = 20'000'000'000;  // nothing completes for so long: it hangs
constexpr double kWarmUpSeconds = 0.3;
constexpr uint64_t kLargestTensorBytes = 1 << 20;
constexpr uint64_t kTensorsPerWorkingSet = 16;  // at least, so that rounds overlap
constexpr uint64_t kLargestWorkingSet = ChannelGeometry{}.submissions * kLargestTensorBytes;
constexpr uint64_t kSamples = 64;
constexpr ClientId kClient = 1;
constexpr uint32_t kClientJob = 1;

struct HostOptions {
  PortOptions port;
  std::string role;
  std::string peer;
  uint64_t working_set_bytes = 1 << 20;
  double seconds = 2;
  uint64_t window_bytes = SessionConfig{}.window_bytes;
  bool busy = false;
};

Result<std::unique_ptr<Host>> make_host(const HostOptions& options, bool serve) {
  auto counters = std::make_unique<Counters>();
  Result<AnyPort> port = open_port(options.port, *counters);
  if (!port) return port.error();
  HostConfig config;
  config.policy.serve = serve;
  config.lane.engine.session.window_bytes = options.window_bytes;
  return std::visit(
      [&](auto& opened) -> std::unique_ptr<Host> {
        using P = typename std::remove_reference_t<decltype(opened)>::element_type;
        std::vector<typename HostOf<P>::Part> parts;
        parts.push_back({std::move(counters), std::move(opened)});
        return std::make_unique<HostOf<P>>(std::move(parts), config, system_random);
      },
      *port);
}

// The tensors and what they must hold. Integers below 2^24, so that sums are exact.
class WorkingSet {
 public:
  explicit WorkingSet(uint64_t bytes)
      : tensor_bytes_(
            std::clamp(bytes / kTensorsPerWorkingSet, uint64_t{4096}, kLargestTensorBytes)),
        elements_(tensor_bytes_ / sizeof(float)),
        rounds_(std::max<uint64_t>(1, bytes / tensor_bytes_)),
        memory_(rounds_.size() * elements_) {
    for (uint32_t tensor = 0; tensor < count(); ++tensor) {
      for (uint64_t i = 0; i < elements_; ++i) data(tensor)[i] = value(tensor, 0, i);
      next_round(tensor);
    }
  }

  uint32_t count() const { return static_cast<uint32_t>(rounds_.size()); }
  uint64_t tensor_bytes() const { return tensor_bytes_; }
  std::vector<TensorDeclaration> declarations() {
    std::vector<TensorDeclaration> all(count());
    for (uint32_t tensor = 0; tensor < count(); ++tensor) {
      all[tensor].tensor = tensor;
      all[tensor].numel = elements_;
      all[tensor].data = reinterpret_cast<std::byte*>(data(tensor));
    }
    return all;
  }

  bool sample_holds(uint32_t tensor) {
    for (uint64_t s = 0; s < kSamples; ++s) {
      if (data(tensor)[sample(s)] != value(tensor, rounds_[tensor], sample(s))) return false;
    }
    return true;
  }
  bool all_holds(uint32_t tensor) {
    if (!sample_holds(tensor)) return false;
    uint64_t s = 0;
    for (uint64_t i = 0; i < elements_; ++i) {
      if (i == sample(s)) {
        s = std::min(s + 1, kSamples - 1);
      } else if (data(tensor)[i] != value(tensor, 0, i)) {
        return false;
      }
    }
    return true;
  }
  void next_round(uint32_t tensor) {
    ++rounds_[tensor];
    for (uint64_t s = 0; s < kSamples; ++s) {
      data(tensor)[sample(s)] = value(tensor, rounds_[tensor], sample(s));
    }
  }

 private:
  static float value(uint32_t tensor, uint32_t round, uint64_t i) {
    const uint64_t mixed =
        (i + (uint64_t{tensor} << 32) + uint64_t{round} * 0x51ed27) * 0x9e3779b97f4a7c15;
    return static_cast<float>(mixed >> 40);
  }
  // The first element, the last, and those between.
  uint64_t sample(uint64_t s) const { return s * (elements_ - 1) / (kSamples - 1); }
  float* data(uint32_t tensor) { return memory_.data() + tensor * elements_; }

  const uint64_t tensor_bytes_;
  const uint64_t elements_;
  std::vector<uint32_t> rounds_;
  std::vector<float> memory_;
};

// A program's channel to the engine, in this process. Outlives the engine's thread, which may look
// at it as long as it runs.
struct Channel {
  explicit Channel(std::shared_ptr<ChannelMemory> memory) : engine(memory), client(memory) {}
  EngineChannel engine;
  ClientChannel client;
};

// The control plane's answers, waited for.
class JobClient {
 public:
  JobClient(Host& host, ControlThread& control) : host_(host), control_(control) {}

  Status open(const Endpoint& server, EngineChannel* channel) {
    OpenJob request;
    request.name = "goodput";
    request.workers = request.servers = 1;
    request.rendezvous = {server};
    request.channels = {channel};
    request.client_job = kClientJob;
    std::promise<Result<OpenedJob>> promise;
    control_.post([&](JobManager& jobs, uint64_t now_ns) {
      host_.send(LaneId(0), command::AttachChannel{channel});
      jobs.open_job(kClient, request, now_ns,
                    [&](Result<OpenedJob> reply) { promise.set_value(std::move(reply)); });
    });
    const Result<OpenedJob> opened = promise.get_future().get();
    if (!opened) return opened.error();
    slot_ = opened->slot;
    chunk_bytes_ = opened->chunk_bytes;
    return {};
  }
  Status declare(const std::vector<TensorDeclaration>& tensors) {
    std::promise<Status> promise;
    control_.post([&](JobManager& jobs, uint64_t now_ns) {
      jobs.declare(kClient, slot_, tensors, now_ns,
                   [&](Status reply) { promise.set_value(std::move(reply)); });
    });
    return promise.get_future().get();
  }
  // The engine lets go of the tensors and of the channel.
  void leave() {
    std::promise<void> promise;
    control_.post([&](JobManager& jobs, uint64_t now_ns) {
      jobs.close_job(kClient, slot_, now_ns, [&, now_ns] {
        host_.jobs().client_gone(kClient, now_ns, [&] { promise.set_value(); });
      });
    });
    promise.get_future().get();
  }
  uint32_t chunk_bytes() const { return chunk_bytes_; }

 private:
  Host& host_;
  ControlThread& control_;
  JobSlot slot_;
  uint32_t chunk_bytes_ = 0;
};

// Keeps every tensor in flight: each is pushed again as soon as its sum is there.
class Program {
 public:
  Program(WorkingSet& set, ClientChannel& channel, const Host& host)
      : set_(set), channel_(channel), host_(host) {}

  Status run(double seconds) {
    for (uint32_t tensor = 0; tensor < set_.count(); ++tensor) {
      const Status status = submit(tensor);
      if (!status) return status;
    }
    Status status = exchange(kWarmUpSeconds);
    const uint64_t done_before = done_;
    const uint64_t frames_before = host_.counters(0).get(Counter::kRxFrames);
    const uint64_t begin_ns = monotonic_ns();
    if (status) status = exchange(seconds);
    taken_s_ = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    frames_ = host_.counters(0).get(Counter::kRxFrames) - frames_before;
    measured_ = done_ - done_before;
    resubmit_ = false;
    while (status && in_flight_ > 0) status = take();
    for (uint32_t tensor = 0; status && tensor < set_.count(); ++tensor) {
      if (!set_.all_holds(tensor)) status = wrong(tensor);
    }
    return status;
  }
  void print(uint32_t chunk_bytes) const {
    std::printf(
        "{\"goodput_bytes_per_s\": %.0f, \"frames\": %lu, \"payload_bytes\": %u, \"tensors\": %u, "
        "\"exchanges\": %lu, \"retransmits\": %lu, \"verified\": true}\n",
        static_cast<double>(measured_ * set_.tensor_bytes()) / taken_s_, frames_, chunk_bytes,
        set_.count(), done_, host_.counters(0).get(Counter::kRetransmits));
  }

 private:
  static Error wrong(uint32_t tensor) {
    return Error(Errc::kProtocol, "tensor " + std::to_string(tensor) + " holds a wrong sum");
  }

  Status submit(uint32_t tensor) {
    if (!channel_.submit({SubmitOp::kPushPull, 0, kClientJob, tensor, tensor + uint64_t{1}})) {
      return Error(Errc::kAgain, "the channel to the engine is full");
    }
    channel_.ring();
    ++in_flight_;
    return {};
  }

  Status exchange(double seconds) {
    const uint64_t until_ns = monotonic_ns() + static_cast<uint64_t>(seconds * 1e9);
    Status status;
    while (status && monotonic_ns() < until_ns) status = take();
    return status;
  }

  // The next completion; sleeps until there is one.
  Status take() {
    Completion completion;
    while (!channel_.pop(completion)) {
      bool rung = true;
      if (channel_.park()) {
        pollfd fd{channel_.client_doorbell(), POLLIN, 0};
        rung = poll(&fd, 1, static_cast<int>(kStallNs / 1'000'000)) > 0;
      }
      channel_.unpark();
      if (!rung) return Error(Errc::kTimedOut, "the exchange hangs");
    }
    --in_flight_;
    ++done_;
    if (completion.status != Errc::kOk) {
      return Error(completion.status,
                   std::string("an exchange failed: ") + name_of(completion.status));
    }
    if (!set_.sample_holds(completion.tensor)) return wrong(completion.tensor);
    if (!resubmit_) return {};
    set_.next_round(completion.tensor);
    return submit(completion.tensor);
  }

  WorkingSet& set_;
  ClientChannel& channel_;
  const Host& host_;
  bool resubmit_ = true;
  uint32_t in_flight_ = 0;
  uint64_t done_ = 0;
  uint64_t measured_ = 0;
  uint64_t frames_ = 0;
  double taken_s_ = 0;
};

Status work(Host& host, ControlThread& control, Channel& channel, const HostOptions& options) {
  const Result<Endpoint> server = Endpoint::parse(options.peer, host.port_info(0).local.port);
  if (!server) return server.error();
  WorkingSet set(options.working_set_bytes);
  JobClient job(host, control);
  Status status = job.open(*server, &channel.engine);
  if (!status) return status;
  status = job.declare(set.declarations());
  Program program(set, channel.client, host);
  if (status) status = program.run(options.seconds);
  if (status) program.print(job.chunk_bytes());
  job.leave();
  return status;
}

Status serve(const Host& host) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  std::printf("{\"ready\": \"%s\"}\n", host.port_info(0).local.to_string().c_str());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  return {};
}

int run(const HostOptions& options) {
  const bool server = options.role == "server";
  if (server) {  // before any thread starts, so that only sigwait sees them
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  }
  const auto memory = ChannelMemory::create(ChannelGeometry{}, false);
  std::optional<Channel> channel;
  if (memory) channel.emplace(*memory);
  Result<std::unique_ptr<Host>> host = make_host(options, server);
  Status status;
  if (!memory) {
    status = memory.error();
  } else if (host) {
    ThreadConfig thread;
    if (options.busy) thread.polling = Polling::kBusy;
    (*host)->start({thread});
    {
      ControlThread control(**host);
      status = server ? serve(**host) : work(**host, control, *channel, options);
    }
    (*host)->stop(kGoodbyeNs);
  } else {
    status = host.error();
  }
  if (status) return 0;
  std::fprintf(stderr, "goodput_host: %s: %s\n", options.role.c_str(),
               status.error().message.c_str());
  return 1;
}

}  // namespace
}  // namespace mercury::goodput

int main(int argc, char** argv) {
  mercury::goodput::HostOptions options;
  CLI::App app("One side of a measurement of Mercury's goodput.");
  mercury::goodput::add_options(app, options.port);
  app.add_option("--role", options.role)->required()->check(CLI::IsMember({"server", "worker"}));
  app.add_option("--peer", options.peer, "worker: the server's ADDRESS[:UDP-PORT]");
  app.add_option("--working-set", options.working_set_bytes, "worker: bytes of tensors")
      ->check(CLI::Range(uint64_t{4096}, mercury::goodput::kLargestWorkingSet));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(0.1, 3600.0));
  app.add_option("--window", options.window_bytes, "bytes in flight per session");
  app.add_flag("--busy", options.busy, "the engine never sleeps");
  CLI11_PARSE(app, argc, argv);
  return mercury::goodput::run(options);
}
