// The two ends of the measurements of libzmq, which know nothing of Mercury. Each prints one JSON
// object.
//
//   zeromq_bench reply|request|pull|push ENDPOINT MESSAGES BYTES [TOS [MBIT]]
//
// TOS is what IP frames leave with; push sends MBIT a second, where there is one, and else as fast
// as it can.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "benchmarks/sockets/cpu_time.h"
#include "benchmarks/sockets/pace.h"

namespace {

using mercury::bench::cpu_seconds;
using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

struct Run {
  const char* endpoint = nullptr;
  size_t messages = 0;
  size_t bytes = 0;
  int tos = 0;
  double mbit = 0;
};

zmq::socket_t make_socket(zmq::context_t& context, zmq::socket_type type, const Run& run) {
  zmq::socket_t socket(context, type);
  // 64 MB at a time, or a thousand messages, as by default.
  const int most = run.bytes > 65'536 ? static_cast<int>((64u << 20) / run.bytes) : 1000;
  socket.set(zmq::sockopt::sndhwm, most);
  socket.set(zmq::sockopt::rcvhwm, most);
  socket.set(zmq::sockopt::rcvtimeo, 60'000);
  if (run.tos != 0) socket.set(zmq::sockopt::tos, run.tos);
  return socket;
}

bool reply(const Run& run) {
  zmq::context_t context;
  zmq::socket_t socket = make_socket(context, zmq::socket_type::rep, run);
  socket.bind(run.endpoint);
  zmq::message_t message;
  for (size_t i = 0; i < run.messages; ++i) {
    if (!socket.recv(message)) return false;
    socket.send(message, zmq::send_flags::none);
  }
  std::printf("{\"cpu_s\": %.6f}\n", cpu_seconds());
  return true;
}

bool request(const Run& run) {
  zmq::context_t context;
  zmq::socket_t socket = make_socket(context, zmq::socket_type::req, run);
  socket.connect(run.endpoint);
  const std::vector<std::byte> question(run.bytes);
  std::vector<double> took;
  zmq::message_t answer;
  mercury::bench::Pace pace(run.mbit, run.bytes);
  for (size_t i = 0; i < run.messages; ++i) {
    pace.wait_since_last();
    const auto asked = Clock::now();
    socket.send(zmq::buffer(question), zmq::send_flags::none);
    if (!socket.recv(answer) || answer.size() != run.bytes) return false;
    if (i >= run.messages / 10) took.push_back(seconds(Clock::now() - asked));  // the first warm up
  }
  std::sort(took.begin(), took.end());
  const auto at = [&](double part) {
    return 1e6 * took[static_cast<size_t>(part * static_cast<double>(took.size() - 1))];
  };
  std::printf("{\"p50_us\": %.1f, \"p99_us\": %.1f, \"most_us\": %.1f, \"cpu_s\": %.6f}\n", at(0.5),
              at(0.99), at(1), cpu_seconds());
  return true;
}

bool pull(const Run& run) {
  zmq::context_t context;
  zmq::socket_t socket = make_socket(context, zmq::socket_type::pull, run);
  socket.bind(run.endpoint);
  zmq::message_t message;
  Clock::time_point first;
  for (size_t i = 0; i < run.messages; ++i) {
    if (!socket.recv(message) || message.size() != run.bytes) return false;
    if (i == 0) first = Clock::now();
  }
  std::printf("{\"seconds\": %.6f, \"cpu_s\": %.6f}\n", seconds(Clock::now() - first),
              cpu_seconds());
  return true;
}

bool push(const Run& run) {
  const std::vector<std::byte> bytes(run.bytes);
  {
    zmq::context_t context;  // ends once everything is sent
    zmq::socket_t socket = make_socket(context, zmq::socket_type::push, run);
    socket.connect(run.endpoint);
    mercury::bench::Pace pace(run.mbit, run.bytes);
    for (size_t i = 0; i < run.messages; ++i) {
      socket.send(zmq::buffer(bytes), zmq::send_flags::none);
      pace.wait();
    }
  }
  std::printf("{\"cpu_s\": %.6f}\n", cpu_seconds());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 5 && argc <= 7) {
    const std::string_view side = argv[1];
    const Run run{.endpoint = argv[2],
                  .messages = std::strtoul(argv[3], nullptr, 10),
                  .bytes = std::strtoul(argv[4], nullptr, 10),
                  .tos = argc > 5 ? std::atoi(argv[5]) : 0,
                  .mbit = argc > 6 ? std::atof(argv[6]) : 0};
    if (side == "reply") return reply(run) ? 0 : 1;
    if (side == "request") return request(run) ? 0 : 1;
    if (side == "pull") return pull(run) ? 0 : 1;
    if (side == "push") return push(run) ? 0 : 1;
  }
  std::fprintf(stderr,
               "usage: zeromq_bench reply|request|pull|push ENDPOINT MESSAGES BYTES "
               "[TOS [MBIT]]\n");
  return 2;
}
