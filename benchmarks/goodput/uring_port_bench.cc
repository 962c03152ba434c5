// How many frames a second the uring port moves over loopback, sender and receiver each on a thread
// of its own, and how many where they go to several peers in turn, as a sum does. Frames that a
// receiver's socket drops are not counted: what is printed arrived.
//
//   build/benchmarks/goodput/uring_port_bench [--seconds PER_ROW]
#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "apps/command_line.h"
#include "transport/port/uring/uring_port.h"

namespace {

using mercury::Counters;
using mercury::Endpoint;
using mercury::PathId;
using mercury::RxFrame;
using mercury::TxFrame;
using mercury::uring::UringPort;

std::unique_ptr<UringPort> open_port(Counters& counters) {
  auto port = UringPort::create({.local = *Endpoint::parse("127.0.0.1:0")}, counters);
  if (port) return std::move(*port);
  std::fprintf(stderr, "%s\n", port.error().message.c_str());
  std::exit(1);
}

void send_until(UringPort& port, const std::vector<PathId>& paths, uint32_t bytes,
                const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    TxFrame frame;
    for (uint32_t i = 0; i < 64 && port.tx_alloc(frame); ++i) {
      // A header; the payload is whatever is there.
      std::memset(frame.data, static_cast<int>(i), 64);
      port.tx_send(frame, paths[i % paths.size()], bytes);
    }
    port.tx_flush(0);
  }
}

// Frames received in `seconds`.
uint64_t measure(uint32_t bytes, uint32_t peers, double seconds) {
  Counters sender_counters, receiver_counters;
  const auto sender = open_port(sender_counters);
  std::vector<std::unique_ptr<UringPort>> receivers;
  std::vector<PathId> paths;
  for (uint32_t peer = 0; peer < peers; ++peer) {
    receivers.push_back(open_port(receiver_counters));
    paths.push_back(*sender->open_path(receivers.back()->info().local));
  }
  std::atomic<bool> stop = false;
  std::thread thread([&] { send_until(*sender, paths, bytes, stop); });
  uint64_t frames = 0;
  std::array<RxFrame, 64> burst;
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                       std::chrono::duration<double>(seconds));
  while (std::chrono::steady_clock::now() < end) {
    for (const auto& receiver : receivers) {
      frames += receiver->rx_burst(burst, 0);
      receiver->rx_release();
      receiver->tx_flush(0);
    }
  }
  stop = true;
  thread.join();
  return frames;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Frames per second of the io_uring port over loopback");
  double seconds = 2;
  app.add_option("--seconds", seconds, "per row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  std::printf("uring port, loopback, one thread a side\n%10s %6s %12s %10s\n", "payload B", "peers",
              "Mframes/s", "Gb/s");
  const auto row = [&](uint32_t bytes, uint32_t peers) {
    const double rate = static_cast<double>(measure(bytes, peers, seconds)) / seconds;
    std::printf("%10u %6u %12.3f %10.2f\n", bytes, peers, rate / 1e6, rate * bytes * 8 / 1e9);
  };
  for (const uint32_t bytes : {64U, 512U, 1448U, 4096U, 8972U}) row(bytes, 1);
  for (const uint32_t bytes : {1448U, 8972U}) {
    for (const uint32_t peers : {2U, 4U, 8U}) row(bytes, peers);
  }
}
