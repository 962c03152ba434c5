// Engine: HELLOs that arrive, and what is answered to them at once. Included by engine.h only.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "transport/engine/engine.h"
#include "transport/flow/handshake.h"

namespace mercury {

template <Port P, Service S>
void Engine<P, S>::receive_hello(const RxFrame& frame, const wire::Header& header,
                                 std::span<const std::byte> payload) {
  if (!gate_.take()) {
    counters_.add(Counter::kDropHello);
    return;
  }
  std::optional<wire::Hello> hello;
  if (wire::crc32c(payload) == header.payload_crc) hello = wire::decode_hello(payload);
  if (!hello || hello->session == 0) {
    counters_.add(Counter::kDropHandshake);
    return;
  }
  SessionEntry* const known = sessions_.find_hello(frame.source, hello->session);
  if (known == nullptr && stopping_) return;
  const bool shown =
      known == nullptr && gate_.accepts(header.packet_number, frame.source, *hello, now_ns_);
  const HelloKind kind = known != nullptr ? HelloKind::kOfSession
                         : shown          ? HelloKind::kWithToken
                                          : HelloKind::kUnshown;
  if (!gate_.may_answer(frame.source, kind, now_ns_)) {
    counters_.add(Counter::kDropHello);
    return;
  }
  if (known != nullptr) {
    sessions_.touch(sessions_.slot_of(known->session->local_number()));
    known->session->on_frame(header, payload, now_ns_);  // the HELLO_ACK was lost
    return;
  }
  const PendingHello asked{0, frame.source, now_ns_, *hello, return_way(port_, frame)};
  if (Result<uint8_t> version = negotiate_version(*hello, config_.session.versions); !version) {
    send_reason(asked, version.error().code, version.error().message);
    // Whoever floods us with these does not flood the control plane.
    if (now_ns_ < next_refusal_report_ns_) return;
    next_refusal_report_ns_ = now_ns_ + kRefusalReportNs;
    report(event::HelloRefused{frame.source, hello->job, version.error().message});
    return;
  }
  if (!shown && !handshakes_.waits(frame.source, *hello) &&
      !gate_.may_judge(handshakes_.size(), now_ns_)) {
    ask_for_token(asked);
    return;
  }
  const PendingHello* pending = handshakes_.add(frame.source, *hello, asked.way, now_ns_);
  if (pending) report(event::HelloReceived{pending->id, pending->remote, pending->body});
}

template <Port P, Service S>
void Engine<P, S>::ask_for_token(const PendingHello& of) {
  counters_.add(Counter::kTokensAsked);
  answer(of, Errc::kRetry, wire::token_text(gate_.token(of.remote, of.body, now_ns_)));
}

template <Port P, Service S>
void Engine<P, S>::refuse(uint64_t hello, Errc code, std::string_view text) {
  std::optional<PendingHello> pending = handshakes_.take(hello);
  if (pending) send_reason(*pending, code, text);
}

// One REFUSE, not repeated: the peer repeats its HELLO until it hears one.
template <Port P, Service S>
void Engine<P, S>::send_reason(const PendingHello& to, Errc code, std::string_view text) {
  counters_.add(Counter::kSessionsRefused);
  if (gate_.may_refuse(now_ns_)) {
    answer(to, code, text);
  } else {
    counters_.add(Counter::kRefusalsUnsaid);
  }
}

template <Port P, Service S>
void Engine<P, S>::answer(const PendingHello& to, Errc code, std::string_view text) {
  std::array<std::byte, wire::kMinUdpPayload> frame{};
  const wire::Reason reason{to.body.session, code, std::string(text.substr(0, wire::kMaxReason))};
  const uint32_t bytes = write_refusal(frame, wire::echo_of(to.body.nonce), reason);
  answer(to.remote, to.way, std::span(frame).first(bytes));
}

// In one place, so that what a port does to send a frame is inlined where datagrams are sent.
template <Port P, Service S>
void Engine<P, S>::answer(const Endpoint& to, ReturnWay way, std::span<const std::byte> bytes) {
  Result<PathId> path = open_answer_path(port_, to, way);
  if (!path) return;
  TxFrame frame;
  if (port_.tx_alloc(frame)) {
    std::copy(bytes.begin(), bytes.end(), frame.data);
    port_.tx_send(frame, *path, static_cast<uint32_t>(bytes.size()));
    port_.tx_flush(now_ns_);
  }
  port_.close_path(*path);
}

}  // namespace mercury
