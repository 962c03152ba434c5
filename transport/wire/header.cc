#include "transport/wire/header.h"

#include <array>
#include <cstring>

#include "transport/wire/crc32c.h"

namespace mercury::wire {
namespace {

// A header is six words of 64 bits (a plain one four), put together and summed in registers: fields
// that were stored one by one could not be forwarded to loads of whole words, and waiting for that
// cost three times what the rest does (benchmarks/wire).
constexpr size_t kPlainWords = sizeof(PlainHeader) / 8;
constexpr size_t kCrcWord = offsetof(CommonHeader, header_crc) / 8;
static_assert(kPlainWords == 4 && sizeof(ChunkHeader) == 6 * 8);
static_assert(kCrcWord == 1 && offsetof(CommonHeader, header_crc) % 8 == 4, "its last four bytes");

constexpr uint64_t swap(uint64_t word) { return __builtin_bswap64(word); }
constexpr uint64_t join(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }
constexpr uint32_t join(uint16_t high, uint16_t low) { return uint32_t{high} << 16 | low; }
constexpr auto high32(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr auto low32(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr auto high16(uint32_t half) { return static_cast<uint16_t>(half >> 16); }
constexpr auto low16(uint32_t half) { return static_cast<uint16_t>(half); }

uint64_t load(const std::byte* from) noexcept {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}
void store(uint64_t word, std::byte* to) noexcept { std::memcpy(to, &word, sizeof word); }

// `words`: as they lie in memory.
[[gnu::noinline]] uint32_t crc_of_plain_header(std::array<uint64_t, kPlainWords> words) noexcept {
  return crc32c(std::as_bytes(std::span(words)));
}

}  // namespace

DecodeError decode(std::span<const std::byte> frame, Header& header,
                   std::span<const std::byte>& payload) noexcept {
  if (frame.size() < sizeof(PlainHeader)) return DecodeError::kTruncated;
  const auto raw = [&frame](size_t i) { return load(frame.data() + 8 * i); };
  const uint64_t first = swap(raw(0));
  const uint32_t kind = high32(first);
  if (high16(kind) != kMagic) return DecodeError::kBadMagic;
  const uint32_t type = kind & 0xff;
  if ((kind >> 8 & 0xff) != version_of(static_cast<FrameType>(type))) {
    return DecodeError::kBadVersion;
  }
  if (type == 0 || type > kMaxFrameType) return DecodeError::kBadType;
  header.type = static_cast<FrameType>(type);
  header.flags = high16(low32(first));
  header.payload_bytes = low16(low32(first));
  const bool chunk = is_chunk(header.type);
  const size_t bytes = header_bytes(header.type);
  if (frame.size() < bytes) return DecodeError::kTruncated;
  const uint64_t unsummed = low32(raw(kCrcWord));  // its first four bytes
  const uint32_t sum = chunk ? crc32c_of_words(raw(0), unsummed, raw(2), raw(3), raw(4), raw(5))
                             : crc_of_plain_header({raw(0), unsummed, raw(2), raw(3)});
  const uint64_t second = swap(raw(kCrcWord));
  header.tag = sum ^ low32(second);
  if (header.tag != 0 && !is_tagged(header.type)) return DecodeError::kBadHeaderCrc;
  header.session = high32(second);
  header.packet_number = swap(raw(2));
  if (frame.size() != bytes + header.payload_bytes) return DecodeError::kBadLength;
  payload = frame.subspan(bytes);
  const uint64_t fourth = swap(raw(3));
  const uint64_t fifth = chunk ? swap(raw(4)) : 0, sixth = chunk ? swap(raw(5)) : 0;
  header.round = chunk ? high32(fourth) : 0;
  header.tensor = chunk ? low32(fourth) : 0;
  header.chunk = high32(fifth);
  header.priority = high16(low32(fifth));
  header.sender = low16(low32(fifth));
  header.incarnation = high32(sixth);
  header.payload_crc = chunk ? low32(sixth) : high32(fourth);
  header.grant = chunk ? uint16_t{0} : high16(low32(fourth));
  header.idle_grant = chunk ? uint16_t{0} : low16(low32(fourth));
  return DecodeError::kNone;
}

void encode(const Header& header, std::byte* out) noexcept {
  const auto put = [out](size_t i, uint64_t word) { store(word, out + 8 * i); };
  const auto kind = static_cast<uint32_t>(kMagic << 16 | version_of(header.type) << 8 |
                                          static_cast<uint8_t>(header.type));
  const uint64_t first = swap(join(kind, join(header.flags, header.payload_bytes)));
  const uint64_t unsummed = swap(join(header.session, uint32_t{0}));
  const uint64_t third = swap(header.packet_number);
  put(0, first);
  put(2, third);
  uint32_t sum;
  if (is_chunk(header.type)) [[likely]] {
    const uint64_t fourth = swap(join(header.round, header.tensor));
    const uint64_t fifth = swap(join(header.chunk, join(header.priority, header.sender)));
    const uint64_t sixth = swap(join(header.incarnation, header.payload_crc));
    put(3, fourth);
    put(4, fifth);
    put(5, sixth);
    sum = crc32c_of_words(first, unsummed, third, fourth, fifth, sixth);
  } else {
    const uint64_t fourth = swap(join(header.payload_crc, join(header.grant, header.idle_grant)));
    put(3, fourth);
    sum = crc_of_plain_header({first, unsummed, third, fourth});
  }
  put(kCrcWord, unsummed | swap(uint64_t{sum ^ header.tag}));
}

}  // namespace mercury::wire
