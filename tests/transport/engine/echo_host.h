// A host of the echo service over any port: an engine, and the little control plane that it needs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/engine/echo_service.h"
#include "transport/engine/engine.h"

namespace mercury::echo {

template <class P>
class EchoHost {
 public:
  using Engine = mercury::Engine<P, EchoService>;
  using Command = EchoService::Command;
  using Event = EchoService::Event;

  EchoHost(std::unique_ptr<Counters> counters_, std::unique_ptr<P> port_, EngineConfig config,
           const StreamConfig& streams)
      : EchoHost(std::move(counters_), std::move(port_), config, streams,
                 Engine::CommandRing::create(1024), Engine::EventRing::create(1024)) {}

  uint32_t poll(uint64_t now_ns) {
    return poll(now_ns, [now_ns] { return now_ns; });
  }
  template <class Clock>
  uint32_t poll(uint64_t now_ns, Clock clock) {
    const uint32_t work = engine.poll_once(now_ns, clock);
    std::unique_ptr<Event> event;
    while (events_.pop(event)) std::visit([this](const auto& one) { on_event(one); }, *event);
    return work;
  }
  void send(Command command) {
    EXPECT_TRUE(commands_.push(std::make_unique<Command>(std::move(command))));
  }
  void connect(Token token, const Endpoint& remote, uint32_t offered = wire::kFeatureStreams) {
    wire::Hello hello;
    hello.kind = wire::SessionKind::kData;
    hello.features = offered;
    hello.job = "echo";  // the service's name: the session belongs to no job
    hello.nonce[0] = static_cast<uint8_t>(token.value);
    send(command::Connect{.token = token, .remote = remote, .hello = hello, .key = key});
  }

  std::unique_ptr<Counters> counters;
  EchoService service;
  std::unique_ptr<P> port;
  Engine engine;
  wire::Key key{1, 2, 3};                                  // the service's own
  uint32_t features = wire::kFeatureStreams;               // in answers
  std::function<bool(const event::HelloReceived&)> holds;  // HELLOs that get no answer
  std::map<Token, Errc> closed;                            // sessions, by token
  std::map<Token, std::string> closed_text;
  std::map<Token, Endpoint> moved;  // sessions: where their peer is now
  std::vector<Token> opened;
  std::vector<EchoDone> done;
  uint64_t next_token = 1000;

 private:
  using Commands =
      std::pair<typename Engine::CommandRing::Producer, typename Engine::CommandRing::Consumer>;
  using Events =
      std::pair<typename Engine::EventRing::Producer, typename Engine::EventRing::Consumer>;
  EchoHost(std::unique_ptr<Counters> counters_, std::unique_ptr<P> port_, EngineConfig config,
           const StreamConfig& streams, Commands commands, Events events)
      : counters(std::move(counters_)),
        port(std::move(port_)),
        engine(*port, service, config, *counters, std::move(commands.second),
               std::move(events.first)),
        commands_(std::move(commands.first)),
        events_(std::move(events.second)) {
    service.config = streams;
  }

  void on_event(const event::HelloReceived& hello) {
    EXPECT_EQ(hello.body.job, "echo");
    if (holds && holds(hello)) return;
    wire::HelloAck answer;
    answer.features = features;
    answer.nonce[0] = static_cast<uint8_t>(next_token);
    send(command::Accept{
        .hello = hello.hello, .token = Token(next_token++), .answer = answer, .key = key});
  }
  void on_event(const event::SessionOpened& session) { opened.push_back(session.token); }
  void on_event(const event::SessionClosed& session) {
    closed[session.token] = session.code;
    closed_text[session.token] = session.text;
  }
  void on_event(const event::SessionMoved& session) { moved[session.token] = session.remote; }
  void on_event(const EchoDone& one) { done.push_back(one); }
  template <class Other>
  void on_event(const Other&) {}

  typename Engine::CommandRing::Producer commands_;
  typename Engine::EventRing::Consumer events_;
};

}  // namespace mercury::echo
