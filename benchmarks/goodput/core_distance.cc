// How far apart two cores are, which decides much of what two programs on them exchange in a
// second, and which a virtual machine is not told: how long a cache line takes there and back, and
// how fast each computes while the other does too (hyper-threads of one core: little more than
// half).
//
//   core_distance 0 1
//
// Prints {"round_trip_ns": median of several, "both_at_once": speed of each, alone = 1}.
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "apps/command_line.h"
#include "shim/host/clock.h"

namespace {

constexpr int kRepeats = 9;
constexpr uint32_t kRoundTrips = 10'000;
constexpr uint32_t kSteps = 5'000'000;

bool pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  return sched_setaffinity(0, sizeof cores, &cores) == 0;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Of this thread: what else runs on the core takes none of it.
uint64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Four independent chains, as much as a core does at once.
uint64_t compute_ns() {
  const uint64_t begin_ns = cpu_ns();
  std::array<uint64_t, 4> chain{1, 2, 3, 4};
  for (uint32_t i = 0; i < kSteps; ++i) {
    for (uint64_t& link : chain) {
      link += link << 1;
      asm volatile("" : "+r"(link));
    }
  }
  return cpu_ns() - begin_ns;
}

struct alignas(128) Line {
  std::atomic<uint32_t> turn{0};
};

class Pair {
 public:
  explicit Pair(std::array<int, 2> cores) : cores_(cores) {}

  double round_trip_ns() {
    double taken_ns = 0;
    together([&](int side) {
      const uint64_t begin_ns = mercury::monotonic_ns();
      for (uint32_t i = side; i < 2 * kRoundTrips; i += 2) {
        while (line_.turn.load(std::memory_order_acquire) != i) {
        }
        line_.turn.store(i + 1, std::memory_order_release);
      }
      if (side == 0) taken_ns = static_cast<double>(mercury::monotonic_ns() - begin_ns);
    });
    return taken_ns / kRoundTrips;
  }

  double both_at_once() {
    pin(cores_[0]);
    const auto alone_ns = static_cast<double>(compute_ns());
    std::array<double, 2> taken_ns{};
    together([&](int side) { taken_ns[side] = static_cast<double>(compute_ns()); });
    return alone_ns / std::max(taken_ns[0], taken_ns[1]);
  }

 private:
  template <typename F>
  void together(const F& work) {
    line_.turn = 0;
    std::atomic<int> ready{0};
    const auto side = [&](int number) {
      pin(cores_[number]);
      ++ready;
      while (ready < 2) {
      }
      work(number);
    };
    std::thread other(side, 1);
    side(0);
    other.join();
  }

  const std::array<int, 2> cores_;
  Line line_;
};

}  // namespace

int main(int argc, char** argv) {
  std::array<int, 2> cores{0, 1};
  CLI::App app("How far apart two cores are.");
  app.add_option("cores", cores, "two of the machine's")->check(CLI::Range(0, CPU_SETSIZE - 1));
  if (const auto end = mercury::read_command_line(app, argc, argv)) return *end;
  for (const int core : cores) {
    if (pin(core)) continue;
    std::fprintf(stderr, "core_distance: core %d: %s\n", core, std::strerror(errno));
    return 1;
  }
  Pair pair(cores);
  std::vector<double> round_trips_ns;
  std::vector<double> speeds;
  for (int i = 0; i < kRepeats; ++i) {
    round_trips_ns.push_back(pair.round_trip_ns());
    speeds.push_back(pair.both_at_once());
  }
  std::printf("{\"round_trip_ns\": %.0f, \"both_at_once\": %.2f}\n", median(round_trips_ns),
              median(speeds));
  return 0;
}
