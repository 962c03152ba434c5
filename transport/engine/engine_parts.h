// Engine: frames in parts, over paths that carry less than when their sessions opened. Included by
// engine.h only.
#pragma once

#include <algorithm>
#include <utility>

#include "transport/engine/engine.h"

namespace mercury {

// What is left to do to a datagram's frame, whose header stands at `head`; `payload` behind it, or
// elsewhere. Where it lies then.
template <Port P, Service S>
PayloadPlace Engine<P, S>::seal_or_cut(std::span<const std::byte> payload, uint64_t number,
                                       std::byte* head, const SessionEntry& entry) noexcept {
  const std::byte* const before = payload.data();
  if (entry.seals != nullptr) {  // of what travels: a program may write meanwhile
    payload = entry.seals->seal(number, sizeof(wire::DatagramHeader), head, payload);
  }
  if (entry.head_bytes + payload.size() <= entry.whole_bytes) {
    return payload.data() == before ? PayloadPlace::kWhereItWas : PayloadPlace::kBehindHeader;
  }
  std::ranges::copy(payload, std::copy_n(head, entry.head_bytes, cut_.data()));
  return PayloadPlace::kInCutFrame;
}

// The frame that lies in cut_, of so many `bytes`. False: the port has no room for all of its
// parts. The rest is what the next pass sends first, and nothing else is to be sent in this one.
template <Port P, Service S>
bool Engine<P, S>::send_in_parts(const SessionEntry& entry, uint32_t bytes) noexcept {
  cut_.cut(entry, bytes);
  send_parts();
  return !cut_.waits();
}

// Those that are left. How many have gone.
template <Port P, Service S>
uint32_t Engine<P, S>::send_parts() noexcept {
  const SessionEntry* const entry = sessions_.find(cut_.session());
  if (entry == nullptr || entry->closed) cut_.drop();
  uint32_t sent = 0;
  for (; cut_.waits(); ++sent) {
    TxFrame part;
    if (!port_.tx_alloc(part)) {
      counters_.add(Counter::kTxBackpressure);
      stalled_ = true;
      break;
    }
    counters_.add(Counter::kPartsSent);
    send_own_frame(part, *entry, cut_.write_part(*entry, {part.data, part.capacity}));
  }
  return sent;
}

// A frame that came in parts takes the place of the last of them, so that no frame overtakes
// another here. Its bytes. Nothing is answered to it, as to a frame of a session that is gone: it
// lies in no memory of the port, which alone shows a way back.
template <Port P, Service S>
size_t Engine<P, S>::put_whole_in_place(RxFrame& last) noexcept {
  last.payload = wholes_.back();
  last.ecn_ce = whole_marked_;
  whole_came_ = false;
  return last.payload.size();
}

template <Port P, Service S>
void Engine<P, S>::on_whole(SessionSlot, std::vector<std::byte> frame, bool marked) {
  wholes_.push_back(std::move(frame));
  whole_marked_ = marked;
  whole_came_ = true;
}

template <Port P, Service S>
void Engine<P, S>::on_path_changed(SessionSlot slot, uint16_t frame_bytes) {
  SessionEntry& entry = sessions_.at(slot);
  entry.whole_bytes = frame_bytes;
  entry.seals_or_cuts = true;
}

}  // namespace mercury
