#include "transport/flow/opening.h"

#include <sodium.h>

#include <array>
#include <cstring>

#include "transport/flow/mtu_probe.h"

namespace mercury {
namespace {

// One is enough, and another after each minute. A peer that asks for more gets no more HELLOs than
// time alone makes due.
constexpr uint32_t kMostTokens = 16;

}  // namespace

static_assert(wire::kMaxHandshakeBytes + sizeof(wire::PlainHeader) <= kBasePayloadBytes);

void Opening::ask(const wire::Hello& hello, const wire::Key& key, uint64_t now_ns) {
  key_ = key;
  asked_ = hello.nonce;
  features_asked_ = hello.features;
  wire::Hello complete = hello;
  complete.session = local_number_;
  if (complete.max_udp_payload == 0) complete.max_udp_payload = max_udp_payload_;
  hello_.start(complete, timeout_ns_, now_ns);
}

Status Opening::accept(const wire::Hello& hello, const wire::HelloAck& answer, const wire::Key& key,
                       uint64_t now_ns) {
  passive_ = true;
  peer_number_ = hello.session;
  asked_ = hello.nonce;
  features_asked_ = hello.features;
  const Result<uint8_t> version = negotiate_version(hello, versions_);
  if (!version) return version.error();
  answer_ = answer;
  answer_.version = *version;
  answer_.session = local_number_;
  if (answer_.max_udp_payload == 0) answer_.max_udp_payload = max_udp_payload_;
  tag_ = derive_frame_tag(key, asked_, answer_.nonce);
  masks_ = derive_reset_masks(key, asked_, answer_.nonce);
  if (has_confirmation(answer_)) confirm_answer(hello, key);
  answer_due_ = true;
  accepted_ns_ = now_ns;
  return {};
}

void Opening::confirm_answer(const wire::Hello& hello, const wire::Key& key) {
  std::array<std::byte, wire::kMaxHandshakeBytes> said{}, answered{};
  const size_t said_bytes = wire::encode(hello, said);
  answer_.confirmation.reset();
  const size_t answered_bytes = wire::encode(answer_, answered);
  FrameKeys keys = derive_frame_keys(key, std::span(said).first(said_bytes),
                                     std::span(answered).first(answered_bytes));
  answer_.confirmation = keys.confirmation;
  seals_ = seals_of(keys, answer_);
  wipe(keys);
}

// HELLO_ACK was lost or is late: it is said again, as often as it is asked for.
bool Opening::on_hello_again(const wire::Hello& hello) noexcept {
  if (!passive_ || hello.session != peer_number_ || hello.nonce != asked_) return false;
  answer_due_ = true;
  return true;
}

bool Opening::knows_hello(const wire::Header& header) const noexcept {
  return passive_ || header.packet_number == wire::echo_of(asked_);
}

void Opening::note_hearsay(const wire::Header& header, std::span<const std::byte> payload) {
  if (header.type != wire::FrameType::kRefuse || header.packet_number != 0) return;
  const std::optional<wire::Reason> reason = wire::decode_reason(payload);
  if (reason && reason->session == local_number_ && reason->code == Errc::kVersionMismatch) {
    hearsay_ = "; somebody there says, without showing that he was asked: " + reason->text;
  }
}

bool Opening::take_token(std::string_view text) noexcept {
  const std::optional<uint64_t> token = wire::token_of(text);
  if (passive_ || !token || *token == token_ || tokens_ == kMostTokens) return false;
  token_ = *token;
  ++tokens_;
  hello_.say_again();
  return true;
}

std::optional<uint64_t> Opening::round_trip_ns(uint64_t now_ns) const noexcept {
  if (hello_.sent() != 1) return std::nullopt;
  return now_ns - hello_.last_sent_ns();
}

bool Opening::confirms(const wire::HelloAck& answer, std::span<const std::byte> body) {
  if (!has_confirmation(answer)) return true;
  FrameKeys keys = derive_frame_keys(key_, hello_.body(), body.first(wire::kHelloAckBytes));
  const bool good =
      answer.confirmation && sodium_memcmp(keys.confirmation.data(), answer.confirmation->data(),
                                           keys.confirmation.size()) == 0;
  if (good) {
    seals_ = seals_of(keys, answer);
  } else {
    hearsay_ = "; an answer came that was altered on the way, or of one who read the wrong HELLO";
  }
  wipe(keys);
  return good;
}

Status Opening::on_answer(const wire::HelloAck& answer) {
  peer_number_ = answer.session;
  tag_ = derive_frame_tag(key_, asked_, answer.nonce);
  masks_ = derive_reset_masks(key_, asked_, answer.nonce);
  if (!hello_.offers(answer.version)) {
    return Error(Errc::kVersionMismatch, "the answering side chose wire version " +
                                             std::to_string(answer.version) +
                                             ", which was not offered");
  }
  answer_ = answer;
  hello_.stop();
  return {};
}

uint32_t Opening::write_hello(std::span<std::byte> out, uint64_t now_ns) noexcept {
  const std::span<const std::byte> body = hello_.body();
  std::memcpy(out.data() + sizeof(wire::PlainHeader), body.data(), body.size());
  hello_.on_sent(now_ns);
  return finish_frame(out, wire::FrameType::kHello, 0, token_, static_cast<uint32_t>(body.size()));
}

uint32_t Opening::write_answer(std::span<std::byte> out) noexcept {
  answer_due_ = false;
  answered_ = true;
  const size_t bytes = wire::encode(answer_, out.subspan(sizeof(wire::PlainHeader)));
  return finish_frame(out, wire::FrameType::kHelloAck, peer_number_, wire::echo_of(asked_),
                      static_cast<uint32_t>(bytes));
}

// It names the number in the HELLO.
uint32_t Opening::write_refusal(std::span<std::byte> out, const Error& error) const {
  return mercury::write_refusal(out, wire::echo_of(asked_),
                                {peer_number_, error.code, error.message});
}

}  // namespace mercury
