#include "transport/flow/session.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "transport/flow/session_impl.h"

namespace mercury {
namespace {

// CLOSE and REFUSE are not acknowledged; without one the peer waits for peer_timeout. At 20 % loss
// three copies leave 1 in 125.
constexpr uint32_t kFarewellCopies = 3;

SendLimit::Window make_window(const SessionConfig& config) {
  if (config.window == WindowKind::kFixed) return FixedWindow(config.window_bytes);
  return AdaptiveWindow({config.window_bytes, config.delay_target_ns});
}

LossConfig loss_config(const SessionConfig& config, uint32_t local_number) {
  LossConfig loss;
  loss.initial_rtt_ns = config.initial_rtt_ns;
  loss.max_ack_delay_ns = config.max_ack_delay_ns;
  loss.min_probe_timeout_ns = config.min_probe_timeout_ns;
  loss.jitter_seed = uint64_t{local_number} << 32;
  return loss;
}

// Records that a session may hold: twice what its window needs where no frame is larger than every
// path carries, as those of one block are not acknowledged at once. A window is counted in bytes,
// and would hold twenty times as many of the smallest frames.
uint32_t most_blocks(const SessionConfig& config) {
  constexpr uint64_t kLeastBlocks = 8;
  const uint64_t packets = config.window_bytes / kBasePayloadBytes + 1;
  const uint64_t blocks = std::max(kLeastBlocks, 2 * (packets / kSentBlockRecords + 1));
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, std::numeric_limits<uint32_t>::max()));
}

std::string seconds(uint64_t time_ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", static_cast<double>(time_ns) / 1e9);
  return text;
}

}  // namespace

Session::Impl::Impl(SessionSlot slot_, uint32_t local_number_, const Endpoint& remote_,
                    const SessionConfig& config_, SentPool& pool, SentPart* part,
                    SessionEvents& events_, Counters& counters_)
    : slot(slot_),
      local_number(local_number_),
      remote(remote_),
      config(config_),
      events(events_),
      counters(counters_),
      opening(local_number_, config_.max_udp_payload, config_.handshake_timeout_ns,
              config_.versions),
      liveness(config_.peer_timeout_ns),
      numbers(config_.first_packet_number),
      loss(loss_config(config_, local_number_), {pool, part, most_blocks(config_)}),
      limit(make_window(config_)),
      delivery(config_.peer_timeout_ns),
      probe_again(config_.peer_timeout_ns),
      acks_out(config_.ack_every_packets, config_.max_ack_delay_ns) {}

void Session::Impl::connect(const wire::Hello& hello, const wire::Key& key, uint64_t now_ns) {
  opening.ask(hello, key, now_ns);
  state = State::kConnecting;
  now_ns_seen = now_ns;
}

void Session::Impl::accept(const wire::Hello& hello, const wire::HelloAck& answer,
                           const wire::Key& key, uint64_t now_ns) {
  if (Status accepted = opening.accept(hello, answer, key, now_ns); !accepted) {
    count(Counter::kSessionsRefused);
    begin_close(wire::FrameType::kRefuse, accepted.error().code, accepted.error().message);
    return;
  }
  open(hello.max_udp_payload, now_ns);
}

void Session::Impl::open(uint16_t peer_max_payload, uint64_t now_ns) {
  state = State::kOpen;
  liveness.start(now_ns);
  now_ns_seen = now_ns;
  if (opening.seals() != nullptr) control_out.leave_room(wire::kSealBytes);
  largest = path_largest = std::min(config.max_udp_payload, peer_max_payload);
  probe.start(largest);
  start_streams();
}

void Session::Impl::begin_close(wire::FrameType farewell, Errc code, std::string_view text) {
  if (state == State::kClosing || state == State::kClosed) {
    // Only accept() begins to end a session that never opened.
    if (farewell != wire::FrameType::kRefuse) return;
  }
  // Whoever has not shown that it asked is told once, so that a HELLO in somebody else's name makes
  // little noise there.
  const bool once =
      farewell == wire::FrameType::kClose && opening.passive() && !opening.confirmed();
  ending.begin(farewell, Error(code, std::string(text.substr(0, wire::kMaxReason))),
               once ? 1 : kFarewellCopies);
  state = State::kClosing;
  if (opening.peer_number() != 0) return;
  enter_closed();  // nobody to say it to
  ending.skip();
}

// Nothing is in flight from here on: the records go back to the engine.
void Session::Impl::enter_closed() noexcept {
  state = State::kClosed;
  opening.stop();
  loss.clear();
  if (opening.confirmed()) count(Counter::kSessionsClosed);
}

void Session::Impl::finish(const Error& error) {
  enter_closed();
  ending.settle();
  tell_closed(error);
}

void Session::Impl::tell_closed(const Error& error) {
  if (streams) streams->close_all(error.code);
  events.on_closed(slot, error);
}

uint64_t Session::Impl::next_deadline_ns() const noexcept {
  if (ending.owed()) return 0;
  if (state == State::kConnecting) return opening.deadline_ns();
  if (state != State::kOpen) return kNever;
  if (!opening.confirmed()) return opening.deadline_ns();
  if (probe.unreported()) return 0;
  if (streams && streams->has_events()) return 0;
  uint64_t deadline = std::min(loss.deadline_ns(), liveness.deadline_ns());
  if (acks_out.deadline_ns() != 0) deadline = std::min(deadline, acks_out.deadline_ns());
  return std::min(deadline, gate.deadline_ns(loss));
}

void Session::Impl::on_timer(uint64_t now_ns) {
  const uint64_t unattended_ns = now_ns - std::min(now_ns, now_ns_seen);
  now_ns_seen = now_ns;
  if (ending.owed()) {
    ending.settle();
    tell_closed(ending.error());
  } else if (state == State::kConnecting) {
    opening.on_timer(now_ns);
    if (!opening.expired(now_ns)) return;
    finish(Error(Errc::kTimedOut, "no answer from " + remote.to_string() + " within " +
                                      seconds(config.handshake_timeout_ns) + opening.hearsay()));
  } else if (state == State::kOpen) {
    on_open_timer(now_ns, unattended_ns);
  }
}

void Session::Impl::on_open_timer(uint64_t now_ns, uint64_t unattended_ns) {
  liveness.on_attended(now_ns, unattended_ns);
  if (!opening.confirmed()) {
    if (!opening.expired(now_ns)) return;
    const std::string unheard = "nothing that proves the job's key from " + remote.to_string() +
                                " within " + seconds(config.handshake_timeout_ns);
    ending.begin(wire::FrameType::kClose, Error(Errc::kAgain, unheard), 1);  // if it comes yet
    finish(Error(Errc::kTimedOut, unheard));
    return;
  }
  if (liveness.lost(now_ns)) {
    count(Counter::kPeersLost);
    const Error error(Errc::kPeerLost, "nothing heard from " + remote.to_string() + " for " +
                                           seconds(config.peer_timeout_ns));
    ending.begin(wire::FrameType::kClose, error, kFarewellCopies);  // if it is heard again
    finish(error);
    return;
  }
  const uint64_t timeouts = loss.probe_timeouts();
  loss.on_timer(now_ns, *this);
  if (loss.probe_timeouts() != timeouts) count(Counter::kProbeTimeouts);
  if (acks_out.due(now_ns)) acks_out.expedite();
  liveness.on_timer(now_ns);
  if (streams) streams->tell();
  after_progress();
}

// What may have changed when packets were acknowledged or lost.
void Session::Impl::after_progress() {
  if (state != State::kOpen) return;
  limit.update();
  if (delivery.doubtful()) [[unlikely]]
    doubt_path();
  if (state != State::kOpen) return;
  if (gate.opened(limit, loss, now_ns_seen)) events.on_window_open(slot);
  if (state == State::kOpen && probe.unreported()) tell_path();
  if (probe_again.due(now_ns_seen)) [[unlikely]] {
    probe_again.on_asked();
    probe.start_above(path_largest);
  }
}

// Where frames may go in parts the path is measured again; what every path carries goes whole
// meanwhile.
void Session::Impl::doubt_path() {
  if (delivery.hopeless()) {
    count(Counter::kPeersLost);
    begin_close(wire::FrameType::kClose, Errc::kPeerLost,
                "no frame of " + std::to_string(delivery.bytes()) + " bytes has reached " +
                    remote.to_string() + " for " + seconds(config.peer_timeout_ns) +
                    ", smaller ones do: the path's MTU may have shrunk");
    return;
  }
  const bool cuts = takes_parts() && delivery.bytes() > kBasePayloadBytes;
  if (!cuts || probe.searching() || probe.unreported()) return;
  count(Counter::kPathsDoubted);
  delivery.doubted();
  probe_again.begin();
  probe.start(path_largest);
  follow_path();
}

// Of another address nothing is known that was learnt of the one before; a translator's other port
// is the same path (RFC 9000 section 9.4). The peer hears at once that it is heard again.
// What was sent before says nothing of either.
void Session::Impl::move(const Endpoint& to, uint16_t max_udp_payload,
                         std::optional<uint64_t> reset_token, uint64_t now_ns) {
  now_ns_seen = now_ns;
  const bool other_path = to.ip != remote.ip;
  remote = to;
  moved = true;
  loss.move(numbers.next(), other_path, now_ns);
  delivery.forget();
  if (other_path) begin_path(max_udp_payload);
  liveness.on_heard(now_ns);
  liveness.ask();
  if ((opening.features() & wire::kFeatureResets) != 0 && reset_token) {
    notices.tell_reset_token(*reset_token);
  }
}

// What it carries is measured anew. Until that is known frames go as over one that carries little,
// where they may go in parts.
void Session::Impl::begin_path(uint16_t max_udp_payload) {
  path_number = numbers.next();
  path_largest = std::min(largest, max_udp_payload);
  limit.begin_path(make_window(config));
  probe_again.begin();
  probe.start(path_largest);
  if (path_told) follow_path();
}

void Session::Impl::tell_path() {
  probe.on_reported();
  probe_again.on_found(probe.path_payload(), path_largest, now_ns_seen);
  if (path_told) return follow_path();
  path_told = true;
  const uint16_t whole = probe.path_payload();
  const uint16_t in_parts = surely_takes_parts() ? largest : whole;
  if (whole < in_parts) {
    follow_path();
  } else {
    limit.set_frame_bytes(whole);
  }
  events.on_path_payload(slot, static_cast<uint16_t>(whole - seal_bytes()),
                         static_cast<uint16_t>(in_parts - seal_bytes()));
}

void Session::Impl::follow_path() {
  limit.set_frame_bytes(probe.path_payload());
  if (takes_parts()) events.on_path_changed(slot, probe.path_payload());
}

Session::Session(SessionSlot slot, uint32_t local_number, const Endpoint& remote,
                 const SessionConfig& config, SentPool& pool, SentPart* part, SessionEvents& events,
                 Counters& counters)
    : impl_(std::make_unique<Impl>(slot, local_number, remote, config, pool, part, events,
                                   counters)) {}

Session::~Session() = default;

void Session::connect(const wire::Hello& hello, const wire::Key& key, uint64_t now_ns) {
  impl_->connect(hello, key, now_ns);
}
void Session::accept(const wire::Hello& hello, const wire::HelloAck& answer, const wire::Key& key,
                     uint64_t now_ns) {
  impl_->accept(hello, answer, key, now_ns);
}
void Session::carry_streams(const StreamConfig& config, StreamEvents& events) {
  impl_->stream_config = config;
  impl_->stream_events = &events;
}
void Session::close(Errc code, std::string_view text, uint64_t now_ns) {
  impl_->now_ns_seen = now_ns;
  impl_->begin_close(wire::FrameType::kClose, code, text);
}

bool Session::reset(uint64_t now_ns) {
  impl_->now_ns_seen = now_ns;
  if (impl_->state != State::kOpen) return false;
  impl_->count(Counter::kPeersLost);
  impl_->finish(Error(Errc::kPeerLost, impl_->remote.to_string() +
                                           " does not know this session any more: it was started "
                                           "again"));
  return true;
}

std::optional<std::span<const std::byte>> Session::open_newest(
    const wire::Header& header, std::span<const std::byte> body) noexcept {
  return impl_->open_newest(header, body);
}
uint32_t Session::build_challenge(std::span<std::byte> out, uint64_t data) noexcept {
  return impl_->build_path_data(out, wire::FrameType::kPathChallenge, data);
}
void Session::move(const Endpoint& remote, uint16_t max_udp_payload,
                   std::optional<uint64_t> reset_token, uint64_t now_ns) {
  impl_->move(remote, max_udp_payload, reset_token, now_ns);
}

Session::State Session::state() const noexcept { return impl_->state; }
uint32_t Session::local_number() const noexcept { return impl_->local_number; }
uint32_t Session::peer_number() const noexcept { return impl_->opening.peer_number(); }
FrameTag Session::tag() const noexcept { return impl_->opening.tag(); }
bool Session::answered() const noexcept { return impl_->opening.answered(); }
bool Session::confirmed() const noexcept { return impl_->opening.confirmed(); }
Seals* Session::seals() const noexcept { return impl_->opening.seals(); }
const wire::HelloAck& Session::answer() const noexcept { return impl_->opening.answer(); }

void Session::on_frame(const wire::Header& header, std::span<const std::byte> payload,
                       uint64_t now_ns, const Arrival& arrival) {
  impl_->on_frame(header, payload, now_ns, arrival);
}
Counter Session::reason_of_drop(uint64_t packet_number) const noexcept {
  return impl_->acks_out.reason_of_drop(packet_number);
}

bool Session::is_new(uint64_t packet_number) const noexcept {
  return impl_->state == State::kOpen && impl_->acks_out.is_new(packet_number);
}
void Session::received(uint64_t packet_number, bool ack_now, uint64_t now_ns,
                       const Arrival& arrival) noexcept {
  impl_->acks_out.on_received(packet_number, ack_now, now_ns, arrival);
  impl_->liveness.on_heard(now_ns);
}
bool Session::refused(uint64_t packet_number, uint64_t now_ns, const Arrival& arrival) noexcept {
  if ((impl_->opening.features() & wire::kFeatureRefusals) == 0) return false;
  impl_->liveness.on_heard(now_ns);
  return impl_->acks_out.on_refused(packet_number, now_ns, arrival);
}
void Session::set_grant(uint16_t now_units, uint16_t idle_units) noexcept {
  impl_->acks_out.set_grant(now_units, idle_units);
}

bool Session::can_send(uint32_t bytes) const noexcept { return impl_->can_send(bytes); }
// Flat: both are called for every datagram, and also, elsewhere, for streams.
[[gnu::flatten]] bool Session::can_send(uint32_t bytes, uint64_t now_ns) noexcept {
  return impl_->can_send(bytes, now_ns);
}
uint16_t Session::datagram_flags() const noexcept {
  return impl_->gate.ask_now() ? uint16_t{wire::kFlagAckNow} : uint16_t{0};
}
[[gnu::flatten]] uint64_t Session::on_send_datagram(const SentTag& tag, uint32_t bytes,
                                                    uint64_t now_ns) noexcept {
  return impl_->on_send_datagram(tag, bytes, now_ns);
}
void Session::take_turns(uint32_t ports) {
  impl_->turns = std::make_unique<PortTurns>(ports, impl_->numbers.next());
  impl_->loss.take_paths();
}
std::optional<uint32_t> Session::next_turn(uint64_t now_ns) noexcept {
  PortTurns& turns = *impl_->turns;
  const bool changes = turns.end_pass(impl_->numbers.next(), now_ns);
  if (turns.take_left_out()) impl_->count(Counter::kSourcePortsLeftOut);
  if (!changes) return std::nullopt;
  return turns.current();
}
bool Session::has_pending(uint64_t now_ns) const noexcept { return impl_->has_pending(now_ns); }
uint32_t Session::build(std::span<std::byte> out, uint64_t now_ns) noexcept {
  return impl_->build(out, now_ns);
}
uint32_t Session::repeat_close(std::span<std::byte> out) { return impl_->repeat_close(out); }
std::unique_ptr<Seals> Session::take_seals() noexcept { return impl_->opening.take_seals(); }
Streams* Session::streams() noexcept {
  return impl_->state == State::kOpen ? impl_->streams.get() : nullptr;
}
uint8_t Session::stream_priority() const noexcept {
  return impl_->streams ? impl_->streams->segment_priority() : uint8_t{0};
}
bool Session::can_send_stream(uint64_t now_ns) noexcept { return impl_->can_send_stream(now_ns); }
uint32_t Session::build_stream(std::span<std::byte> out, uint64_t now_ns) noexcept {
  return impl_->build_stream(out, now_ns);
}
Status Session::send_control(std::span<const std::byte> message) {
  if (impl_->state != State::kConnecting && impl_->state != State::kOpen) {
    return Error(Errc::kClosed, "the session with " + impl_->remote.to_string() + " is closed");
  }
  if (message.size() > kMaxControlMessage) {
    return Error(Errc::kInvalidArgument, "a control message of " + std::to_string(message.size()) +
                                             " bytes is longer than " +
                                             std::to_string(kMaxControlMessage));
  }
  if (!impl_->control_out.push(message)) {
    return Error(Errc::kLimit, "1 MiB of control messages to " + impl_->remote.to_string() +
                                   " is not acknowledged yet");
  }
  return {};
}
static_assert(Session::kMaxControlMessage == kMaxControlMessageBytes);

uint64_t Session::next_deadline_ns() const noexcept { return impl_->next_deadline_ns(); }
void Session::on_timer(uint64_t now_ns) noexcept { impl_->on_timer(now_ns); }

uint64_t Session::smoothed_rtt_ns() const noexcept { return impl_->loss.rtt().smoothed_ns(); }
uint64_t Session::least_rtt_ns() const noexcept { return impl_->loss.rtt().min_ns(); }
uint64_t Session::window_bytes() const noexcept { return impl_->limit.bytes(); }
uint64_t Session::bytes_in_flight() const noexcept { return impl_->loss.bytes_in_flight(); }
uint16_t Session::path_payload() const noexcept { return impl_->probe.path_payload(); }
uint32_t Session::marked_frames() const noexcept { return impl_->acks_out.marked(); }
bool Session::take_missing(uint64_t now_ns) noexcept {
  if (impl_->peer_ports.count == 0) return impl_->acks_out.take_missing();
  return impl_->acks_out.take_missing_for_long(now_ns, impl_->loss.most_delay_ns());
}
uint64_t Session::lost_packets() const noexcept { return impl_->lost_packets; }

}  // namespace mercury
