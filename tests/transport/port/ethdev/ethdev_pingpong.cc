// Two of these exchange verified random frames over any DPDK device: the client sends, the server
// sends back what it got, the client compares every byte. Exits 0 if all came back.
//
//   ethdev_pingpong server --device af_packet:veth0 --v4 10.0.0.1/24
//   ethdev_pingpong client --device af_packet:veth1 --v4 10.0.0.2/24 --peer 10.0.0.1:7470
//
// `ethdev_pingpong check --device ...` prints what check_device says, one line each.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transport/port/ethdev/checks.h"
#include "transport/port/ethdev/ethdev_port.h"

namespace {

using mercury::Counter;
using mercury::Endpoint;
using mercury::PathId;
using mercury::RxFrame;
using mercury::TxFrame;
using mercury::ethdev::Device;
using mercury::ethdev::EthdevConfig;
using mercury::ethdev::EthdevPort;
using mercury::ethdev::LocalAddress;

constexpr uint32_t kWindow = 16;
constexpr uint64_t kResendNs = 200'000'000;
constexpr uint32_t kIdlePolls = 64;

std::atomic<bool> stop{false};

struct Options {
  EthdevConfig config;
  bool server = false;
  bool share_payload = false;
  std::vector<Endpoint> peers;
  uint64_t frames = 2000;
  uint32_t seed = 1;
  int limit_seconds = 20;
};

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Bytes of frame `number`: its number, then what a generator makes of it. Every size is visited,
// the largest often.
void fill(std::vector<std::byte>& frame, uint64_t number, uint32_t seed, uint32_t max_bytes) {
  std::mt19937_64 random(number * 1000003 + seed);
  const uint64_t choice = random();
  const auto bytes =
      choice % 4 == 0 ? max_bytes : static_cast<uint32_t>(8 + (choice >> 8) % (max_bytes - 7));
  frame.resize(bytes);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = at == 0 ? number : random();
    std::memcpy(frame.data() + at, &word, std::min<size_t>(8, bytes - at));
  }
}

// Sleeps on the port's own descriptor when nothing happens, as an engine does.
class Idler {
 public:
  explicit Idler(EthdevPort& port) : port_(port) {}
  void progress(bool something) {
    idle_ = something ? 0 : idle_ + 1;
    if (idle_ < kIdlePolls) return;
    idle_ = 0;
    if (!port_.prepare_sleep()) return;
    pollfd wait{port_.wait_fd(), POLLIN, 0};
    if (wait.fd < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // the nap of an idle engine
      return;
    }
    ++sleeps;
    if (::poll(&wait, 1, 50) > 0) ++wakeups;
  }
  uint64_t sleeps = 0;
  uint64_t wakeups = 0;

 private:
  EthdevPort& port_;
  uint32_t idle_ = 0;
};

void report(const char* what, const EthdevPort& port, const mercury::Counters& counters,
            const Idler& idler, uint64_t good, uint64_t resent) {
  std::string text = std::string("{\"what\": \"") + what + "\", \"good\": " + std::to_string(good) +
                     ", \"resent\": " + std::to_string(resent) +
                     ", \"sleeps\": " + std::to_string(idler.sleeps) +
                     ", \"wakeups\": " + std::to_string(idler.wakeups) +
                     ", \"max_udp_payload\": " + std::to_string(port.info().max_udp_payload);
  for (size_t i = 0; i < mercury::kCounterCount; ++i) {
    const auto counter = static_cast<Counter>(i);
    if (counters.get(counter) == 0) continue;
    text += std::string(", \"") + mercury::info_of(counter).name +
            "\": " + std::to_string(counters.get(counter));
  }
  std::printf("%s}\n", text.c_str());
  std::fflush(stdout);
}

// Sends every frame back to whom it came from.
int serve(EthdevPort& port, const mercury::Counters& counters, const Options& options) {
  std::vector<std::pair<Endpoint, PathId>> paths;
  struct Reply {
    std::vector<std::byte> bytes;
    mercury::PayloadPin pin;
  };
  std::vector<Reply> replies(64);
  size_t next = 0;
  uint64_t good = 0;
  uint64_t lost = 0;
  Idler idler(port);
  uint64_t tick_ns = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    const uint64_t now = now_ns();
    if (now - tick_ns > 10'000'000) {
      tick_ns = now;
      port.tick(now);
    }
    RxFrame burst[32];
    const uint32_t count = port.rx_burst(burst, now);
    for (const RxFrame& frame : std::span(burst, count)) {
      auto path = std::ranges::find(paths, frame.source, &std::pair<Endpoint, PathId>::first);
      if (path == paths.end()) {
        const auto opened = port.open_path(frame.source);
        if (!opened) continue;
        path = paths.insert(paths.end(), {frame.source, *opened});
      }
      TxFrame out;
      Reply& reply = replies[next];
      if (port.pin_busy(reply.pin) || !port.tx_alloc(out)) {
        ++lost;
        continue;
      }
      const auto bytes = static_cast<uint32_t>(frame.payload.size());
      if (options.share_payload && bytes > 9) {
        const uint32_t head = 9;  // odd, so that checksums over two pieces are tried
        reply.bytes.assign(frame.payload.begin() + head, frame.payload.end());
        std::memcpy(out.data, frame.payload.data(), head);
        port.tx_send_shared(out, head, path->second, reply.bytes, reply.pin);
        next = (next + 1) % replies.size();
      } else {
        std::memcpy(out.data, frame.payload.data(), bytes);
        port.tx_send(out, path->second, bytes);
      }
      ++good;
    }
    port.rx_release();
    port.tx_flush(now);
    idler.progress(count != 0);
  }
  report("server", port, counters, idler, good, lost);
  return 0;
}

struct Outstanding {
  uint64_t number = 0;
  uint64_t sent_ns = 0;  // 0: not in flight
};

class Client {
 public:
  Client(EthdevPort& port, const mercury::Counters& counters, const Options& options)
      : port_(port), counters_(counters), options_(options), idler_(port) {}

  int run() {
    for (const Endpoint& peer : options_.peers) {
      const auto path = port_.open_path(peer);
      if (!path) {
        std::fprintf(stderr, "open_path: %s\n", path.error().message.c_str());
        return 2;
      }
      paths_.push_back(*path);
    }
    const uint64_t deadline =
        now_ns() + static_cast<uint64_t>(options_.limit_seconds) * 1'000'000'000;
    uint64_t tick_ns = 0;
    while (good_ < options_.frames && !stop.load(std::memory_order_relaxed)) {
      const uint64_t now = now_ns();
      if (now > deadline) break;
      if (now - tick_ns > 10'000'000) {
        tick_ns = now;
        port_.tick(now);
      }
      const bool received = receive(now);
      send(now);
      port_.tx_flush(now);
      idler_.progress(received);
    }
    report("client", port_, counters_, idler_, good_, resent_);
    return good_ == options_.frames && bad_ == 0 ? 0 : 1;
  }

 private:
  uint32_t max_bytes(uint64_t number) const {
    return port_.path_max_payload(paths_[number % paths_.size()]);
  }

  bool receive(uint64_t now) {
    RxFrame burst[32];
    const uint32_t count = port_.rx_burst(burst, now);
    for (const RxFrame& frame : std::span(burst, count)) {
      uint64_t number = 0;
      if (frame.payload.size() >= 8) std::memcpy(&number, frame.payload.data(), 8);
      fill(expected_, number, options_.seed, max_bytes(number));
      if (frame.source != options_.peers[number % paths_.size()] ||
          !std::ranges::equal(frame.payload, expected_)) {
        std::fprintf(stderr, "frame %lu came back wrong: %zu bytes, expected %zu\n",
                     static_cast<unsigned long>(number), frame.payload.size(), expected_.size());
        ++bad_;
        continue;
      }
      for (Outstanding& slot : window_) {
        if (slot.sent_ns == 0 || slot.number != number) continue;
        slot.sent_ns = 0;
        if (++good_ != 1) continue;
        std::printf("{\"what\": \"first\"}\n");  // tests wait for it
        std::fflush(stdout);
      }
    }
    port_.rx_release();
    return count != 0;
  }

  void send(uint64_t now) {
    for (Outstanding& slot : window_) {
      if (slot.sent_ns == 0) {
        if (next_ == options_.frames) continue;
        if (!port_.path_ready(paths_[next_ % paths_.size()])) return;
        slot.number = next_;
      } else if (now - slot.sent_ns < kResendNs) {
        continue;
      }
      TxFrame frame;
      if (!port_.tx_alloc(frame)) return;
      if (slot.sent_ns == 0) {
        ++next_;
      } else {
        ++resent_;
      }
      slot.sent_ns = now;
      fill(expected_, slot.number, options_.seed, max_bytes(slot.number));
      std::memcpy(frame.data, expected_.data(), expected_.size());
      port_.tx_send(frame, paths_[slot.number % paths_.size()],
                    static_cast<uint32_t>(expected_.size()));
    }
  }

  EthdevPort& port_;
  const mercury::Counters& counters_;
  const Options& options_;
  Idler idler_;
  std::vector<PathId> paths_;
  std::vector<std::byte> expected_;
  Outstanding window_[kWindow];
  uint64_t next_ = 0;
  uint64_t good_ = 0;
  uint64_t bad_ = 0;
  uint64_t resent_ = 0;
};

bool parse_address(const std::string& text, std::optional<LocalAddress>& address) {
  const size_t slash = text.find('/');
  const auto ip = mercury::IpAddress::parse(text.substr(0, slash));
  if (!ip || slash == std::string::npos) return false;
  address = LocalAddress{*ip, static_cast<uint8_t>(std::stoi(text.substr(slash + 1))), {}};
  return true;
}

bool parse_option(const std::string& name, const std::string& value, Options& options) {
  if (name == "--device") return mercury::ethdev::parse_device(value, options.config).ok();
  if (name == "--v4") return parse_address(value, options.config.v4);
  if (name == "--v6") return parse_address(value, options.config.v6);
  if (name == "--peer") {
    const auto peer = Endpoint::parse(value, 7470);
    if (peer) options.peers.push_back(*peer);
    return peer.has_value();
  }
  if (name == "--args") {
    options.config.extra_args = value;
    return true;
  }
  const auto number = static_cast<uint32_t>(std::stoul(value));
  if (name == "--frames")
    options.frames = number;
  else if (name == "--seed")
    options.seed = number;
  else if (name == "--limit")
    options.limit_seconds = static_cast<int>(number);
  else if (name == "--mtu")
    options.config.mtu = number;
  else if (name == "--vlan")
    options.config.vlan = static_cast<uint16_t>(number);
  else if (name == "--port")
    options.config.udp_port = static_cast<uint16_t>(number);
  else if (name == "--engines")
    options.config.engines = static_cast<uint16_t>(number);
  else if (name == "--queues")
    options.config.queues = static_cast<uint16_t>(number);
  else if (name == "--shared")
    options.config.shared = number != 0;
  else if (name == "--memif-server")
    options.config.memif.server = number != 0;
  else if (name == "--share-payload")
    options.share_payload = number != 0;
  else
    return false;
  return true;
}

int check(const EthdevConfig& config) {
  for (const auto& check : mercury::ethdev::check_device(config)) {
    std::printf("%s %s: %s [%s]\n", check.ok ? "ok" : "BAD", check.name.c_str(),
                check.message.c_str(), check.fix.c_str());
  }
  return 0;
}

// One engine's share, then what keeps the other engines served until they are done too.
int run_engine(EthdevPort& port, const mercury::Counters& counters, const Options& options,
               std::atomic<int>& running) {
  const int code =
      options.server ? serve(port, counters, options) : Client(port, counters, options).run();
  running.fetch_sub(1);
  while (running.load() > 0 && !stop.load()) {
    port.tick(now_ns());
    RxFrame burst[32];
    port.rx_burst(burst, now_ns());
    port.rx_release();
    port.tx_flush(now_ns());
  }
  return code;
}

// A thread for each engine; the worst of their exit codes.
int run_engines(std::span<const std::unique_ptr<EthdevPort>> ports,
                std::span<const mercury::Counters> counters, const Options& options) {
  std::atomic<int> worst{0};
  std::atomic<int> running{static_cast<int>(ports.size())};
  std::vector<std::thread> threads;
  for (size_t engine = 0; engine < ports.size(); ++engine) {
    threads.emplace_back([&, engine] {
      const int code = run_engine(*ports[engine], counters[engine], options, running);
      if (code != 0) worst.store(code);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return worst.load();
}

int pingpong(const Options& options) {
  const auto on_signal = [](int) { stop.store(true); };
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  const auto device = Device::create(options.config);
  if (!device) {
    std::fprintf(stderr, "%s: %s\n", mercury::name_of(device.error().code),
                 device.error().message.c_str());
    return 2;
  }
  const uint16_t engines = options.config.engines;
  std::vector<mercury::Counters> counters(engines);
  std::vector<std::unique_ptr<EthdevPort>> ports;
  for (uint16_t engine = 0; engine < engines; ++engine) {
    auto port = EthdevPort::open(*device, engine, counters[engine]);
    if (!port) {
      std::fprintf(stderr, "%s\n", port.error().message.c_str());
      return 2;
    }
    ports.push_back(std::move(*port));
  }
  std::printf("{\"what\": \"ready\", \"mtu\": %u, \"queues\": %u, \"local\": \"%s\"}\n",
              (*device)->mtu(), (*device)->queues(), ports[0]->info().local.to_string().c_str());
  std::fflush(stdout);
  return run_engines(ports, counters, options);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc < 2) return 64;
  options.server = std::string(argv[1]) == "server";
  for (int i = 2; i + 1 < argc; i += 2) {
    if (!parse_option(argv[i], argv[i + 1], options)) {
      std::fprintf(stderr, "bad option %s %s\n", argv[i], argv[i + 1]);
      return 64;
    }
  }
  return std::string(argv[1]) == "check" ? check(options.config) : pingpong(options);
}
