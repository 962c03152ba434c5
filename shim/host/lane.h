// One engine with all that belongs to it: port, services, counters, and its rings to the control
// plane. Without a thread: a LaneThread runs it, or the simulator does.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <tuple>
#include <utility>

#include "shim/exchange/gradient_exchange.h"
#include "shim/socket/relay/socket_relay.h"
#include "transport/base/counters.h"
#include "transport/base/pass_times.h"
#include "transport/base/spsc_ring.h"
#include "transport/engine/engine.h"
#include "transport/engine/service_pair.h"

namespace mercury {

struct LaneConfig {
  EngineConfig engine;
  ExchangeConfig exchange;
  RelayConfig sockets;
  // Commands on their way to the engine, and as many events from it: a power of two.
  size_t control_ring = 1024;
};

// What every engine of a host carries: gradients in datagrams, programs' sockets in streams.
using HostServices = ServicePair<GradientExchange, SocketRelay>;
using HostCommand = HostServices::Command;
using HostEvent = HostServices::Event;

using CommandRing = SpscRing<std::unique_ptr<HostCommand>>;
using EventRing = SpscRing<std::unique_ptr<HostEvent>>;

template <Port P>
class Lane {
 public:
  // `counters` is the port's too, and so made before it.
  Lane(std::unique_ptr<Counters> counters, std::unique_ptr<P> port, const LaneConfig& config)
      : Lane(std::move(counters), std::move(port), config, CommandRing::create(config.control_ring),
             EventRing::create(config.control_ring)) {}
  ~Lane() { ::close(doorbell_); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // --- the engine's thread ---
  uint32_t poll(uint64_t now_ns) { return engine_.poll_once(now_ns); }
  template <class Clock>
  uint32_t poll(uint64_t now_ns, Clock clock) {
    return engine_.poll_once(now_ns, clock);
  }
  Engine<P, HostServices>& engine() { return engine_; }
  GradientExchange& exchange() { return services_.datagrams(); }
  SocketRelay& relay() { return services_.streams(); }
  P& port() { return *port_; }
  Counters& counters() { return *counters_; }
  PassTimes& passes() { return passes_; }
  int doorbell() const { return doorbell_; }  // -1: no descriptor
  // Before the engine sleeps: commands ring the doorbell from now on, and room for events that wait
  // for it. False: there is some already.
  bool park() {
    asleep_.exchange(true);
    if (engine_.reports_waiting() > 0) {
      events_wait_.exchange(true);
      if (!engine_.reports_full()) return false;
    }
    return engine_.commands_waiting() == 0;
  }
  void unpark() { asleep_.store(false, std::memory_order_relaxed); }
  // After a pass: whether the control plane is to look at its rings. For commands that were taken
  // only where others wait for their room: else each would wake it once more.
  bool take_wake() {
    const uint8_t moved = engine_.take_moved();
    const bool taken = (moved & engine_.kCommandsTaken) != 0;
    return (moved & engine_.kEventsPut) != 0 || (taken && wants_room_.exchange(false));
  }

  // --- the control thread ---
  void send(HostCommand command) {
    backlog_.push_back(std::make_unique<HostCommand>(std::move(command)));
    flush();
  }
  // Commands that found the ring full go on when there is room.
  void flush() {
    bool pushed = push();
    if (!backlog_.empty()) {
      wants_room_.exchange(true);
      pushed = push() || pushed;  // room that was made before the engine could know
    }
    if (pushed && asleep_.exchange(false)) eventfd_write(doorbell_, 1);
  }
  bool commands_wait() const { return !backlog_.empty(); }
  // Until there is none.
  bool take_event(HostEvent& out) {
    std::unique_ptr<HostEvent> event;
    if (!events_.pop(event)) {
      if (events_wait_.exchange(false)) eventfd_write(doorbell_, 1);
      return false;
    }
    out = std::move(*event);
    return true;
  }

 private:
  bool push() {
    bool pushed = false;
    while (!backlog_.empty() && commands_.push(std::move(backlog_.front()))) {
      backlog_.pop_front();
      pushed = true;
    }
    return pushed;
  }

  using Commands = std::pair<CommandRing::Producer, CommandRing::Consumer>;
  using Events = std::pair<EventRing::Producer, EventRing::Consumer>;
  Lane(std::unique_ptr<Counters> counters, std::unique_ptr<P> port, const LaneConfig& config,
       Commands commands, Events events)
      : counters_(std::move(counters)),
        services_(std::forward_as_tuple(exchange_of(config), *counters_, memory_of(*port)),
                  std::forward_as_tuple(config.sockets, *counters_)),
        port_(std::move(port)),
        engine_(*port_, services_, config.engine, *counters_, std::move(commands.second),
                std::move(events.first)),
        doorbell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        commands_(std::move(commands.first)),
        events_(std::move(events.second)) {}

  // As many chunks can be lost at a time as packets are in flight: those that jobs share, their own
  // (half as many, and one job's for sockets), and those of sessions.
  static ExchangeConfig exchange_of(const LaneConfig& config) {
    ExchangeConfig exchange = config.exchange;
    exchange.sends.most_lost =
        std::min(exchange.sends.most_lost, 2 * config.engine.max_in_flight_packets);
    return exchange;
  }

  std::unique_ptr<Counters> counters_;
  alignas(64) PassTimes passes_;
  HostServices services_;
  std::unique_ptr<P> port_;  // behind the services: it may still read results until it is gone
  Engine<P, HostServices> engine_;
  int doorbell_;
  // Either thread sets some of these and takes the others. Both do so by an exchange, so that
  // whoever comes second knows what the first has done before. unpark() only stores: whoever has
  // taken asleep_ since park() has rung, and the doorbell stays rung until the engine's next sleep.
  std::atomic<bool> wants_room_{false};   // by the control plane, until the engine has made room
  std::atomic<bool> events_wait_{false};  // by the engine, until the control plane has made room
  std::atomic<bool> asleep_{false};       // by the engine, until commands have rung
  CommandRing::Producer commands_;
  std::deque<std::unique_ptr<HostCommand>> backlog_;
  EventRing::Consumer events_;
};

}  // namespace mercury
