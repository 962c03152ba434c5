// Gradient path: step 4/8, from the scheduler, to framing; and on the way back, from the port to
// the service.
//
// One protocol engine drives one NIC queue. It does no I/O and reads no clock of its own: each pass
// of poll_once is given the time, takes bursts from its port and gives bursts back. The same code
// runs over DPDK, io_uring and the simulated network.
//
// Owner/thread: one thread. The datapath (receive, send) allocates nothing, locks nothing, throws
// nothing, logs nothing; what is cold says so.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "transport/base/arrival.h"
#include "transport/base/counters.h"
#include "transport/base/priority_fifo.h"
#include "transport/base/spsc_ring.h"
#include "transport/engine/cut_frame.h"
#include "transport/engine/farewells.h"
#include "transport/engine/handshakes.h"
#include "transport/engine/hello_gate.h"
#include "transport/engine/job_ends.h"
#include "transport/engine/pacer.h"
#include "transport/engine/path_check.h"
#include "transport/engine/reset_tokens.h"
#include "transport/engine/service.h"
#include "transport/engine/session_command.h"
#include "transport/engine/session_table.h"
#include "transport/engine/spread_paths.h"
#include "transport/engine/stream_service.h"
#include "transport/flow/credit.h"
#include "transport/flow/frame_keys.h"
#include "transport/flow/sent_pool.h"
#include "transport/flow/session.h"
#include "transport/port/port.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/header.h"

namespace mercury {

struct EngineConfig {
  SessionConfig session;
  uint32_t max_sessions = 1024;
  // Records that jobs share; half as many beside them are divided into jobs' own (SentPool).
  uint32_t max_in_flight_packets = 131'072;
  uint32_t max_jobs = 64;
  // Bytes that a pass may find ahead of the link when its rate is known. The most urgent datagram
  // waits for at most these, two frames and what the link carries while a pass lasts.
  uint64_t tx_bound_bytes = 64 * 1024;
  // What other engines of this process send over too, if any: tx_bound_bytes are all of theirs.
  std::shared_ptr<SharedLink> link;
  // Bytes that may wait before this host's link when several send to it, and its rate is known or
  // measured: the queue that grants add to the link's round trip; it may grow (IncastQueue).
  uint64_t incast_queue_bytes = 128 * 1024;
  // What session numbers begin with: random, so that nobody guesses them, and frames for sessions
  // of an engine that was here before (a daemon that was killed) reach none of this one's.
  uint64_t session_seed = 1;
  // By which peers learn at once that a host was started again.
  ResetKeys reset_keys;
};

inline constexpr uint32_t kBurst = 32;    // frames per receive burst at most, as DPDK's examples
inline constexpr uint32_t kTxBurst = 64;  // datagrams per pass at most: receiving is never starved
// Bytes that a pass receives at most, and that it sends, unless kLeastBurst frames are more: so few
// that what the driver has copied is still in the core's own cache when the engine reads it, and
// the reverse. In eights: vector drivers take multiples of that.
inline constexpr uint32_t kPassBytes = 144 * 1024;
inline constexpr uint32_t kLeastBurst = 8;
// Frames under way at most between engines of one host, which no link and no credit bounds: an
// eighth of what may wait for an engine in its port's ring.
inline constexpr uint32_t kOnHostFrames = 128;
constexpr uint32_t frames_per_pass(uint32_t most, uint32_t frame_bytes) {
  return std::clamp(kPassBytes / std::max(frame_bytes, 1u) / 8 * 8, kLeastBurst, most);
}
static_assert(frames_per_pass(kTxBurst, 8972) == 16 && frames_per_pass(kTxBurst, 65507) == 8);
// Segments of streams that one session sends before the next one's turn.
inline constexpr uint32_t kStreamTurn = 8;
// Commands that a pass carries out at most: some ask the kernel for memory, or for a route.
inline constexpr uint32_t kCommandsPerPass = 32;
inline constexpr uint64_t kTickNs = 10'000'000;  // Port::tick
inline constexpr uint64_t kRefusalReportNs = 1'000'000'000;
// Virtual devices do not say when there is room again.
inline constexpr uint64_t kStallRetryNs = 50'000;

// Reports that the control plane has not fetched yet. Beyond it control bytes are left to be sent
// again, so that no peer fills our memory faster than the control plane works.
inline constexpr size_t kMostReports = 4096;
// HELLOs, which anybody can send, are left earlier, so that they do not silence open sessions.
inline constexpr size_t kMostReportsBeforeHello = kMostReports / 2;
// Control messages that the control plane has not fetched yet, all sessions together.
inline constexpr size_t kMostReportedBytes = 16 * 1024 * 1024;

template <Port P, Service S>
class Engine final : private SessionEvents, private StreamEvents, private StreamHost {
 public:
  using Command = typename S::Command;
  using Event = typename S::Event;
  using CommandRing = SpscRing<std::unique_ptr<Command>>;
  using EventRing = SpscRing<std::unique_ptr<Event>>;

  // All references outlive the engine.
  Engine(P& port, S& service, const EngineConfig& config, Counters& counters,
         typename CommandRing::Consumer commands, typename EventRing::Producer events)
      : port_(port),
        service_(service),
        config_(config),
        counters_(counters),
        commands_(std::move(commands)),
        events_(std::move(events)),
        sent_pool_(config.max_in_flight_packets / kSentBlockRecords, config.max_sessions,
                   config.max_jobs),
        sessions_(config.max_sessions, config.session_seed),
        gate_(config.session_seed),
        handshakes_(config.session.handshake_timeout_ns, config.session_seed),
        farewells_(config.session.peer_timeout_ns),
        resets_(config.reset_keys),
        challenges_(config.session_seed),
        cut_(port.info().max_udp_payload),
        pacer_(port.link_bytes_per_second(), config.tx_bound_bytes, config.link,
               port.info().flush_is_system_call),
        credit_(pacer_.idle_part(), config.incast_queue_bytes, config.session.delay_target_ns,
                config.tx_bound_bytes),
        rx_burst_(frames_per_pass(kBurst, port.info().max_udp_payload)),
        tx_burst_(frames_per_pass(kTxBurst, port.info().max_udp_payload)) {
    if constexpr (StreamService<S>) {
      line_.reserve(config.max_sessions);
      service_.attach(static_cast<StreamHost&>(*this));
    }
  }

  // One pass. Returns how much was done; 0 means that it may sleep until next_deadline_ns().
  uint32_t poll_once(uint64_t now_ns) {
    return poll_once(now_ns, [now_ns] { return now_ns; });
  }
  // The same where a pass takes time: `clock` is asked once it has received and begins to send, so
  // that what it took counts for this host and not for the network.
  template <class Clock>
  uint32_t poll_once(uint64_t now_ns, Clock clock) {
    now_ns_ = now_ns;
    pacer_.begin_pass(now_ns, worked_);
    uint32_t work = receive();
    sessions_.run_timers(now_ns, [this](SessionSlot slot) {
      sessions_.at(slot).session->on_timer(now_ns_);
      sessions_.touch(slot);
    });
    work += take_commands();
    work += service_.poll(now_ns);
    if (streams_borrow_) [[unlikely]]
      return_frames();
    if (work > 0) {
      if (const uint64_t later_ns = clock(); later_ns > now_ns) now_ns_ = later_ns;
    }
    work += send_session_frames();
    if (!line_.empty()) [[unlikely]] {
      work += send_by_turns();
    } else if (!stalled_) {
      work += send_datagrams();
    }
    work += report_events();
    if (now_ns >= next_tick_ns_) tick();
    port_.tx_flush(now_ns);
    counters_.add(Counter::kPolls);
    if (work == 0) counters_.add(Counter::kIdlePolls);
    worked_ = work > 0;
    return work;
  }

  uint64_t next_deadline_ns() const noexcept {
    uint64_t deadline = sessions_.next_deadline_ns();
    if (sessions_.size() > 0 || handshakes_.size() > 0 || service_.awaits_nic() ||
        counters_.get(Gauge::kPacketBuffers) > 0) {  // what the gauges say is not old for long
      deadline = std::min(deadline, next_tick_ns_);
    }
    deadline = std::min(deadline, service_.next_deadline_ns());
    if (paced_) deadline = std::min(deadline, pacer_.ready_at_ns());
    if (stalled_) deadline = std::min(deadline, now_ns_ + kStallRetryNs);
    if (!job_ends_.empty()) deadline = std::min(deadline, now_ns_);
    if constexpr (StreamService<S>) {  // asked for after the pass had sent its frames
      const bool waits = (!line_.empty() && !paced_) || !sessions_.touched().empty();
      if (waits && !stalled_) deadline = std::min(deadline, now_ns_);
    }
    return deadline;
  }
  size_t commands_waiting() const noexcept { return commands_.size(); }
  bool stopped() const noexcept { return stopped_; }
  // What has moved in the rings since the last call: bits, 0 if nothing has.
  enum Moved : uint8_t { kEventsPut = 1, kCommandsTaken = 2 };
  uint8_t take_moved() noexcept { return std::exchange(moved_, uint8_t{0}); }
  uint32_t session_count() const noexcept { return sessions_.size(); }
  size_t reports_waiting() const noexcept { return outbox_.size(); }
  bool reports_full() const noexcept { return events_.full(); }
  const SentPool& sent_pool() const noexcept { return sent_pool_; }
  const CreditAllocator& credit() const noexcept { return credit_; }

 private:
  // --- datapath (engine_datapath.h) ---
  // Apart, so that what the pass does besides does not take its registers.
  [[gnu::noinline]] uint32_t receive() noexcept;
  bool receive_frame(const RxFrame& frame, wire::Header& header) noexcept;
  // The control plane is to read what it has been told before it is told more of this.
  bool overloads_control(wire::FrameType type) const noexcept {
    if (type == wire::FrameType::kHello) return outbox_.size() >= kMostReportsBeforeHello;
    return type == wire::FrameType::kControl &&
           (outbox_.size() >= kMostReports || reported_bytes_ >= kMostReportedBytes);
  }
  void receive_datagram(SessionSlot slot, SessionEntry& entry, wire::Header& header,
                        std::span<const std::byte> payload, const Arrival& arrival) noexcept;
  [[gnu::cold]] void refuse_datagram(SessionSlot slot, SessionEntry& entry,
                                     const wire::Header& header, const Arrival& arrival) noexcept;
  [[gnu::cold]] void answer_absent(const RxFrame& frame, const wire::Header& header,
                                   std::span<const std::byte> payload);
  [[gnu::cold]] void receive_reset(const RxFrame& frame, const wire::Header& header);
  // --- frames in parts (engine_parts.h) ---
  // By value: a reference to the caller's header would keep that out of registers.
  [[gnu::cold, gnu::noinline]] PayloadPlace seal_or_cut(std::span<const std::byte> payload,
                                                        uint64_t number, std::byte* head,
                                                        const SessionEntry& entry) noexcept;
  [[gnu::cold, gnu::noinline]] bool send_in_parts(const SessionEntry& entry,
                                                  uint32_t bytes) noexcept;
  [[gnu::cold, gnu::noinline]] uint32_t send_parts() noexcept;
  [[gnu::cold, gnu::noinline]] size_t put_whole_in_place(RxFrame& last) noexcept;
  // --- peers that move (engine_moves.h) ---
  [[gnu::cold, gnu::noinline]] void receive_foreign(const RxFrame& frame, SessionEntry& entry,
                                                    const wire::Header& header,
                                                    std::span<const std::byte> payload);
  void challenge(const RxFrame& frame, SessionEntry& entry, uint64_t number);
  void move(SessionEntry& entry, const Endpoint& remote);
  void divide_credit() noexcept;
  uint32_t send_session_frames();
  uint32_t send_datagrams() noexcept;
  void close_oversized(const OutgoingDatagram& datagram, SessionEntry& entry);
  bool send_datagram(OutgoingDatagram& datagram, TxFrame& frame, SessionEntry& entry,
                     uint32_t bytes) noexcept;
  [[gnu::cold, gnu::noinline]] std::optional<Seals::Opened> open_seal(
      const SessionEntry& entry, uint32_t tag, uint64_t number,
      std::span<const std::byte> body) noexcept;
  static uint32_t bytes_on_wire(const OutgoingDatagram& datagram,
                                const SessionEntry& entry) noexcept {
    return entry.head_bytes + static_cast<uint32_t>(datagram.payload.size());
  }
  [[gnu::cold]] void free_session(SessionSlot slot, SessionEntry& entry);
  [[gnu::noinline]] void send_own_frame(TxFrame& frame, const SessionEntry& entry,
                                        uint32_t bytes) noexcept;
  void pace(const SessionEntry& entry, uint32_t bytes) noexcept;
  void update_block(SessionSlot slot, SessionEntry& entry) noexcept;

  // --- streams (engine_streams.h) ---
  static bool carries_streams(const SessionEntry& entry) noexcept {
    return StreamService<S> && entry.has_streams;
  }
  Streams* streams_of(SessionSlot slot) noexcept;
  [[gnu::cold]] void return_frames();
  void line_up(SessionSlot slot, SessionEntry& entry);
  void leave_line(SessionSlot slot, SessionEntry& entry);
  [[gnu::cold]] void settle_after_sending(SessionSlot slot, SessionEntry& entry);
  [[gnu::cold]] uint32_t send_by_turns();
  [[gnu::cold]] uint32_t send_streams();
  [[gnu::cold]] uint32_t send_segments(SessionEntry& entry);
  // --- StreamHost ---
  Result<StreamId> open_stream(SessionSlot slot) override;
  size_t write_stream(SessionSlot slot, StreamId stream, std::span<const std::byte> bytes) override;
  StreamRead read_stream(SessionSlot slot, StreamId stream, std::span<std::byte> out) override;
  size_t stream_room(SessionSlot slot, StreamId stream, size_t most,
                     std::span<iovec> parts) override;
  void wrote_stream(SessionSlot slot, StreamId stream, size_t bytes) override;
  Streams::Peeked peek_stream(SessionSlot slot, StreamId stream, std::span<iovec> parts) override;
  void took_stream(SessionSlot slot, StreamId stream, size_t bytes) override;
  void finish_stream(SessionSlot slot, StreamId stream) override;
  void reset_stream(SessionSlot slot, StreamId stream, Errc code) override;
  void prioritise_stream(SessionSlot slot, StreamId stream, uint8_t priority) override;
  size_t stream_bytes(SessionSlot slot) override;
  std::optional<SessionView> view_session(SessionSlot slot) override;
  void close_session(SessionSlot slot, Errc code, std::string_view text) override;
  // --- StreamEvents: no others' sessions carry streams ---
  void on_payload_lent(SessionSlot) override { streams_borrow_ = true; }
  void on_stream_opened(SessionSlot slot, StreamId stream) override {
    if constexpr (StreamService<S>) service_.on_stream_opened(slot, stream);
  }
  void on_stream_readable(SessionSlot slot, StreamId stream) override {
    if constexpr (StreamService<S>) service_.on_stream_readable(slot, stream);
  }
  void on_stream_writable(SessionSlot slot, StreamId stream) override {
    if constexpr (StreamService<S>) service_.on_stream_writable(slot, stream);
  }
  void on_stream_closed(SessionSlot slot, StreamId stream, Errc code) override {
    if constexpr (StreamService<S>) service_.on_stream_closed(slot, stream, code);
  }
  void on_streams_available(SessionSlot slot) override {
    if constexpr (StreamService<S>) service_.on_streams_available(slot);
  }

  // --- SessionEvents ---
  void on_acked(SessionSlot slot, const SentTag& tag) noexcept override {
    service_.on_acked(slot, tag);
  }
  void on_lost(SessionSlot slot, const SentTag& tag) noexcept override {
    counters_.add(Counter::kRetransmits);
    service_.on_lost(slot, tag);
  }
  void on_refused(SessionSlot slot, const SentTag& tag) noexcept override {
    service_.on_lost(slot, tag);
  }
  void on_window_open(SessionSlot slot) noexcept override {
    update_block(slot, sessions_.at(slot));
  }
  void on_open(SessionSlot slot) override;
  void on_closed(SessionSlot slot, const Error& error) override;
  void on_reset_token(SessionSlot slot, uint64_t token) override {
    sessions_.set_reset_token(slot, sessions_.at(slot).session->peer_number(), token);
  }
  void on_source_ports(SessionSlot slot, const PortRange& ports) override;
  void on_source_ports_known(SessionSlot slot) override;
  void on_control(SessionSlot slot, std::span<const std::byte> message) override;
  void on_path_payload(SessionSlot slot, uint16_t max_udp_payload, uint16_t in_parts) override;
  void on_path_changed(SessionSlot slot, uint16_t frame_bytes) override;
  void on_whole(SessionSlot, std::vector<std::byte> frame, bool marked) override;

  // --- cold (engine_control.h, engine_hello.h) ---
  uint32_t take_commands();
  void run(const command::Connect& request);
  void run(const command::Accept& request);
  void run(const command::Refuse& request) { refuse(request.hello, request.code, request.text); }
  void run(const command::SendControl& request);
  void run(const command::CloseSession& request);
  void run(const command::Stop&) { stop(); }
  void refuse(uint64_t hello, Errc code, std::string_view text);
  void send_reason(const PendingHello& to, Errc code, std::string_view text);
  void answer(const PendingHello& to, Errc code, std::string_view text);
  void answer(const Endpoint& to, ReturnWay way, std::span<const std::byte> bytes);
  template <class F>
  void with_session(Token token, F use);
  void stop();
  // --- SessionHost ---
  std::optional<SessionSlot> claim(Token token) override;
  void expect(JobSlot job, const CreditAllocator::FanIn& fan_in) override;
  void heed_urgency(JobSlot job, bool heed) override { credit_.heed_urgency(job, heed); }
  void release(JobSlot job, Errc code, std::string_view text) override;
  uint32_t close_ended();
  void receive_hello(const RxFrame& frame, const wire::Header& header,
                     std::span<const std::byte> payload);
  void ask_for_token(const PendingHello& of);
  Result<SessionSlot> open_session(const Endpoint&, Result<PathId>, Token, JobSlot);
  Status make_room();
  void tick();
  void follow_link_rate();
  void report(Event event) { outbox_.push_back(std::make_unique<Event>(std::move(event))); }
  uint32_t report_events();

  P& port_;
  S& service_;
  const EngineConfig config_;
  Counters& counters_;
  typename CommandRing::Consumer commands_;
  typename EventRing::Producer events_;
  std::deque<std::unique_ptr<Event>> outbox_;  // until the ring has room: events are never lost
  size_t reported_bytes_ = 0;  // of control messages since all reports had been fetched
  SentPool sent_pool_;         // before the sessions, which give their records back to it
  SessionTable sessions_;
  HelloGate gate_;
  Handshakes handshakes_;
  Farewells farewells_;
  JobEnds job_ends_;
  ResetTokens resets_;
  PathChallenges challenges_;
  CutFrame cut_;                                // the frame that is sent in parts
  std::vector<std::vector<std::byte>> wholes_;  // that came so in this pass
  // Sessions whose streams may send, each in turn. One may stand behind its place of before.
  PriorityFifo<SessionSlot, kStreamPriorities> line_;
  Pacer pacer_;
  CreditAllocator credit_;  // what peers may have in flight towards this engine
  const uint32_t rx_burst_, tx_burst_;
  std::array<RxFrame, kBurst> burst_{};
  uint64_t now_ns_ = 0;
  uint64_t uncounted_frames_ = 0, uncounted_bytes_ = 0;  // that this pass has sent
  uint64_t next_tick_ns_ = 0, next_refusal_report_ns_ = 0;
  bool worked_ = false;        // the last pass found work
  bool paced_ = false;         // it pass ended because the link is behind
  bool stalled_ = false;       // or because the port had no room
  bool whole_came_ = false;    // the last of wholes_, and it is to be received
  bool whole_marked_ = false;  // by the network
  bool streams_first_ = false, stopping_ = false, stopped_ = false;
  bool streams_borrow_ = false;  // of the frames received: they are not released yet
  uint8_t moved_ = 0;
};

}  // namespace mercury

#include "transport/engine/engine_absent.h"
#include "transport/engine/engine_control.h"
#include "transport/engine/engine_datapath.h"
#include "transport/engine/engine_hello.h"
#include "transport/engine/engine_moves.h"
#include "transport/engine/engine_parts.h"
#include "transport/engine/engine_streams.h"
