#include "transport/wire/header.h"

#include <array>
#include <cstring>

#include "transport/wire/crc32c.h"

namespace mercury::wire {
namespace {

// A header is six words of 64 bits (a plain one four), put together and taken apart in registers:
// fields that were stored one by one could not be forwarded to the loads of whole words that the
// CRC does, and waiting for that cost three times what the rest does (benchmarks/wire).
using Words = std::array<uint64_t, sizeof(ChunkHeader) / 8>;  // in host order, first byte highest

constexpr size_t kCrcWord = offsetof(CommonHeader, header_crc) / 8;
static_assert(offsetof(CommonHeader, header_crc) % 8 == 4, "the lower half of its word");

uint32_t crc_of(const Words& words, size_t bytes) noexcept {
  Words memory;
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = __builtin_bswap64(words[i]);
  return crc32c(std::as_bytes(std::span(memory)).data(), bytes);
}

constexpr uint64_t join(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }
constexpr uint32_t join(uint16_t high, uint16_t low) { return uint32_t{high} << 16 | low; }
constexpr auto high32(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr auto low32(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr auto high16(uint32_t half) { return static_cast<uint16_t>(half >> 16); }
constexpr auto low16(uint32_t half) { return static_cast<uint16_t>(half); }

uint64_t load(const std::byte* from) noexcept {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return __builtin_bswap64(word);
}
void store(uint64_t word, std::byte* to) noexcept {
  word = __builtin_bswap64(word);
  std::memcpy(to, &word, sizeof word);
}

}  // namespace

DecodeError decode(std::span<const std::byte> frame, Header& header,
                   std::span<const std::byte>& payload) noexcept {
  if (frame.size() < sizeof(PlainHeader)) return DecodeError::kTruncated;
  Words words{};
  words[0] = load(frame.data());
  const uint32_t kind = high32(words[0]);
  if (high16(kind) != kMagic) return DecodeError::kBadMagic;
  const uint32_t type = kind & 0xff;
  if ((kind >> 8 & 0xff) != version_of(static_cast<FrameType>(type))) {
    return DecodeError::kBadVersion;
  }
  if (type == 0 || type > kMaxFrameType) return DecodeError::kBadType;
  header.type = static_cast<FrameType>(type);
  const bool chunk = is_chunk(header.type);
  const size_t bytes = header_bytes(header.type);
  if (frame.size() < bytes) return DecodeError::kTruncated;
  for (size_t i = 1; i < 4; ++i) words[i] = load(frame.data() + 8 * i);
  if (chunk) {
    for (size_t i = 4; i < 6; ++i) words[i] = load(frame.data() + 8 * i);
  }
  const uint32_t sum = low32(words[kCrcWord]);
  words[kCrcWord] ^= sum;
  header.tag = crc_of(words, bytes) ^ sum;
  if (header.tag != 0 && !is_tagged(header.type)) return DecodeError::kBadHeaderCrc;
  header.flags = high16(low32(words[0]));
  header.payload_bytes = low16(low32(words[0]));
  header.session = high32(words[1]);
  header.packet_number = words[2];
  if (frame.size() != bytes + header.payload_bytes) return DecodeError::kBadLength;
  payload = frame.subspan(bytes);
  header.round = chunk ? high32(words[3]) : 0;
  header.tensor = chunk ? low32(words[3]) : 0;
  header.chunk = high32(words[4]);  // zero in a plain header, as what follows
  header.priority = high16(low32(words[4]));
  header.sender = low16(low32(words[4]));
  header.incarnation = high32(words[5]);
  header.payload_crc = chunk ? low32(words[5]) : high32(words[3]);
  header.grant = chunk ? uint16_t{0} : high16(low32(words[3]));
  header.idle_grant = chunk ? uint16_t{0} : low16(low32(words[3]));
  return DecodeError::kNone;
}

void encode(const Header& header, std::byte* out) noexcept {
  const auto kind = static_cast<uint32_t>(kMagic << 16 | version_of(header.type) << 8 |
                                          static_cast<uint8_t>(header.type));
  Words words{join(kind, join(header.flags, header.payload_bytes)),
              join(header.session, uint32_t{0}), header.packet_number};
  const bool chunk = is_chunk(header.type);
  if (chunk) {
    words[3] = join(header.round, header.tensor);
    words[4] = join(header.chunk, join(header.priority, header.sender));
    words[5] = join(header.incarnation, header.payload_crc);
  } else {
    words[3] = join(header.payload_crc, join(header.grant, header.idle_grant));
  }
  words[kCrcWord] |= crc_of(words, header_bytes(header.type)) ^ header.tag;
  for (size_t i = 0; i < 4; ++i) store(words[i], out + 8 * i);
  if (!chunk) return;
  for (size_t i = 4; i < 6; ++i) store(words[i], out + 8 * i);
}

}  // namespace mercury::wire
