// Hosts of a service of datagrams that knows neither streams nor tensors, in sessions of no job, on
// a simulated network.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "transport/engine/engine.h"
#include "transport/port/port_decorator.h"
#include "transport/port/sim/sim_port.h"
#include "transport/wire/crc32c.h"

namespace mercury::post {

inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kSecond = 1'000 * kMs;
inline constexpr Token kToken = 7;

struct Post {
  Token token;
  uint32_t number = 0;
  uint32_t bytes = 0;
};

class PostService {
 public:
  using Command = SessionCommandsAnd<Post>;
  using Event = SessionEventsAnd<>;

  // The payload of datagram n: its number in every byte.
  void on_command(const Post& post, SessionHost& host) {
    ++posted;
    if (const auto claimed = host.claim(post.token)) {
      session = *claimed;
      waiting.push_back(post);
    }
  }
  bool wants_to_send() const noexcept { return !waiting.empty() && !blocked; }
  bool next(OutgoingDatagram& out) noexcept {
    if (!wants_to_send()) return false;
    const Post post = waiting.front();
    waiting.pop_front();
    payload_.assign(post.bytes, static_cast<std::byte>(post.number));
    out.session = session;
    out.job = takes_turns ? JobSlot(static_cast<uint16_t>(post.number % 2)) : kNoJob;
    out.header.type = wire::FrameType::kDatagram1;
    out.header.flags = 0;
    out.header.words = {post.number, post.bytes, 0};
    out.header.priority = overtakes && post.number % 2 == 0 ? 2 : 3;
    out.payload = payload_;
    out.pin = nullptr;
    out.tag = SentTag(out.header.type, 0, post.number, post.bytes, 0);
    return true;
  }
  void on_acked(SessionSlot, const SentTag& tag) noexcept { acked.insert(tag.word0()); }
  void on_lost(SessionSlot, const SentTag& tag) noexcept {
    ++lost;
    if (sends_again) waiting.push_back({kToken, tag.word0(), tag.word1()});
  }
  Taken on_datagram(SessionSlot, const wire::Header& header, std::span<const std::byte> payload,
                    uint64_t) noexcept {
    if (wire::crc32c(payload) != header.payload_crc) return Taken::kNo;
    EXPECT_EQ(header.type, wire::FrameType::kDatagram1);
    EXPECT_EQ(header.words[1], payload.size());
    for (const std::byte byte : payload) EXPECT_EQ(byte, static_cast<std::byte>(header.words[0]));
    ++arrived[header.words[0]];
    return Taken::kYes;
  }
  void block(SessionSlot) noexcept { blocked = true; }
  void unblock(SessionSlot) noexcept { blocked = false; }
  void charge(JobSlot, uint32_t bytes) noexcept { charged_bytes += bytes; }
  bool awaits_nic() noexcept { return false; }
  uint32_t poll(uint64_t) noexcept { return 0; }
  uint64_t next_deadline_ns() noexcept { return kNever; }
  void forget(SessionSlot) { waiting.clear(); }
  std::optional<Event> take_event() { return std::nullopt; }

  SessionSlot session;
  std::deque<Post> waiting;
  bool blocked = true;
  bool sends_again = true;
  bool overtakes = false;    // each second datagram the one before it
  bool takes_turns = false;  // each datagram is another job's than the one before it
  uint32_t posted = 0;
  uint32_t lost = 0;
  uint64_t charged_bytes = 0;
  std::set<uint32_t> acked;
  std::map<uint32_t, uint32_t> arrived;  // how often

 private:
  std::vector<std::byte> payload_;
};
static_assert(Service<PostService> && !StreamService<PostService>);

// Counts its paths and what each flush has, and may refuse to open some.
class CountedPort : public PortDecorator<sim::SimPort> {
 public:
  using PortDecorator::PortDecorator;
  Result<PathId> open_path(const Endpoint& remote) { return note(decorated().open_path(remote)); }
  Result<PathId> open_path_from(PathId path, uint16_t source) {
    if (refused.contains(source)) return Error(Errc::kNotFound, "the test refuses this port");
    return note(decorated().open_path_from(path, source));
  }
  void tx_send(TxFrame& frame, PathId path, uint32_t bytes) noexcept {
    ++unflushed;
    decorated().tx_send(frame, path, bytes);
  }
  void tx_flush(uint64_t now_ns) noexcept {
    flushes += unflushed > 0 ? 1 : 0;
    most_flushed = std::max(most_flushed, unflushed);
    unflushed = 0;
    decorated().tx_flush(now_ns);
  }
  void close_path(PathId path) {
    open_paths.erase(path.value);
    decorated().close_path(path);
  }

  std::set<uint32_t> open_paths;
  std::set<uint16_t> refused;  // source ports, from 0 on
  uint32_t unflushed = 0;
  uint32_t flushes = 0;  // that had frames
  uint32_t most_flushed = 0;

 private:
  Result<PathId> note(Result<PathId> path) {
    if (path) open_paths.insert(path->value);
    return path;
  }
};

class PostHost {
 public:
  using Engine = mercury::Engine<CountedPort, PostService>;

  PostHost(sim::SimNetwork& network, sim::HostId id, uint8_t number,
           const EngineConfig& config = {}, const sim::SimPortConfig& port_config = {})
      : PostHost(network, id, number, with_seed(config, number), port_config, Rings()) {}
  static Endpoint at(uint8_t number) { return {IpAddress::v4(10, 0, 0, number), 7470}; }
  uint32_t poll(uint64_t now_ns) {
    const uint32_t work = engine.poll_once(now_ns);
    std::unique_ptr<PostService::Event> event;
    while (events_.pop(event)) take(*event);
    return work;
  }
  void send(PostService::Command command) {
    EXPECT_TRUE(commands_.push(std::make_unique<PostService::Command>(std::move(command))));
  }
  void connect(const Endpoint& remote) {
    command::Connect connect{.token = kToken, .remote = remote};
    connect.hello.kind = wire::SessionKind::kData;
    connect.hello.job = "post";
    connect.hello.features = features;
    send(connect);
  }

  Counters counters;
  PostService service;
  std::unique_ptr<CountedPort> port;
  Engine engine;
  uint32_t features = 0;
  bool open = false;
  std::optional<event::SessionClosed> closed;

 private:
  struct Rings {
    decltype(Engine::CommandRing::create(1)) commands = Engine::CommandRing::create(64);
    decltype(Engine::EventRing::create(1)) events = Engine::EventRing::create(64);
  };
  static EngineConfig with_seed(EngineConfig config, uint8_t number) {
    config.session_seed = number;
    return config;
  }
  static std::unique_ptr<CountedPort> make_port(sim::SimNetwork& network, sim::HostId id,
                                                uint8_t number, sim::SimPortConfig config,
                                                Counters& counters) {
    config.counters = &counters;
    auto made = sim::SimPort::create(network, id, at(number), config);
    return made ? std::make_unique<CountedPort>(std::move(*made)) : nullptr;
  }
  PostHost(sim::SimNetwork& network, sim::HostId id, uint8_t number, const EngineConfig& config,
           const sim::SimPortConfig& port_config, Rings rings)
      : port(make_port(network, id, number, port_config, counters)),
        engine(*port, service, config, counters, std::move(rings.commands.second),
               std::move(rings.events.first)),
        commands_(std::move(rings.commands.first)),
        events_(std::move(rings.events.second)) {}

  void take(const PostService::Event& event) {
    if (const auto* hello = std::get_if<event::HelloReceived>(&event)) {
      wire::HelloAck answer;
      answer.features = features;
      const Token token(kToken.value + accepted_++);
      send(command::Accept{.hello = hello->hello, .token = token, .answer = answer});
    } else if (std::get_if<event::SessionOpened>(&event) != nullptr) {
      open = true;
    } else if (const auto* end = std::get_if<event::SessionClosed>(&event)) {
      closed = *end;
    }
  }

  uint32_t accepted_ = 0;
  Engine::CommandRing::Producer commands_;
  Engine::EventRing::Consumer events_;
};

struct Lab {
  explicit Lab(const sim::Faults& faults = {}, uint64_t seed = 1)
      : Lab(config(faults, seed), EngineConfig(), sim::SimPortConfig()) {}
  Lab(const sim::NetworkConfig& config, const EngineConfig& engine, const sim::SimPortConfig& port)
      : network(config) {
    for (uint8_t i = 1; i <= 2; ++i) add(network.add_host(), engine, port);
  }
  // Without hosts, which are to be added.
  explicit Lab(const sim::NetworkConfig& config) : network(config) {}
  void add(sim::HostId id, const EngineConfig& engine, const sim::SimPortConfig& port) {
    const auto number = static_cast<uint8_t>(hosts.size() + 1);
    hosts.push_back(std::make_unique<PostHost>(network, id, number, engine, port));
  }
  static sim::NetworkConfig config(const sim::Faults& faults, uint64_t seed) {
    sim::NetworkConfig config;
    config.seed = seed;
    config.host_link.faults = faults;
    return config;
  }
  PostHost& a() { return *hosts[0]; }
  PostHost& b() { return *hosts[1]; }

  template <class F>
  bool run(F done, uint64_t limit_ns = 60 * kSecond) {
    const uint64_t end_ns = network.now_ns() + limit_ns;
    for (;;) {
      for (bool work = true; work;) {
        work = false;
        for (auto& host : hosts) work = host->poll(network.now_ns()) > 0 || work;
      }
      if (done()) return true;
      uint64_t next_ns = network.next_event_ns();
      for (auto& host : hosts) next_ns = std::min(next_ns, host->engine.next_deadline_ns());
      next_ns = std::max(next_ns, network.now_ns() + 1);
      if (next_ns > end_ns) return false;
      network.advance_to(next_ns);
    }
  }
  bool connect(uint32_t features = 0) {
    for (auto& host : hosts) host->features = features;
    a().connect(b().port->info().local);
    return run([this] { return a().open && b().open; });
  }
  void run_for(uint64_t ns) {
    (void)run([] { return false; }, ns);
  }

  sim::SimNetwork network;
  std::vector<std::unique_ptr<PostHost>> hosts;
};

}  // namespace mercury::post
