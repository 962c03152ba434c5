// Two bare engines over a wire that hands pointers on (benchmarks/engine/pipe_port.h): one sends
// datagrams of one size, the other receives and acknowledges them. Their service does next to
// nothing, so what the engines execute is their own.
//
// Owner/thread: one, for both.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "benchmarks/engine/pipe_port.h"
#include "transport/engine/engine.h"

namespace mercury::frames {

inline constexpr JobSlot kJob{0};

// Members of the job will send to this engine.
struct ExpectPeer {};
// The session's datagrams are the service's.
struct ClaimSession {
  Token token;
};

class FrameService {
 public:
  using Command = SessionCommandsAnd<ExpectPeer, ClaimSession>;
  using Event = SessionEventsAnd<>;

  explicit FrameService(uint32_t payload_bytes) : payload_(payload_bytes) {}

  uint32_t due = 0;  // datagrams that it has to send
  uint64_t received = 0;
  uint64_t acked = 0;
  uint64_t lost = 0;

  void on_command(const ExpectPeer&, SessionHost& host) { host.expect(kJob, {}); }
  void on_command(const ClaimSession& claim, SessionHost& host) {
    if (const auto claimed = host.claim(claim.token)) session_ = *claimed;
  }
  bool wants_to_send() const noexcept { return due > 0 && !blocked_; }
  bool next(OutgoingDatagram& out) noexcept {
    if (!wants_to_send()) return false;
    --due;
    out.session = session_;
    out.job = kJob;
    out.header.type = wire::FrameType::kDatagram0;
    out.header.flags = 0;
    out.header.words = {0, 0, 0};
    out.header.priority = 0;
    out.payload = payload_;
    out.pin = nullptr;
    out.tag = SentTag(out.header.type, 0, 0, 0, 0);
    return true;
  }
  Taken on_datagram(SessionSlot, const wire::Header&, std::span<const std::byte>,
                    uint64_t) noexcept {
    ++received;
    return Taken::kYes;
  }
  void on_acked(SessionSlot, const SentTag&) noexcept { ++acked; }
  void on_lost(SessionSlot, const SentTag&) noexcept { ++lost; }
  void block(SessionSlot) noexcept { blocked_ = true; }
  void unblock(SessionSlot) noexcept { blocked_ = false; }
  void charge(JobSlot, uint32_t) noexcept {}
  bool awaits_nic() noexcept { return false; }
  uint32_t poll(uint64_t) noexcept { return 0; }
  uint64_t next_deadline_ns() noexcept { return kNever; }
  void forget(SessionSlot) {}
  std::optional<Event> take_event() { return std::nullopt; }

 private:
  std::vector<std::byte> payload_;
  SessionSlot session_;
  bool blocked_ = true;
};
static_assert(Service<FrameService>);

// An engine, and the little control plane that it needs.
class FrameHost {
 public:
  FrameHost(bench::PipeWire& wire, uint8_t number, uint32_t payload_bytes)
      : FrameHost(wire, number, payload_bytes, Rings()) {}

  void poll(uint64_t now_ns) { engine_.poll_once(now_ns); }
  // What the control plane does besides.
  void process() {
    std::unique_ptr<FrameService::Event> event;
    while (events_.pop(event)) {
      if (const auto* hello = std::get_if<event::HelloReceived>(event.get())) {
        send(command::Accept{.hello = hello->hello, .token = kToken, .job = kJob, .answer = {}});
      } else if (std::get_if<event::SessionOpened>(event.get()) != nullptr) {
        send(ClaimSession{kToken});
        open_ = true;
      }
    }
  }
  void send(FrameService::Command command) {
    (void)commands_.push(std::make_unique<FrameService::Command>(std::move(command)));
  }
  void connect(const Endpoint& remote) {
    command::Connect connect{.token = kToken, .job = kJob, .remote = remote};
    connect.hello.kind = wire::SessionKind::kData;
    connect.hello.job = "frames";
    send(std::move(connect));
  }

  const Endpoint& local() const { return port_.info().local; }
  bool is_open() const { return open_; }
  FrameService& service() { return service_; }

 private:
  using FrameEngine = Engine<bench::PipePort, FrameService>;
  struct Rings {
    decltype(FrameEngine::CommandRing::create(1)) commands = FrameEngine::CommandRing::create(64);
    decltype(FrameEngine::EventRing::create(1)) events = FrameEngine::EventRing::create(64);
  };
  static constexpr Token kToken{1};

  FrameHost(bench::PipeWire& wire, uint8_t number, uint32_t payload_bytes, Rings rings)
      : service_(payload_bytes),
        port_(wire, {IpAddress::v4(10, 0, 0, number), 7470}),
        engine_(port_, service_, {.session_seed = number}, counters_,
                std::move(rings.commands.second), std::move(rings.events.first)),
        commands_(std::move(rings.commands.first)),
        events_(std::move(rings.events.second)) {
    send(ExpectPeer{});
  }

  Counters counters_;
  FrameService service_;
  bench::PipePort port_;
  FrameEngine engine_;
  FrameEngine::CommandRing::Producer commands_;
  FrameEngine::EventRing::Consumer events_;
  bool open_ = false;
};

class FramePair {
 public:
  FramePair(uint32_t max_udp_payload, uint32_t payload_bytes)
      : wire_(kFrames, max_udp_payload),
        sender_(wire_, 1, payload_bytes),
        receiver_(wire_, 2, payload_bytes) {}

  // A session between them. False: there is none after `turns` passes of both.
  bool open(uint64_t& now_ns, uint64_t turn_ns, uint32_t turns) {
    sender_.connect(receiver_.local());
    for (uint32_t turn = 0; turn < turns; ++turn) {
      now_ns += turn_ns;
      for (FrameHost* host : {&sender_, &receiver_}) {
        host->poll(now_ns);
        host->process();
      }
    }
    return sender_.is_open() && receiver_.is_open();
  }
  FrameHost& sender() { return sender_; }
  FrameHost& receiver() { return receiver_; }

 private:
  static constexpr uint32_t kFrames = 4096;

  bench::PipeWire wire_;
  FrameHost sender_, receiver_;
};

}  // namespace mercury::frames
