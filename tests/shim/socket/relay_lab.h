// Two hosts whose engines carry sockets' relays alone, over the simulated network, and the little
// control plane that they need. Programs are this test: it has their ends of the pairs.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "shim/socket/relay/socket_relay.h"
#include "transport/engine/engine.h"
#include "transport/port/sim/sim_port.h"

namespace mercury {

inline constexpr uint64_t kMs = 1'000'000;

// A program's end, which does not block.
struct ProgramEnd {
  UniqueFd fd;

  // Returns what was taken.
  size_t write(std::span<const std::byte> bytes) const {
    const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return sent < 0 ? 0 : static_cast<size_t>(sent);
  }
  size_t write(std::string_view text) const { return write(std::as_bytes(std::span(text))); }
  // What is there; `ended` when nothing more comes.
  std::vector<std::byte> read() {
    static std::array<std::byte, 64 * 1024> buffer;
    const ssize_t got = recv(fd.get(), buffer.data(), buffer.size(), 0);
    ended = ended || got == 0;
    return {buffer.begin(), buffer.begin() + std::max<ssize_t>(got, 0)};
  }
  std::string read_text() {
    const std::vector<std::byte> bytes = read();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool ended = false;
};

inline std::pair<ProgramEnd, UniqueFd> make_pair_of_ends() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {ProgramEnd{UniqueFd(ends[0])}, UniqueFd(ends[1])};
}

// The relay, on whose engine a test may open streams of its own, as a hostile peer would.
class OpenRelay : public SocketRelay {
 public:
  using SocketRelay::SocketRelay;
  void attach(StreamHost& host) {
    host_ = &host;
    SocketRelay::attach(host);
  }
  uint32_t poll(uint64_t now_ns) noexcept {
    if (once) std::exchange(once, nullptr)(*host_);
    return SocketRelay::poll(now_ns);
  }
  std::function<void(StreamHost&)> once;  // in the next pass

 private:
  StreamHost* host_ = nullptr;
};

class RelayHost {
 public:
  using Engine = mercury::Engine<sim::SimPort, OpenRelay>;
  using Commands = std::pair<Engine::CommandRing::Producer, Engine::CommandRing::Consumer>;
  using Events = std::pair<Engine::EventRing::Producer, Engine::EventRing::Consumer>;

  RelayHost(sim::SimNetwork& network, uint8_t number, const RelayConfig& config)
      : RelayHost(network, number, config, Engine::CommandRing::create(65536),
                  Engine::EventRing::create(65536)) {}

  uint32_t poll(uint64_t now_ns) {
    const uint32_t work = engine.poll_once(now_ns);
    std::unique_ptr<SocketEvent> event;
    while (events_.pop(event)) std::visit([this](auto& one) { on_event(one); }, *event);
    return work;
  }
  void send(SocketCommand command) {
    EXPECT_TRUE(commands_.push(std::make_unique<SocketCommand>(std::move(command))));
  }
  void connect(Token token, const Endpoint& remote) {
    wire::Hello hello;
    hello.kind = wire::SessionKind::kData;
    hello.features = wire::kFeatureStreams;
    hello.job = kSocketService;
    hello.nonce[0] = static_cast<uint8_t>(token.value);
    send(command::Connect{.token = token, .remote = remote, .hello = hello});
  }
  // Asks for a connection; the program's end of it.
  ProgramEnd open(Token token, sockets::ConnectionId id) {
    auto [program, end] = make_pair_of_ends();
    sockets::Preamble preamble;
    preamble.source = {IpAddress::v4(10, 0, 0, 1), 40000};
    preamble.destination = {IpAddress::v4(10, 0, 0, 2), 80};
    send(command::OpenConnection{token, id, preamble, std::move(end)});
    return std::move(program);
  }

  const sim::HostId host;
  const std::unique_ptr<Counters> counters = std::make_unique<Counters>();
  OpenRelay relay;
  std::unique_ptr<sim::SimPort> port;
  Engine engine;
  // What it answers when it is asked; accepted ones get these numbers.
  sockets::Answer answer = sockets::Answer::kAccepted;
  bool answers = true;
  sockets::ConnectionId next_id = 1000;
  std::vector<event::ConnectionAsked> asked;
  std::map<sockets::ConnectionId, ProgramEnd> accepted;
  std::map<sockets::ConnectionId, sockets::Answer> answered;
  std::map<sockets::ConnectionId, Errc> ended;
  std::vector<uint64_t> asked_ended;
  std::vector<event::ConnectionDescribed> described;
  std::map<Token, Errc> closed;  // sessions
  std::vector<Token> opened;
  uint64_t next_token = 100;

  void answer_asked(uint64_t number, sockets::Answer word) {
    if (word != sockets::Answer::kAccepted) {
      send(command::AnswerConnection{number, word, 0, 0, UniqueFd()});
      return;
    }
    auto [program, end] = make_pair_of_ends();
    send(command::AnswerConnection{number, word, next_id, 0, std::move(end)});
    accepted.emplace(next_id++, std::move(program));
  }

 private:
  RelayHost(sim::SimNetwork& network, uint8_t number, const RelayConfig& config, Commands commands,
            Events events)
      : host(network.add_host()),
        relay(config, *counters),
        port(make_port(network, host, number, *counters)),
        engine(*port, relay, engine_config(number), *counters, std::move(commands.second),
               std::move(events.first)),
        commands_(std::move(commands.first)),
        events_(std::move(events.second)) {}
  static std::unique_ptr<sim::SimPort> make_port(sim::SimNetwork& network, sim::HostId host,
                                                 uint8_t number, Counters& counters) {
    sim::SimPortConfig config;
    config.counters = &counters;
    auto port =
        sim::SimPort::create(network, host, {IpAddress::v4(10, 0, 0, number), 7470}, config);
    return std::move(*port);
  }
  static EngineConfig engine_config(uint8_t number) {
    EngineConfig config;
    config.session_seed = number;
    config.session.peer_timeout_ns = 2'000 * kMs;
    return config;
  }

  void on_event(const event::HelloReceived& hello) {
    EXPECT_EQ(hello.body.job, kSocketService);
    wire::HelloAck ack;
    ack.features = wire::kFeatureStreams;
    ack.nonce[0] = static_cast<uint8_t>(next_token);
    send(command::Accept{.hello = hello.hello, .token = Token(next_token++), .answer = ack});
  }
  void on_event(const event::SessionOpened& session) { opened.push_back(session.token); }
  void on_event(const event::SessionClosed& session) { closed[session.token] = session.code; }
  void on_event(const event::ConnectionAsked& one) {
    asked.push_back(one);
    if (answers) answer_asked(one.asked, answer);
  }
  void on_event(const event::ConnectionAnswered& one) {
    EXPECT_TRUE(answered.emplace(one.id, one.answer).second) << "answered twice";
  }
  void on_event(const event::ConnectionEnded& one) {
    if (one.asked != 0) return asked_ended.push_back(one.asked);
    EXPECT_TRUE(ended.emplace(one.id, one.code).second) << "ended twice";
  }
  void on_event(const event::ConnectionDescribed& one) { described.push_back(one); }
  template <class Other>
  void on_event(const Other&) {}

  Engine::CommandRing::Producer commands_;
  Engine::EventRing::Consumer events_;
};

struct RelayLab {
  static constexpr Token kToken = 7;

  explicit RelayLab(uint64_t seed, const RelayConfig& config = {},
                    uint64_t delay_ns = sim::LinkConfig().delay_ns)
      : network(config_of(seed, delay_ns)) {
    for (uint8_t i = 1; i <= 2; ++i) {
      hosts.push_back(std::make_unique<RelayHost>(network, i, config));
    }
    a().connect(kToken, b().port->info().local);
    EXPECT_TRUE(run([this] { return !a().opened.empty(); }));
  }
  RelayHost& a() { return *hosts[0]; }
  RelayHost& b() { return *hosts[1]; }

  // Until `done`, which is asked at every moment, and may write and read.
  template <class Done>
  bool run(Done done, uint64_t limit_ns = 60'000 * kMs) {
    const uint64_t end = network.now_ns() + limit_ns;
    while (network.now_ns() < end) {
      for (bool work = true; work;) {
        work = false;
        for (auto& host : hosts) work = host->poll(network.now_ns()) > 0 || work;
      }
      if (done()) return true;
      // What `done` has written or read is looked at soon, as an engine that wakes would.
      uint64_t next = std::min(network.next_event_ns(), network.now_ns() + 200'000);
      for (auto& host : hosts) next = std::min(next, host->engine.next_deadline_ns());
      network.advance_to(std::min(end, std::max(next, network.now_ns() + 1)));
    }
    return false;
  }
  void run_for(uint64_t ns) {
    run([] { return false; }, ns);
  }
  // A connection that b has accepted: the programs' ends.
  std::pair<ProgramEnd, ProgramEnd> connected(sockets::ConnectionId id = 1) {
    const size_t before = b().accepted.size();
    ProgramEnd program = a().open(kToken, id);
    EXPECT_TRUE(run([&] { return a().answered.contains(id); }));
    EXPECT_EQ(a().answered[id], sockets::Answer::kAccepted);
    EXPECT_EQ(b().accepted.size(), before + 1);
    auto last = std::prev(b().accepted.end());
    last_id = last->first;
    ProgramEnd other = std::move(last->second);
    b().accepted.erase(last);
    return {std::move(program), std::move(other)};
  }
  bool empty() { return a().relay.connection_count() == 0 && b().relay.connection_count() == 0; }

  sim::SimNetwork network;
  std::vector<std::unique_ptr<RelayHost>> hosts;
  sockets::ConnectionId last_id = 0;  // b's, of the last that was connected

 private:
  static sim::NetworkConfig config_of(uint64_t seed, uint64_t delay_ns) {
    sim::NetworkConfig config;
    config.seed = seed;
    config.host_link.delay_ns = delay_ns;
    return config;
  }
};

}  // namespace mercury
