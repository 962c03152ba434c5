// Engine: sessions that open and end, commands and events: the cold paths. Included by engine.h
// only.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "transport/engine/engine.h"

namespace mercury {

template <Port P, Service S>
Result<SessionSlot> Engine<P, S>::open_session(const Endpoint& remote, Result<PathId> path,
                                               Token token, JobSlot job) {
  if (!path) return path.error();
  SessionSlot slot;
  if (!sessions_.allocate(slot, token)) {
    if (Status room = make_room(); !room) {
      port_.close_path(*path);
      return room.error();
    }
    (void)sessions_.allocate(slot, token);
  }
  SessionEntry& entry = sessions_.at(slot);
  entry.path = entry.datagram_path = *path;
  entry.has_path = true;
  entry.remote = remote;
  entry.on_host = remote.ip == port_.info().local.ip;
  entry.link_overhead_bytes = link_overhead_bytes(remote.ip);
  entry.job = job;
  SessionConfig session = config_.session;
  session.max_udp_payload = static_cast<uint16_t>(port_.path_max_payload(*path));
  session.reset_token = resets_.own(sessions_.number_of(slot), remote);
  if (!entry.on_host) session.source_ports = port_.info().source_ports;
  // Those of no job have one part together: whoever may open many of them is one tenant.
  entry.session = std::make_unique<Session>(slot, sessions_.number_of(slot), remote, session,
                                            sent_pool_, &sent_pool_.part_of(job),
                                            static_cast<SessionEvents&>(*this), counters_);
  if constexpr (StreamService<S>) {
    entry.session->carry_streams(service_.stream_config(), static_cast<StreamEvents&>(*this));
  }
  credit_.add_session(slot, job, entry.on_host);
  if (job != kNoJob && !entry.on_host) pacer_.note_receives(true);
  if (entry.on_host) {
    const auto units =
        static_cast<uint16_t>(kOnHostFrames * session.max_udp_payload / wire::kGrantUnitBytes);
    entry.session->set_grant(units, units);
  } else {
    entry.session->set_grant(credit_.idle_units(job), credit_.idle_units(job));
  }
  sessions_.touch(slot);
  return slot;
}

// The oldest goes that has shown nothing: anybody may repeat a member's HELLO. Its place is free on
// return: left for a pass it would be the next stranger's before the member asks again, and a
// member that connects within the engine needs two. Nobody goes who has not been answered, or
// cannot be told: then who asks is to ask again, and also where a session ends, which makes room in
// a pass or two.
template <Port P, Service S>
Status Engine<P, S>::make_room() {
  SessionEntry* const oldest = sessions_.oldest_unshown();
  TxFrame frame;
  if (oldest != nullptr && oldest->session->answered() && port_.tx_alloc(frame)) {
    oldest->session->close(Errc::kAgain, "others asked for a session since", now_ns_);
    const uint32_t bytes = oldest->session->build({frame.data, frame.capacity}, now_ns_);
    send_own_frame(frame, *oldest, bytes);
    port_.tx_flush(now_ns_);
    oldest->session->on_timer(now_ns_);  // to whom has shown nothing CLOSE is said once
    counters_.add(Counter::kSessionsDisplaced);
    free_session(sessions_.slot_of(oldest->session->local_number()), *oldest);
    return {};
  }
  const auto ends = [this](SessionSlot slot) {
    return sessions_.in_use(slot) &&
           sessions_.at(slot).session->state() >= Session::State::kClosing;
  };
  const bool soon =
      oldest != nullptr || !job_ends_.empty() || std::ranges::any_of(sessions_.touched(), ends);
  return Error(soon ? Errc::kAgain : Errc::kLimit,
               "all sessions of the engine are open (engine.max_sessions = " +
                   std::to_string(config_.max_sessions) + ")");
}

template <Port P, Service S>
void Engine<P, S>::run(const command::Connect& request) {
  Result<SessionSlot> slot =
      open_session(request.remote, port_.open_path(request.remote), request.token, request.job);
  if (!slot) {  // what a peer refuses is worded alike
    const std::string here = slot.error().code == Errc::kLimit ? "on this host " : "";
    report(event::SessionClosed{request.token, slot.error().code, here + slot.error().message});
    return;
  }
  SessionEntry& entry = sessions_.at(*slot);
  wire::Hello hello = request.hello;
  hello.session = entry.session->local_number();
  hello.max_udp_payload = static_cast<uint16_t>(port_.path_max_payload(entry.path));
  entry.session->connect(hello, request.key, now_ns_);
}

template <Port P, Service S>
void Engine<P, S>::run(const command::Accept& request) {
  std::optional<PendingHello> pending = handshakes_.take(request.hello);
  if (!pending) {
    report(event::SessionClosed{request.token, Errc::kTimedOut, "the HELLO is no longer waiting"});
    return;
  }
  Result<SessionSlot> slot =
      open_session(pending->remote, open_tentative_path(port_, pending->remote, pending->way),
                   request.token, request.job);
  if (!slot) {
    send_reason(*pending, slot.error().code, slot.error().message);
    report(event::SessionClosed{request.token, slot.error().code, slot.error().message});
    return;
  }
  SessionEntry& entry = sessions_.at(*slot);
  sessions_.set_hello(*slot, pending->body.session);
  sessions_.add_unshown(*slot);
  wire::HelloAck answer = request.answer;
  answer.session = entry.session->local_number();
  answer.max_udp_payload = static_cast<uint16_t>(port_.path_max_payload(entry.path));
  entry.session->accept(pending->body, answer, request.key, now_ns_);
}

template <Port P, Service S>
void Engine<P, S>::free_session(SessionSlot slot, SessionEntry& entry) {
  std::array<std::byte, wire::kMinUdpPayload> close{};
  if (const uint32_t bytes = entry.session->repeat_close(close); bytes > 0) {
    const bool heard = entry.session->confirmed();
    farewells_.keep(entry.session->local_number(),
                    {entry.remote, entry.session->tag().header, heard, entry.session->take_seals()},
                    std::span(close).first(bytes), now_ns_);
  }
  close_spread(port_, entry);
  if (entry.has_path) port_.close_path(entry.path);
  if (carries_streams(entry)) leave_line(slot, entry);
  sessions_.release(slot);
}

template <Port P, Service S>
void Engine<P, S>::on_open(SessionSlot slot) {
  SessionEntry& entry = sessions_.at(slot);
  settle_path(port_, entry.path);  // its first frame with a tag answers what went to its address
  entry.tag = entry.session->tag();
  entry.seals = entry.session->seals();
  if (entry.seals == nullptr) {
    entry.plain_tag = entry.tag.header;
  } else {
    entry.head_bytes += uint32_t{wire::kSealBytes};
    entry.frame_flags |= entry.seals->flags();
    entry.seals_or_cuts = true;
    counters_.add(Counter::kSessionsSealed);
    if (entry.seals->encrypted()) counters_.add(Counter::kSessionsEncrypted);
  }
  report(event::SessionOpened{entry.token, entry.session->answer()});
  if constexpr (StreamService<S>) {
    entry.has_streams = entry.session->streams() != nullptr;
    if (entry.has_streams) {
      // What is decrypted lies in no memory of the port.
      if (entry.seals == nullptr || !entry.seals->encrypted()) entry.session->streams()->borrow();
      service_.on_session_open(slot, entry.token);
    }
  }
}

template <Port P, Service S>
void Engine<P, S>::on_closed(SessionSlot slot, const Error& error) {
  SessionEntry& entry = sessions_.at(slot);
  if (entry.closed) return;
  entry.closed = true;  // freed at the end of the pass, when nobody holds a reference
  sessions_.touch(slot);
  service_.forget(slot);
  credit_.remove_session(slot);
  report(event::SessionClosed{entry.token, error.code, error.message});
}

template <Port P, Service S>
void Engine<P, S>::on_source_ports(SessionSlot slot, const PortRange& ports) {
  sessions_.at(slot).peer_ports = ports;
}

template <Port P, Service S>
void Engine<P, S>::on_source_ports_known(SessionSlot slot) {
  begin_spread(port_, sessions_.at(slot));
}

template <Port P, Service S>
void Engine<P, S>::on_control(SessionSlot slot, std::span<const std::byte> message) {
  reported_bytes_ += message.size();
  report(event::ControlReceived{sessions_.at(slot).token, {message.begin(), message.end()}});
}

template <Port P, Service S>
void Engine<P, S>::on_path_payload(SessionSlot slot, uint16_t max_udp_payload, uint16_t in_parts) {
  report(event::PathProbed{sessions_.at(slot).token, max_udp_payload, in_parts});
}

template <Port P, Service S>
uint32_t Engine<P, S>::take_commands() {
  job_ends_.begin_pass();
  const uint32_t closed = close_ended();
  uint32_t count = 0;
  std::unique_ptr<Command> next;
  while (count < kCommandsPerPass && commands_.pop(next)) {
    std::visit(
        [this](auto& one) {  // which a service may take apart
          if constexpr (requires { this->run(one); }) {
            run(one);
          } else {
            service_.on_command(one, static_cast<SessionHost&>(*this));
          }
        },
        *next);
    ++count;
  }
  if (count > 0) moved_ |= kCommandsTaken;
  return count + closed;
}

template <Port P, Service S>
void Engine<P, S>::run(const command::SendControl& request) {
  with_session(request.token, [&](SessionSlot, SessionEntry& entry) {
    if (Status sent = entry.session->send_control(request.message); !sent) {
      entry.session->close(sent.error().code, sent.error().message, now_ns_);
    }
  });
}

template <Port P, Service S>
void Engine<P, S>::run(const command::CloseSession& request) {
  with_session(request.token, [&](SessionSlot, SessionEntry& entry) {
    entry.session->close(request.code, request.text, now_ns_);
  });
}

// A session that has closed meanwhile is no error: SessionClosed is on its way.
template <Port P, Service S>
template <class F>
void Engine<P, S>::with_session(Token token, F use) {
  SessionSlot slot;
  if (SessionEntry* entry = sessions_.find_token(token, slot)) {
    sessions_.touch(slot);
    use(slot, *entry);
  }
}

template <Port P, Service S>
std::optional<SessionSlot> Engine<P, S>::claim(Token token) {
  std::optional<SessionSlot> claimed;
  with_session(token, [&](SessionSlot slot, SessionEntry& entry) {
    claimed = slot;
    entry.blocked = true;  // as the service has it; the visit at the end of the pass unblocks
  });
  return claimed;
}

template <Port P, Service S>
void Engine<P, S>::expect(JobSlot job, const CreditAllocator::FanIn& fan_in) {
  credit_.add_job(job, fan_in);
  divide_credit();
}

template <Port P, Service S>
void Engine<P, S>::release(JobSlot job, Errc code, std::string_view text) {
  std::deque<uint32_t> numbers;
  for (uint32_t i = 0; i < sessions_.high_water(); ++i) {
    const SessionSlot slot{i};
    if (!sessions_.in_use(slot) || sessions_.at(slot).closed) continue;
    if (sessions_.at(slot).job != job) continue;
    numbers.push_back(sessions_.number_of(slot));
    // While they wait to be closed peers may have in flight what they may now.
    if (!sessions_.at(slot).on_host) credit_.remove_session(slot);
  }
  job_ends_.add(code, text, std::move(numbers));
  close_ended();
  credit_.remove_job(job);
  divide_credit();
}

template <Port P, Service S>
uint32_t Engine<P, S>::close_ended() {
  return job_ends_.close_some([this](uint32_t number, Errc code, std::string_view text) {
    SessionEntry* const entry = sessions_.find(number);
    if (entry == nullptr || entry->closed) return;
    sessions_.touch(sessions_.slot_of(number));
    entry->session->close(code, text, now_ns_);
  });
}

template <Port P, Service S>
void Engine<P, S>::stop() {
  stopping_ = true;
  for (uint32_t i = 0; i < sessions_.high_water(); ++i) {
    const SessionSlot slot{i};
    if (!sessions_.in_use(slot) || sessions_.at(slot).closed) continue;
    sessions_.touch(slot);
    sessions_.at(slot).session->close(Errc::kClosed, "the host is stopping", now_ns_);
  }
}

template <Port P, Service S>
void Engine<P, S>::follow_link_rate() {
  const uint64_t rate = port_.link_bytes_per_second();
  pacer_.note_receives(credit_.receives());
  if (rate != pacer_.rate()) {
    pacer_.set_rate(rate, now_ns_);
    credit_.set_rate(pacer_.idle_part());
    divide_credit();
  } else if (pacer_.shares_link() && credit_.due(now_ns_)) {
    divide_credit();  // others' parts may be larger, though nothing comes here any more
  }
}

template <Port P, Service S>
void Engine<P, S>::tick() {
  next_tick_ns_ = now_ns_ + kTickNs;
  port_.tick(now_ns_);
  follow_link_rate();
  handshakes_.expire(now_ns_);
  farewells_.expire(now_ns_);
  counters_.set(Gauge::kSessions, sessions_.size());
  counters_.set(Gauge::kHandshakes, handshakes_.size());
  counters_.set(Gauge::kSentBlocks, sent_pool_.blocks_in_use());
  counters_.set(Gauge::kPacketBuffers, port_.buffers_in_use());
  // A session may have been refused room because others of its job held its part of the records.
  for (uint32_t i = 0; i < sessions_.high_water(); ++i) {
    const SessionSlot slot{i};
    if (sessions_.in_use(slot)) update_block(slot, sessions_.at(slot));
  }
}

template <Port P, Service S>
uint32_t Engine<P, S>::report_events() {
  while (std::optional<Event> event = service_.take_event()) report(std::move(*event));
  if (stopping_ && !stopped_ && sessions_.size() == 0) {
    stopped_ = true;
    report(event::Stopped{});
  }
  uint32_t count = 0;
  while (!outbox_.empty() && events_.push(std::move(outbox_.front()))) {
    outbox_.pop_front();
    ++count;
  }
  if (reported_bytes_ > 0 && outbox_.empty() && events_.empty()) reported_bytes_ = 0;
  if (count > 0) moved_ |= kEventsPut;
  return count;
}

}  // namespace mercury
