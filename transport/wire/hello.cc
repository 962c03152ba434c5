#include "transport/wire/hello.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "transport/wire/be.h"

namespace mercury::wire {
namespace {

// Fixed parts; a job name or a text follows, `text_bytes` long.
struct HelloWire {
  uint8_t version_min;
  uint8_t version_max;
  uint8_t kind;
  uint8_t role;
  Be32 features;
  Be32 session;
  Be16 rank;
  Be16 lane;
  Be32 incarnation;
  Be16 max_udp_payload;
  Be16 text_bytes;
  Nonce nonce;
  Proof proof;
};
static_assert(sizeof(HelloWire) == 72 && alignof(HelloWire) == 1);

struct HelloAckWire {
  uint8_t version;
  uint8_t zero[3];
  Be32 features;
  Be32 session;
  Be32 incarnation;
  Be16 max_udp_payload;
  Be16 zero2;
  Nonce nonce;
  Proof proof;
};
static_assert(sizeof(HelloAckWire) == kHelloAckBytes && alignof(HelloAckWire) == 1);

struct ReasonWire {
  Be32 session;
  Be16 code;
  Be16 text_bytes;
};
static_assert(sizeof(ReasonWire) == 8);

template <class Wire>
size_t put(const Wire& fixed, std::string_view text, std::span<std::byte> out) {
  if (out.size() < sizeof fixed + text.size()) return 0;
  std::memcpy(out.data(), &fixed, sizeof fixed);
  if (!text.empty()) std::memcpy(out.data() + sizeof fixed, text.data(), text.size());
  return sizeof fixed + text.size();
}

// The fixed part, if the body is that and `text_bytes` of text, no more and no less.
template <class Wire>
bool get(std::span<const std::byte> body, Wire& fixed, std::string& text, size_t most_text) {
  if (body.size() < sizeof fixed) return false;
  std::memcpy(&fixed, body.data(), sizeof fixed);
  const size_t text_bytes = fixed.text_bytes.value();
  if (text_bytes > most_text || body.size() != sizeof fixed + text_bytes) return false;
  text.assign(reinterpret_cast<const char*>(body.data()) + sizeof fixed, text_bytes);
  return true;
}

}  // namespace

size_t encode(const Hello& hello, std::span<std::byte> out) {
  if (hello.job.size() > kMaxJobNameBytes) return 0;
  const HelloWire wire{hello.version_min,
                       hello.version_max,
                       static_cast<uint8_t>(hello.kind),
                       hello.role,
                       Be32(hello.features),
                       Be32(hello.session),
                       Be16(hello.rank),
                       Be16(hello.lane),
                       Be32(hello.incarnation),
                       Be16(hello.max_udp_payload),
                       Be16(static_cast<uint16_t>(hello.job.size())),
                       hello.nonce,
                       hello.proof};
  return put(wire, hello.job, out);
}

size_t encode(const HelloAck& ack, std::span<std::byte> out) {
  const HelloAckWire wire{ack.version,
                          {},
                          Be32(ack.features),
                          Be32(ack.session),
                          Be32(ack.incarnation),
                          Be16(ack.max_udp_payload),
                          Be16(0),
                          ack.nonce,
                          ack.proof};
  const std::string_view confirmation =
      ack.confirmation ? std::string_view(reinterpret_cast<const char*>(ack.confirmation->data()),
                                          ack.confirmation->size())
                       : std::string_view();
  return put(wire, confirmation, out);
}

size_t encode(const Reason& reason, std::span<std::byte> out) {
  const std::string_view text = std::string_view(reason.text).substr(0, kMaxReason);
  const ReasonWire wire{Be32(reason.session), Be16(static_cast<uint16_t>(reason.code)),
                        Be16(static_cast<uint16_t>(text.size()))};
  return put(wire, text, out);
}

std::optional<Hello> decode_hello(std::span<const std::byte> body) {
  HelloWire wire;
  Hello hello;
  if (!get(body, wire, hello.job, kMaxJobNameBytes)) return std::nullopt;
  if (wire.version_min == 0 || wire.version_min > wire.version_max ||
      wire.kind > static_cast<uint8_t>(SessionKind::kData) || wire.session.value() == 0 ||
      wire.max_udp_payload.value() < kMinUdpPayload || !is_job_name(hello.job)) {
    return std::nullopt;
  }
  hello.version_min = wire.version_min;
  hello.version_max = wire.version_max;
  hello.kind = static_cast<SessionKind>(wire.kind);
  hello.role = wire.role;
  hello.features = wire.features.value();
  hello.session = wire.session.value();
  hello.rank = wire.rank.value();
  hello.lane = wire.lane.value();
  hello.incarnation = wire.incarnation.value();
  hello.max_udp_payload = wire.max_udp_payload.value();
  hello.nonce = wire.nonce;
  hello.proof = wire.proof;
  return hello;
}

std::optional<HelloAck> decode_hello_ack(std::span<const std::byte> body) {
  HelloAckWire wire;
  const bool confirms = body.size() == sizeof wire + sizeof(Proof);
  if (body.size() != sizeof wire && !confirms) return std::nullopt;
  std::memcpy(&wire, body.data(), sizeof wire);
  if (wire.session.value() == 0 || wire.version == 0 ||
      wire.max_udp_payload.value() < kMinUdpPayload) {
    return std::nullopt;
  }
  HelloAck ack{wire.version,
               wire.features.value(),
               wire.session.value(),
               wire.max_udp_payload.value(),
               wire.incarnation.value(),
               wire.nonce,
               wire.proof,
               std::nullopt};
  if (confirms)
    std::memcpy(ack.confirmation.emplace().data(), body.data() + sizeof wire, sizeof(Proof));
  return ack;
}

std::string token_text(uint64_t token) {
  std::array<char, 17> text{};
  snprintf(text.data(), text.size(), "%016" PRIx64, token);
  return text.data();
}

std::optional<uint64_t> token_of(std::string_view text) {
  uint64_t token = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), token, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return token;
}

std::optional<Reason> decode_reason(std::span<const std::byte> body) {
  ReasonWire wire;
  Reason reason;
  if (!get(body, wire, reason.text, kMaxReason)) return std::nullopt;
  if (!is_known_errc(wire.code.value())) return std::nullopt;
  // The text is shown to people: nothing in it may steer a terminal.
  std::replace_if(
      reason.text.begin(), reason.text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  reason.session = wire.session.value();
  reason.code = static_cast<Errc>(wire.code.value());
  return reason;
}

}  // namespace mercury::wire
