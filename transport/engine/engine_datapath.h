// Engine: the datapath, receiving and sending. Included by engine.h only.
#pragma once

#include "transport/engine/engine.h"

namespace mercury {

namespace detail {
inline Counter drop_counter(wire::DecodeError error) noexcept {
  switch (error) {
    case wire::DecodeError::kBadMagic:
      return Counter::kDropMagic;
    case wire::DecodeError::kBadVersion:
      return Counter::kDropVersion;
    case wire::DecodeError::kBadType:
      return Counter::kDropType;
    case wire::DecodeError::kBadLength:
      return Counter::kDropLength;
    case wire::DecodeError::kBadHeaderCrc:
      return Counter::kDropHeaderCrc;
    case wire::DecodeError::kTruncated:
    case wire::DecodeError::kNone:
      break;
  }
  return Counter::kDropTruncated;
}
inline bool has_room(const SessionEntry& entry) noexcept {  // for one more frame
  const Session& session = *entry.session;
  return !entry.closed && session.state() == Session::State::kOpen &&
         session.can_send(std::max<uint32_t>(session.path_payload(), entry.refused_bytes));
}
inline CreditAllocator::Signs signs_of(const wire::Header& header, bool last) noexcept {
  return {last, (header.flags & wire::kFlagLinkFree) != 0};
}
}  // namespace detail

template <Port P, Service S>
uint32_t Engine<P, S>::receive() noexcept {
  if (!wholes_.empty()) [[unlikely]]
    wholes_.clear();
  const uint32_t count = port_.rx_burst(std::span(burst_).first(rx_burst_), now_ns_);
  wire::Header header;  // zeroed once, as send_datagrams' datagram
  gate_.begin_pass();
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (i + 1 < count) __builtin_prefetch(burst_[i + 1].payload.data());
    bytes += burst_[i].payload.size();
    if (receive_frame(burst_[i], header)) [[unlikely]] {
      bytes -= put_whole_in_place(burst_[i]);  // which is not counted again
      --i;
    }
  }
  if (count > 0) {
    counters_.add(Counter::kRxFrames, count);
    counters_.add(Counter::kRxBytes, bytes);
    if (!streams_borrow_) [[likely]]
      port_.rx_release();
    if (credit_.due(now_ns_)) divide_credit();
  }
  return count;
}

// True: with it a frame that came in parts is whole, and is received next, in its place.
template <Port P, Service S>
bool Engine<P, S>::receive_frame(const RxFrame& frame, wire::Header& header) noexcept {
  std::span<const std::byte> payload;
  const wire::DecodeError error = wire::decode(frame.payload, header, payload);
  if (error != wire::DecodeError::kNone) [[unlikely]] {
    counters_.add(detail::drop_counter(error));
    return false;
  }
  const bool datagram = wire::is_datagram(header.type);
  if (!datagram) {
    if (overloads_control(header.type)) [[unlikely]] {
      counters_.add(Counter::kDropControl);
      return false;
    }
    if (header.type == wire::FrameType::kHello) [[unlikely]] {
      receive_hello(frame, header, payload);
      return false;
    }
    if (header.type == wire::FrameType::kReset) [[unlikely]] {
      receive_reset(frame, header);
      return false;
    }
  }
  SessionEntry* entry = sessions_.find(header.session);
  if (entry == nullptr || entry->closed) [[unlikely]] {
    counters_.add(Counter::kDropNoSession);
    answer_absent(frame, header, payload);
    return false;
  }
  if (entry->remote != frame.source) [[unlikely]] {
    if (!is_spread(header) || !entry->spreads_from(frame.source)) {
      receive_foreign(frame, *entry, header, payload);
      return false;
    }
  }
  const SessionSlot slot = sessions_.slot_of(header.session);
  sessions_.touch(slot, *entry);
  if (datagram) {
    receive_datagram(slot, *entry, header, payload, frame);
    return false;
  }
  entry->session->on_frame(header, payload, now_ns_, frame);
  return header.type == wire::FrameType::kPart && whole_came_;
}

template <Port P, Service S>
void Engine<P, S>::receive_datagram(SessionSlot slot, SessionEntry& entry, wire::Header& header,
                                    std::span<const std::byte> payload,
                                    const Arrival& arrival) noexcept {
  if (entry.session->state() != Session::State::kOpen) [[unlikely]] {
    counters_.add(Counter::kDropNotOpen);
    return;
  }
  if (header.tag != entry.plain_tag) [[unlikely]] {
    const uint64_t number = header.packet_number;
    const std::optional<Seals::Opened> opened = open_seal(entry, header.tag, number, payload);
    if (!opened) return;
    payload = opened->payload;
    header.payload_crc ^= opened->crc_mask;
  }
  if (!entry.session->is_new(header.packet_number)) [[unlikely]] {
    counters_.add(entry.session->reason_of_drop(header.packet_number));
    return;
  }
  header.payload_crc ^= entry.tag.payload;
  const Taken taken = service_.on_datagram(slot, header, payload, now_ns_);
  if (taken <= Taken::kLast) [[likely]] {
    entry.session->received(header.packet_number, (header.flags & wire::kFlagAckNow) != 0, now_ns_,
                            arrival);
    credit_.on_datagram(slot, header.priority, sizeof(wire::DatagramHeader) + header.payload_bytes,
                        now_ns_, detail::signs_of(header, taken == Taken::kLast));
  } else if (taken == Taken::kLater) {
    refuse_datagram(slot, entry, header, arrival);
  }
}

// Of a datagram without its session's plain tag. Nothing: it has no seal that fits, and the drop is
// counted.
template <Port P, Service S>
std::optional<Seals::Opened> Engine<P, S>::open_seal(const SessionEntry& entry, uint32_t tag,
                                                     uint64_t number,
                                                     std::span<const std::byte> body) noexcept {
  if (entry.seals == nullptr || tag != entry.tag.header) {
    counters_.add(Counter::kDropHeaderCrc);
    return std::nullopt;
  }
  if (!entry.session->is_new(number)) {
    counters_.add(entry.session->reason_of_drop(number));
    return std::nullopt;
  }
  const auto opened = entry.seals->open(number, sizeof(wire::DatagramHeader), body);
  if (!opened) counters_.add(Counter::kDropSeal);
  return opened;
}

// It has come over the path as any other: that nobody has room for it is nothing that the network
// did, and changes no grant.
template <Port P, Service S>
void Engine<P, S>::refuse_datagram(SessionSlot slot, SessionEntry& entry,
                                   const wire::Header& header, const Arrival& arrival) noexcept {
  if (!entry.session->refused(header.packet_number, now_ns_, arrival)) return;
  counters_.add(Counter::kDatagramsRefused);
  credit_.on_datagram(slot, header.priority, sizeof(wire::DatagramHeader) + header.payload_bytes,
                      now_ns_, detail::signs_of(header, false));
}

template <Port P, Service S>
void Engine<P, S>::divide_credit() noexcept {
  const bool shares = pacer_.shares_link() && pacer_.rate() != 0;
  if (shares) [[unlikely]]
    credit_.set_part(pacer_.part_of_link(now_ns_), pacer_.idle_part());
  credit_.divide(now_ns_, [this](SessionSlot slot, uint16_t now_units, uint16_t idle_units) {
    if (!sessions_.in_use(slot)) return CreditAllocator::PathState{};
    Session& session = *sessions_.at(slot).session;
    if (!sessions_.at(slot).on_host) session.set_grant(now_units, idle_units);
    return CreditAllocator::PathState{
        session.least_rtt_ns(), session.marked_frames(), session.take_missing(now_ns_),
        session.bytes_in_flight() > 0 ? session.smoothed_rtt_ns() : 0};
  });
  if (shares) [[unlikely]]
    pacer_.note_hears(credit_.hears_until_ns(now_ns_));
}

template <Port P, Service S>
void Engine<P, S>::pace(const SessionEntry& entry, uint32_t bytes) noexcept {
  if (!entry.on_host) [[likely]]
    pacer_.sent(bytes + entry.link_overhead_bytes, now_ns_);
}

// Apart, so that what a port does to send a frame is inlined where datagrams are sent.
template <Port P, Service S>
void Engine<P, S>::send_own_frame(TxFrame& frame, const SessionEntry& entry,
                                  uint32_t bytes) noexcept {
  counters_.add(Counter::kTxFrames);
  counters_.add(Counter::kTxBytes, bytes);
  pace(entry, bytes);
  port_.tx_send(frame, entry.path, bytes);
}

// Acknowledgements, handshakes, probes and control bytes go before datagrams: they are few and
// small.
template <Port P, Service S>
uint32_t Engine<P, S>::send_session_frames() {
  uint32_t sent = 0;
  paced_ = stalled_ = false;
  if (cut_.waits()) [[unlikely]]
    sent = send_parts();
  for (size_t i = 0; i < sessions_.touched().size(); ++i) {
    const SessionSlot slot = sessions_.touched()[i];
    if (!sessions_.in_use(slot)) continue;
    SessionEntry& entry = sessions_.at(slot);
    while (entry.session->has_pending(now_ns_)) {
      TxFrame frame;
      if (!port_.tx_alloc(frame)) {
        counters_.add(Counter::kTxBackpressure);
        stalled_ = true;
        sessions_.keep_touched(i);  // the next pass begins here
        return sent;
      }
      const uint32_t bytes = entry.session->build({frame.data, frame.capacity}, now_ns_);
      if (bytes == 0) {
        port_.tx_cancel(frame);
        break;
      }
      send_own_frame(frame, entry, bytes);
      ++sent;
    }
    if (!entry.closed) {
      update_block(slot, entry);
      if (carries_streams(entry)) line_up(slot, entry);
      sessions_.set_deadline(slot,
                             std::min(entry.session->next_deadline_ns(),
                                      entry.session->has_pending(now_ns_) ? now_ns_ : kNever));
    } else {
      free_session(slot, entry);
    }
  }
  sessions_.clear_touched();
  return sent;
}

template <Port P, Service S>
uint32_t Engine<P, S>::send_datagrams() noexcept {
  uint32_t sent = 0;
  OutgoingDatagram datagram;  // zeroed once: for each datagram it takes longer than filling it
  while (sent < tx_burst_) {
    if (!pacer_.allows(now_ns_)) {
      const bool waits = service_.wants_to_send();
      if (waits) pacer_.note_waiting();
      paced_ = paced_ || waits;
      break;
    }
    TxFrame frame;
    if (!port_.tx_alloc(frame)) {
      counters_.add(Counter::kTxBackpressure);
      stalled_ = true;
      break;
    }
    if (!service_.next(datagram)) {
      port_.tx_cancel(frame);
      break;
    }
    SessionEntry& entry = sessions_.at(datagram.session);
    const uint32_t bytes = bytes_on_wire(datagram, entry);
    if (bytes > frame.capacity) [[unlikely]] {
      port_.tx_cancel(frame);
      close_oversized(datagram, entry);
      continue;
    }
    bool has_room = true;
    if (entry.session->can_send(bytes, now_ns_)) [[likely]] {
      has_room = send_datagram(datagram, frame, entry, bytes);
      entry.refused_bytes = 0;
      ++sent;
    } else {  // it begins a burst below one frame, or the last records of packets are taken
      entry.refused_bytes = bytes;
      port_.tx_cancel(frame);
      service_.on_lost(datagram.session, datagram.tag);
    }
    sessions_.touch(datagram.session, entry);
    if (detail::has_room(entry) == entry.blocked) update_block(datagram.session, entry);
    if (!has_room) [[unlikely]]
      break;
  }
  counters_.add(Counter::kTxFrames, std::exchange(uncounted_frames_, 0));
  counters_.add(Counter::kTxBytes, std::exchange(uncounted_bytes_, 0));
  for (const SessionSlot slot : sessions_.touched()) {
    if (!sessions_.in_use(slot)) continue;
    SessionEntry& entry = sessions_.at(slot);
    if (entry.spread) [[unlikely]]
      take_next_path(entry, now_ns_);
    if (carries_streams(entry)) [[unlikely]] {
      settle_after_sending(slot, entry);
    } else {
      const Session& session = *entry.session;
      const bool closing = session.state() == Session::State::kClosing;  // close_oversized
      sessions_.set_deadline(slot, closing ? now_ns_ : session.next_deadline_ns());
    }
  }
  sessions_.clear_touched();
  return sent;
}

// Services agree on datagrams that all paths carry. This one has not: nothing is written beyond a
// buffer.
template <Port P, Service S>
void Engine<P, S>::close_oversized(const OutgoingDatagram& datagram, SessionEntry& entry) {
  service_.on_lost(datagram.session, datagram.tag);
  entry.session->close(Errc::kProtocol,
                       "a frame of " + std::to_string(bytes_on_wire(datagram, entry)) +
                           " bytes is more than the port carries",
                       now_ns_);
  sessions_.touch(datagram.session);
  update_block(datagram.session, entry);
}

// False: it goes in parts, for which the port has no room now.
template <Port P, Service S>
bool Engine<P, S>::send_datagram(OutgoingDatagram& datagram, TxFrame& frame, SessionEntry& entry,
                                 uint32_t bytes) noexcept {
  constexpr uint32_t kHeaderBytes = sizeof(wire::DatagramHeader);
  const uint32_t head_bytes = entry.head_bytes;
  const auto payload_bytes = static_cast<uint32_t>(datagram.payload.size());
  Session& session = *entry.session;
  wire::Header& header = datagram.header;
  header.session = session.peer_number();
  header.packet_number = session.on_send_datagram(datagram.tag, bytes, now_ns_);
  if (pacer_.gathers() && !entry.on_host) [[unlikely]]
    pacer_.note_datagram(header.priority, datagram.job, now_ns_);
  header.flags = static_cast<uint16_t>(header.flags | session.datagram_flags() | entry.frame_flags);
  if (pacer_.pauses() != entry.pauses) {
    entry.pauses = pacer_.pauses();
    header.flags |= wire::kFlagLinkFree;
  }
  header.payload_bytes = static_cast<uint16_t>(bytes - kHeaderBytes);
  if (datagram.pin == nullptr) {
    const std::byte* const payload = datagram.payload.data();
    header.payload_crc = wire::copy_crc32c_fetching(frame.data + head_bytes, payload, payload_bytes,
                                                    payload + payload_bytes);
  }
  header.tag = entry.tag.header;
  header.payload_crc ^= entry.tag.payload;
  if (entry.seals_or_cuts) [[unlikely]] {
    if (entry.seals != nullptr) header.payload_crc ^= entry.seals->crc_mask(header.packet_number);
    if (bytes > entry.whole_bytes) {  // its parts leave from where this side hears
      header.flags &= static_cast<uint16_t>(~wire::kFlagSpread);
    }
    wire::encode(header, frame.data);
    const std::byte* const payload =
        datagram.pin == nullptr ? frame.data + entry.head_bytes : datagram.payload.data();
    const PayloadPlace place =
        seal_or_cut({payload, payload_bytes}, header.packet_number, frame.data, entry);
    // A ciphertext is of one session.
    if (place == PayloadPlace::kBehindHeader) datagram.pin = nullptr;
    if (place == PayloadPlace::kInCutFrame) {
      port_.tx_cancel(frame);
      service_.charge(datagram.job, bytes);
      return send_in_parts(entry, bytes);
    }
  } else {
    wire::encode_datagram(header, frame.data);
  }
  if (datagram.pin == nullptr) {
    port_.tx_send(frame, entry.datagram_path, bytes);
  } else {
    port_.tx_send_shared(frame, head_bytes, entry.datagram_path, datagram.payload, *datagram.pin);
  }
  ++uncounted_frames_;
  uncounted_bytes_ += bytes;
  pace(entry, bytes);
  service_.charge(datagram.job, bytes);
  return true;
}

// Keeps the promise that service_.next() only names sessions with room for one more frame.
template <Port P, Service S>
void Engine<P, S>::update_block(SessionSlot slot, SessionEntry& entry) noexcept {
  const bool room = detail::has_room(entry);
  if (room == !entry.blocked) return;
  entry.blocked = !room;
  if (room) {
    service_.unblock(slot);
  } else {
    service_.block(slot);
  }
}

}  // namespace mercury
