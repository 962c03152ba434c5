#include "transport/flow/handshake.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "transport/base/random.h"
#include "transport/wire/crc32c.h"

namespace mercury {
namespace {

std::string range_text(uint8_t oldest, uint8_t newest) {
  const std::string first = std::to_string(oldest);
  return oldest == newest ? first : first + " to " + std::to_string(newest);
}

}  // namespace

Result<uint8_t> negotiate_version(const wire::Hello& hello, const wire::Versions& own) {
  const uint8_t newest = std::min(hello.version_max, own.newest);
  if (newest >= std::max(hello.version_min, own.oldest)) return newest;
  return Error(Errc::kVersionMismatch, "the connecting side speaks wire version " +
                                           range_text(hello.version_min, hello.version_max) +
                                           ", the answering side " +
                                           range_text(own.oldest, own.newest));
}

uint32_t finish_frame(std::span<std::byte> out, wire::FrameType type, uint32_t session,
                      uint64_t echo, uint32_t body_bytes) noexcept {
  wire::Header header;
  header.type = type;
  header.session = session;
  header.packet_number = echo;
  const std::byte* const body = out.data() + wire::header_bytes(type);
  return finish_frame(out, header, body_bytes, wire::crc32c(body, body_bytes));
}

uint32_t finish_frame(std::span<std::byte> out, wire::Header header, uint32_t body_bytes,
                      uint32_t payload_crc) noexcept {
  header.payload_bytes = static_cast<uint16_t>(body_bytes);
  header.payload_crc = payload_crc;
  wire::encode(header, out.data());
  return static_cast<uint32_t>(wire::header_bytes(header.type)) + body_bytes;
}

uint32_t write_refusal(std::span<std::byte> out, uint64_t echo, const wire::Reason& reason) {
  const size_t head_bytes = wire::header_bytes(wire::FrameType::kRefuse);
  if (out.size() < head_bytes + wire::kMaxHandshakeBytes) return 0;
  const size_t bytes = wire::encode(reason, out.subspan(head_bytes));
  return finish_frame(out, wire::FrameType::kRefuse, reason.session, echo,
                      static_cast<uint32_t>(bytes));
}

void HelloTimer::start(const wire::Hello& hello, uint64_t timeout_ns, uint64_t now_ns) {
  body_.resize(wire::kMaxHandshakeBytes);
  body_.resize(wire::encode(hello, body_));
  expires_ns_ = now_ns + timeout_ns;
  version_min_ = hello.version_min;
  version_max_ = hello.version_max;
  std::memcpy(&random_, hello.nonce.data(), sizeof random_);
  due_ = true;
}

uint64_t HelloTimer::deadline_ns() const noexcept { return std::min(expires_ns_, retry_ns_); }

void HelloTimer::on_timer(uint64_t now_ns) noexcept {
  if (now_ns >= retry_ns_) say_again();
}

void HelloTimer::say_again() noexcept {
  if (body_.empty()) return;
  due_ = true;
  retry_ns_ = kNever;
}

void HelloTimer::on_sent(uint64_t now_ns) noexcept {
  due_ = false;
  ++sent_;
  last_sent_ns_ = now_ns;
  retry_ns_ = now_ns + interval_ns_ + ((interval_ns_ / 4) * (split_mix(random_) >> 32) >> 32);
  interval_ns_ = std::min(interval_ns_ * 2, kLastRetryNs);
}

}  // namespace mercury
