// How long the most urgent chunk takes to the server and, as a sum, back, beside tensors of the
// same job that are less so, both ways. One worker, attached to its host's mercury-stackd;
// urgent_wire.py starts the daemons.
//
//   MERCURY_SOCKET=/tmp/worker.sock urgent_client --server 10.77.0.2:7470 --bulk saturated
//
// Prints {"p50_us": .., "p99_us": .., "most_us": ..}: from the call that pushes it until its sum is
// known to be there. One is under way at a time, and the first tenth is left out, as
// socket_bench's request does it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "apps/command_line.h"
#include "benchmarks/sockets/pace.h"
#include "shim/client/mercurystack/mercury.hpp"

namespace mercury::goodput {
namespace {

using api::Buffer;
using api::Context;
using api::Expected;
using api::Job;
using api::Status;
using Clock = std::chrono::steady_clock;

constexpr int kStallMs = 20'000;  // nothing completes for so long: it hangs
constexpr uint32_t kBulkTensors = 8;
constexpr uint16_t kMostUrgent = 0, kLessUrgent = 1000;
constexpr uint32_t kUrgent = kBulkTensors;  // the tensor behind those of the bulk

struct Options {
  std::string server;
  std::string bulk = "none";
  uint64_t bytes = 1024;
  uint64_t block_bytes = 1 << 20;
  uint64_t times = 200;
  double asked_mbit = 0;
};

int failed(const char* what) {
  std::fprintf(stderr, "urgent_client: %s: %s\n", what, mercury_last_error());
  return 1;
}
int fail(const Status& status) {
  std::fprintf(stderr, "urgent_client: %s\n", status.message().c_str());
  return 1;
}

// Keeps its tensors in flight, or pushes one after the other at a rate.
class Bulk {
 public:
  // Megabits a second; 0: as much as goes.
  Bulk(const Job& job, double mbit, uint64_t block_bytes)
      : job_(job), mbit_(mbit), bytes_(block_bytes), thread_([this] { run(); }) {}
  ~Bulk() {
    ended_ = true;
    thread_.join();
  }
  // Returns once a tensor of it has arrived, with others under way; false: it has failed.
  bool flows() const {
    flows_.wait(false);
    return good_;
  }

 private:
  void run() {
    push();
    flows_ = true;
    flows_.notify_all();
  }
  void push() {
    bench::Pace pace(mbit_, bytes_);
    std::vector<mercury_handle> handles(kBulkTensors);
    for (uint64_t i = 0; !ended_ && good_; ++i) {
      mercury_handle& handle = handles[i % kBulkTensors];
      if (i >= kBulkTensors) {
        if (mercury_wait(job_.get(), handle, kStallMs) != 0) {
          good_ = failed("mercury_wait") == 0;
          return;
        }
        flows_ = true;
        flows_.notify_all();
      }
      const auto tensor = static_cast<uint32_t>(i % kBulkTensors);
      if (mercury_push_pull(job_.get(), tensor, kLessUrgent, &handle) != 0) {
        good_ = failed("mercury_push_pull") == 0;
        return;
      }
      pace.wait();
    }
  }

  const Job& job_;
  const double mbit_;
  const uint64_t bytes_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> good_{true};
  std::atomic<bool> flows_{false};
  std::thread thread_;
};

int ask(const Job& job, const Options& options, const Bulk* bulk) {
  std::vector<double> took_us;
  if (bulk != nullptr && !bulk->flows()) return 1;
  bench::Pace pace(options.asked_mbit, options.bytes);
  for (uint64_t i = 0; i < options.times; ++i) {
    pace.wait_since_last();
    const auto asked = Clock::now();
    mercury_handle handle = 0;
    if (mercury_push_pull(job.get(), kUrgent, kMostUrgent, &handle) != 0) return failed("push");
    if (mercury_wait(job.get(), handle, kStallMs) != 0) return failed("mercury_wait");
    const std::chrono::duration<double, std::micro> took = Clock::now() - asked;
    if (i >= options.times / 10) took_us.push_back(took.count());
  }
  if (bulk != nullptr && !bulk->flows()) return 1;
  std::sort(took_us.begin(), took_us.end());
  const auto at = [&](double part) {
    return took_us[static_cast<size_t>(part * static_cast<double>(took_us.size() - 1))];
  };
  std::printf("{\"p50_us\": %.1f, \"p99_us\": %.1f, \"most_us\": %.1f}\n", at(0.5), at(0.99),
              at(1));
  return 0;
}

mercury_tensor_options tensor(uint32_t id, float* data, uint64_t bytes) {
  mercury_tensor_options options;
  mercury_tensor_options_init(&options, sizeof options);
  options.id = id;
  options.numel = bytes / sizeof(float);
  options.data = data;
  return options;
}

int run(const Options& options) {
  const mercury_attach_options daemon{sizeof daemon, MERCURY_MODE_DAEMON, nullptr, nullptr};
  const Expected<Context> context = Context::attach(&daemon);
  if (!context) return fail(context.status());
  const uint64_t block = options.block_bytes / sizeof(float);
  const Expected<Buffer<float>> memory =
      (*context).alloc<float>(kBulkTensors * block + options.bytes / sizeof(float));
  if (!memory) return fail(memory.status());
  mercury_job_options request;
  mercury_job_options_init(&request, sizeof request);
  request.name = "urgent";
  request.workers = request.servers = 1;
  request.rendezvous = options.server.c_str();
  const Expected<Job> job = (*context).open_job(request);
  if (!job) return fail(job.status());
  std::vector<mercury_tensor_options> tensors;
  for (uint32_t i = 0; i < kBulkTensors; ++i) {
    tensors.push_back(tensor(i, (*memory).data() + i * block, options.block_bytes));
  }
  tensors.push_back(tensor(kUrgent, (*memory).data() + kBulkTensors * block, options.bytes));
  const Status declared = (*job).declare(tensors);
  if (!declared) return fail(declared);
  if (options.bulk == "none") return ask(*job, options, nullptr);
  const Bulk bulk(*job, options.bulk == "saturated" ? 0 : std::stod(options.bulk),
                  options.block_bytes);
  return ask(*job, options, &bulk);
}

}  // namespace
}  // namespace mercury::goodput

int main(int argc, char** argv) {
  mercury::goodput::Options options;
  CLI::App app("One worker that measures how long the most urgent chunk takes.");
  app.add_option("--server", options.server, "ADDRESS:PORT of the daemon that sums")->required();
  app.add_option("--bulk", options.bulk, "less urgent tensors: none, saturated, or Mbit/s")
      ->check(CLI::IsMember({"none", "saturated"}) | CLI::PositiveNumber);
  app.add_option("--bytes", options.bytes, "of the urgent tensor, which is one frame")
      ->check(CLI::Range(4, 1024));
  app.add_option("--block", options.block_bytes, "bytes of a tensor of the bulk")
      ->check(CLI::Range(4096, 1 << 26));
  app.add_option("--asked", options.asked_mbit, "Mbit/s of urgent tensors at most; 0: no bound");
  app.add_option("--times", options.times)->check(CLI::Range(10, 1'000'000));
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  return mercury::goodput::run(options);
}
