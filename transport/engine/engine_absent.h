// Engine: frames of sessions that are not there, and what a peer says of one that it does not know.
// Included by engine.h only.
#pragma once

#include "transport/engine/engine.h"
#include "transport/flow/handshake.h"

namespace mercury {

// A frame for a session that has ended here, or that never was.
template <Port P, Service S>
void Engine<P, S>::answer_absent(const RxFrame& frame, const wire::Header& header,
                                 std::span<const std::byte> payload) {
  const std::span<const std::byte> close =
      farewells_.answer(header, payload, frame.source, now_ns_);
  if (!close.empty()) {
    counters_.add(Counter::kClosesRepeated);
    answer(frame.source, return_way(port_, frame), close);
    return;
  }
  // Nobody would hear it. What follows from where its sender hears is answered.
  if (is_spread(header)) return;
  const bool unknown = wire::is_tagged(header.type) && !farewells_.knows(header.session) &&
                       sessions_.find(header.session) == nullptr;
  if (!unknown) return;
  const std::optional<uint64_t> token = resets_.answer(header.session, frame.source, now_ns_);
  if (!token) return;
  std::array<std::byte, wire::kMinUdpPayload> reset{};
  const uint32_t bytes = finish_frame(reset, wire::FrameType::kReset, header.session, *token, 0);
  counters_.add(Counter::kResetsSent);
  answer(frame.source, return_way(port_, frame), std::span(reset).first(bytes));
}

template <Port P, Service S>
void Engine<P, S>::receive_reset(const RxFrame& frame, const wire::Header& header) {
  SessionEntry* const entry = sessions_.find_peer(frame.source, header.session);
  if (entry == nullptr) {
    counters_.add(Counter::kDropNoSession);
    return;
  }
  if (entry->reset_token != header.packet_number) {
    counters_.add(Counter::kDropForgedAnswer);
    return;
  }
  sessions_.touch(sessions_.slot_of(entry->session->local_number()));
  if (entry->session->reset(now_ns_)) counters_.add(Counter::kResetsReceived);
}

}  // namespace mercury
