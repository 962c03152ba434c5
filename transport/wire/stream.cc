#include "transport/wire/stream.h"

#include <cstring>

#include "transport/wire/be.h"

namespace mercury::wire {
namespace {

struct StreamWire {
  Be32 stream;
  Be16 flags_or_code;
  Be16 zero;
  Be64 offset;
};
static_assert(sizeof(StreamWire) == kStreamHeaderBytes && alignof(StreamWire) == 1);

constexpr uint16_t kFlagEnd = 1;

void put(uint32_t stream, uint16_t flags_or_code, uint64_t offset, std::byte* out) noexcept {
  const StreamWire wire{Be32(stream), Be16(flags_or_code), Be16(0), Be64(offset)};
  std::memcpy(out, &wire, sizeof wire);
}

StreamWire get(std::span<const std::byte> payload) noexcept {
  StreamWire wire;
  std::memcpy(&wire, payload.data(), sizeof wire);
  return wire;
}

}  // namespace

void encode_stream(uint32_t stream, bool end, uint64_t offset, std::byte* out) noexcept {
  put(stream, end ? kFlagEnd : uint16_t{0}, offset, out);
}
void encode(const StreamCredit& credit, std::byte* out) noexcept {
  put(credit.stream, 0, credit.limit, out);
}
void encode(const StreamReset& reset, std::byte* out) noexcept {
  put(reset.stream, static_cast<uint16_t>(reset.code), reset.sent_bytes, out);
}

std::optional<StreamPiece> decode_stream(std::span<const std::byte> payload) noexcept {
  if (payload.size() < kStreamHeaderBytes) return std::nullopt;
  const StreamWire wire = get(payload);
  const StreamPiece piece{wire.stream.value(), (wire.flags_or_code.value() & kFlagEnd) != 0,
                          wire.offset.value(), payload.subspan(kStreamHeaderBytes)};
  if (piece.stream == 0 || (piece.bytes.empty() && !piece.end)) return std::nullopt;
  if (piece.offset > kMaxStreamBytes - piece.bytes.size()) return std::nullopt;
  return piece;
}

std::optional<StreamCredit> decode_stream_credit(std::span<const std::byte> payload) noexcept {
  if (payload.size() != kStreamHeaderBytes) return std::nullopt;
  const StreamWire wire = get(payload);
  if (wire.offset.value() > kMaxStreamBytes) return std::nullopt;
  return StreamCredit{wire.stream.value(), wire.offset.value()};
}

std::optional<StreamReset> decode_stream_reset(std::span<const std::byte> payload) noexcept {
  if (payload.size() != kStreamHeaderBytes) return std::nullopt;
  const StreamWire wire = get(payload);
  if (wire.stream.value() == 0 || wire.offset.value() > kMaxStreamBytes) return std::nullopt;
  const uint16_t code = wire.flags_or_code.value();
  return StreamReset{wire.stream.value(),
                     is_known_errc(code) && code != 0 ? static_cast<Errc>(code) : Errc::kPeerLeft,
                     wire.offset.value()};
}

}  // namespace mercury::wire
