// The program of Mercury's line-rate measurement: one worker attached to its host's mercury-stackd
// pushes and pulls tensors that fill a working set, round after round. goodput.py starts the
// daemons.
//
//   MERCURY_SOCKET=/tmp/worker.sock goodput_client --server 10.78.0.1:7470
//
// Prints {"goodput_bytes_per_s": payload of one direction per second, ...}; with --progress also
// "progress": [[monotonic seconds, payload bytes whose sums are back so far], ...],
// and it ends when its input does.
//
// Verified: in every round of every tensor 16 elements, in other places each round, that differ
// from round to round; at the end every element. With one worker the sum equals what was pushed and
// lands where it was pushed from, so this shows wrong bytes and wrong places; that every chunk's
// sum came back is what a completion says.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "shim/client/mercurystack/mercury.hpp"

namespace mercury::goodput {
namespace {

using api::Buffer;
using api::Context;
using api::Expected;
using api::Job;
using api::Status;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kStallMs = 20'000;  // nothing completes for so long: it hangs
constexpr Seconds kWarmUp{0.3};
constexpr Seconds kProgressInterval{0.005};
constexpr uint64_t kSmallestTensorBytes = 4096;
constexpr uint64_t kLargestTensorBytes = 1 << 20;
constexpr uint64_t kTensorsPerWorkingSet = 2;  // at least, so that rounds overlap
constexpr uint64_t kLargestWorkingSet = uint64_t{1} << 30;
constexpr uint64_t kSamples = 16;  // each costs a cache miss, beside engines that share the core

struct Options {
  std::string server;
  std::string job = "goodput";
  std::string secret;  // empty: none
  uint64_t working_set_bytes = 1 << 20;
  double seconds = 2;
  bool progress = false;
};

// The tensors and what they must hold. Integers below 2^24, so that sums are exact.
class WorkingSet {
 public:
  static uint64_t tensor_bytes(uint64_t bytes) {
    return std::clamp(bytes / kTensorsPerWorkingSet, kSmallestTensorBytes, kLargestTensorBytes) /
           4 * 4;
  }
  static uint64_t memory_bytes(uint64_t bytes) {
    return std::max<uint64_t>(1, bytes / tensor_bytes(bytes)) * tensor_bytes(bytes);
  }
  // `memory` holds memory_bytes(bytes).
  WorkingSet(uint64_t bytes, float* memory)
      : tensor_bytes_(tensor_bytes(bytes)),
        elements_(tensor_bytes_ / sizeof(float)),
        rounds_(memory_bytes(bytes) / tensor_bytes_),
        memory_(memory) {
    for (uint32_t tensor = 0; tensor < count(); ++tensor) {
      for (uint64_t i = 0; i < elements_; ++i) data(tensor)[i] = value(tensor, 0, i);
      next_round(tensor);
    }
  }

  uint32_t count() const { return static_cast<uint32_t>(rounds_.size()); }
  uint64_t tensor_bytes() const { return tensor_bytes_; }
  // Memory of Mercury's own, so that the daemon reads and writes it in place.
  std::vector<mercury_tensor_options> declarations() const {
    std::vector<mercury_tensor_options> all;
    for (uint32_t tensor = 0; tensor < count(); ++tensor) {
      mercury_tensor_options& options = all.emplace_back();
      mercury_tensor_options_init(&options, sizeof options);
      options.id = tensor;
      options.numel = elements_;
      options.data = data(tensor);
    }
    return all;
  }

  bool sample_holds(uint32_t tensor) const {
    const uint32_t round = rounds_[tensor];
    for (uint64_t s = 0; s < kSamples; ++s) {
      const uint64_t i = sample(round, s);
      if (data(tensor)[i] != value(tensor, round, i)) return false;
    }
    return true;
  }
  bool all_holds(uint32_t tensor) {
    if (!sample_holds(tensor)) return false;
    restore(tensor);
    for (uint64_t i = 0; i < elements_; ++i) {
      if (data(tensor)[i] != value(tensor, 0, i)) return false;
    }
    return true;
  }
  void next_round(uint32_t tensor) {
    restore(tensor);
    const uint32_t round = ++rounds_[tensor];
    for (uint64_t s = 0; s < kSamples; ++s) {
      const uint64_t i = sample(round, s);
      data(tensor)[i] = value(tensor, round, i);
    }
  }

 private:
  static float value(uint32_t tensor, uint32_t round, uint64_t i) {
    const uint64_t mixed =
        (i + (uint64_t{tensor} << 32) + uint64_t{round} * 0x51ed27) * 0x9e3779b97f4a7c15;
    return static_cast<float>(mixed >> 40);
  }
  // One in each sixteenth of the tensor.
  uint64_t sample(uint32_t round, uint64_t s) const {
    const uint64_t width = elements_ / kSamples;
    return s * width + (round * 0x9e3779b97f4a7c15 >> 32) % width;
  }
  void restore(uint32_t tensor) {
    for (uint64_t s = 0; s < kSamples; ++s) {
      const uint64_t i = sample(rounds_[tensor], s);
      data(tensor)[i] = value(tensor, 0, i);
    }
  }
  float* data(uint32_t tensor) const { return memory_ + tensor * elements_; }

  const uint64_t tensor_bytes_;
  const uint64_t elements_;
  std::vector<uint32_t> rounds_;
  float* const memory_;
};

// Keeps every tensor in flight: each is pushed again as soon as its sum is there. It waits for one
// handle after the other, as a training loop does: within a priority sums arrive in that order.
class PushPullLoop {
 public:
  PushPullLoop(WorkingSet& set, const Job& job, bool until_input_ends)
      : set_(set), job_(job), until_input_ends_(until_input_ends), handles_(set.count()) {}

  int run(double seconds) {
    for (uint32_t tensor = 0; tensor < set_.count(); ++tensor) {
      if (submit(tensor) != 0) return 1;
    }
    if (exchange(kWarmUp) != 0) return 1;
    const uint64_t done_before = done_;
    const Clock::time_point begin = Clock::now();
    if (exchange(Seconds(seconds)) != 0) return 1;
    taken_ = Clock::now() - begin;
    measured_ = done_ - done_before;
    for (uint32_t tensor = 0; tensor < set_.count(); ++tensor) {
      if (take(next_) != 0) return 1;
    }
    for (uint32_t tensor = 0; tensor < set_.count(); ++tensor) {
      if (!set_.all_holds(tensor)) return wrong(tensor);
    }
    return 0;
  }
  void print(bool progress) const {
    std::printf(
        "{\"goodput_bytes_per_s\": %.0f, \"tensors\": %u, \"exchanges\": %lu, \"verified\": true",
        static_cast<double>(measured_ * set_.tensor_bytes()) / taken_.count(), set_.count(), done_);
    if (progress) {
      const char* separator = ", \"progress\": [";
      for (const Progress& point : progress_) {
        std::printf("%s[%.6f, %lu]", separator, Seconds(point.at.time_since_epoch()).count(),
                    point.done * set_.tensor_bytes());
        separator = ", ";
      }
      std::printf("]");
    }
    std::printf("}\n");
  }

 private:
  static int failed(const char* what) {
    std::fprintf(stderr, "goodput_client: %s: %s\n", what, mercury_last_error());
    return 1;
  }
  static int wrong(uint32_t tensor) {
    std::fprintf(stderr, "goodput_client: tensor %u holds a wrong sum\n", tensor);
    return 1;
  }

  bool input_ended() const {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return until_input_ends_ && poll(&input, 1, 0) > 0;
  }

  int submit(uint32_t tensor) {
    const int status =
        mercury_push_pull(job_.get(), tensor, MERCURY_DEFAULT_PRIORITY, &handles_[tensor]);
    return status == 0 ? 0 : failed("mercury_push_pull");
  }

  int exchange(Seconds duration) {
    const Clock::time_point end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(duration);
    while (Clock::now() < end && !input_ended()) {
      const uint32_t tensor = next_;
      if (take(tensor) != 0) return 1;
      set_.next_round(tensor);
      if (submit(tensor) != 0) return 1;
    }
    return 0;
  }

  // Waits for the tensor's sum, and looks at it; the next tensor is due then.
  int take(uint32_t tensor) {
    if (mercury_wait(job_.get(), handles_[tensor], kStallMs) != 0) return failed("mercury_wait");
    if (!set_.sample_holds(tensor)) return wrong(tensor);
    ++done_;
    const Clock::time_point now = Clock::now();
    if (progress_.empty() || now - progress_.back().at >= kProgressInterval) {
      progress_.push_back({now, done_});
    }
    next_ = (tensor + 1) % set_.count();
    return 0;
  }

  struct Progress {
    Clock::time_point at;
    uint64_t done;
  };

  WorkingSet& set_;
  const Job& job_;
  const bool until_input_ends_;
  std::vector<mercury_handle> handles_;
  uint32_t next_ = 0;  // the tensor that was pushed first of all in flight
  uint64_t done_ = 0;
  uint64_t measured_ = 0;
  Seconds taken_{};
  std::vector<Progress> progress_;
};

int fail(const Status& status) {
  std::fprintf(stderr, "goodput_client: %s\n", status.message().c_str());
  return 1;
}

int run(const Options& options) {
  const mercury_attach_options daemon{sizeof daemon, MERCURY_MODE_DAEMON, nullptr, nullptr};
  const Expected<Context> context = Context::attach(&daemon);
  if (!context) return fail(context.status());
  const uint64_t bytes = WorkingSet::memory_bytes(options.working_set_bytes);
  const Expected<Buffer<float>> memory = (*context).alloc<float>(bytes / sizeof(float));
  if (!memory) return fail(memory.status());
  mercury_job_options request;
  mercury_job_options_init(&request, sizeof request);
  request.name = options.job.c_str();
  if (!options.secret.empty()) request.secret = options.secret.c_str();
  request.workers = request.servers = 1;
  request.rendezvous = options.server.c_str();
  const Expected<Job> job = (*context).open_job(request);
  if (!job) return fail(job.status());
  WorkingSet set(options.working_set_bytes, (*memory).data());
  const Status declared = (*job).declare(set.declarations());
  if (!declared) return fail(declared);
  PushPullLoop loop(set, *job, options.progress);
  if (loop.run(options.seconds) != 0) return 1;
  loop.print(options.progress);
  return 0;
}

}  // namespace
}  // namespace mercury::goodput

int main(int argc, char** argv) {
  mercury::goodput::Options options;
  CLI::App app("One worker that measures Mercury's goodput through its host's daemon.");
  app.add_option("--server", options.server, "ADDRESS:PORT of the daemon that sums")->required();
  app.add_option("--job", options.job, "the job's name: several at once need one each");
  app.add_option("--secret", options.secret, "the job's; a benchmark's need not be kept");
  app.add_option("--working-set", options.working_set_bytes, "bytes of tensors")
      ->check(CLI::Range(uint64_t{4096}, mercury::goodput::kLargestWorkingSet));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(0.1, 3600.0));
  app.add_flag("--progress", options.progress,
               "print also when how much was done, and end with the input");
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  return mercury::goodput::run(options);
}
