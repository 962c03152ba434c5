// Engine: peers whose address changes. Included by engine.h only.
#pragma once

#include <array>
#include <memory>

#include "transport/engine/engine.h"
#include "transport/wire/path_data.h"

namespace mercury {

// A frame of an open session from another address than its peer's. It is not taken, whoever sent
// it: if it is the peer's, it comes again once that has shown that it is there.
template <Port P, Service S>
void Engine<P, S>::receive_foreign(const RxFrame& frame, SessionEntry& entry,
                                   const wire::Header& header, std::span<const std::byte> payload) {
  counters_.add(Counter::kDropForeignSource);
  // From where the peer hears nothing, whatever its port has become on the way. What it says itself
  // comes, too.
  if (is_spread(header)) return;
  const bool on_host = frame.source.ip == port_.info().local.ip;
  if (on_host != entry.on_host) return;
  const auto plain = entry.session->open_newest(header, payload);
  if (!plain) return;
  if (header.type == wire::FrameType::kPathResponse) {
    const auto data = wire::decode_path_data(*plain);
    if (entry.check && entry.check->confirms(frame.source, data)) move(entry, frame.source);
  } else if (header.type != wire::FrameType::kPathChallenge) {  // each side asks for itself
    challenge(frame, entry, header.packet_number);
  }
}

template <Port P, Service S>
void Engine<P, S>::challenge(const RxFrame& frame, SessionEntry& entry, uint64_t number) {
  if (!entry.check) entry.check = std::make_unique<PathCheck>();
  if (!entry.check->may_ask(number, entry.session->smoothed_rtt_ns(), now_ns_)) return;
  const uint64_t data = entry.check->ask(frame.source, number, challenges_, now_ns_);
  std::array<std::byte, wire::kMinUdpPayload> bytes{};
  const uint32_t size = entry.session->build_challenge(bytes, data);
  counters_.add(Counter::kPathsChallenged);
  answer(frame.source, return_way(port_, frame), std::span(bytes).first(size));
}

// Where there is no path to it, the peer's next frame asks again.
template <Port P, Service S>
void Engine<P, S>::move(SessionEntry& entry, const Endpoint& remote) {
  Result<PathId> path = port_.open_path(remote);
  if (!path) return;
  close_spread(port_, entry);
  port_.close_path(entry.path);
  entry.path = *path;
  entry.link_overhead_bytes = link_overhead_bytes(remote.ip);
  const uint32_t number = entry.session->local_number();
  const SessionSlot slot = sessions_.slot_of(number);
  sessions_.move(slot, remote);
  open_spread(port_, entry);
  entry.session->move(remote, static_cast<uint16_t>(port_.path_max_payload(entry.path)),
                      resets_.own(number, remote), now_ns_);
  sessions_.touch(slot);
  counters_.add(Counter::kPeersMoved);
  report(event::SessionMoved{entry.token, remote});
}

}  // namespace mercury
