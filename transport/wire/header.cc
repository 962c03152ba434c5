#include "transport/wire/header.h"

#include <array>
#include <cstring>

#include "transport/wire/crc32c.h"
#include "transport/wire/crc32c_kernels.h"

namespace mercury::wire {
namespace {

// A header is six words of 64 bits (a plain one four), put together, taken apart and, in datagrams,
// summed in registers: fields that were stored one by one could not be forwarded to loads of whole
// words, and waiting for that cost three times what the rest does (benchmarks/wire).
constexpr size_t kPlainWords = sizeof(PlainHeader) / 8;
static_assert(kPlainWords == 4 && sizeof(DatagramHeader) == 6 * 8);
static_assert(offsetof(CommonHeader, header_crc) == 8 + 4, "the last four bytes of word 1");

constexpr uint64_t swapped(uint64_t word) { return __builtin_bswap64(word); }
constexpr uint64_t join(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }
constexpr uint32_t join(uint16_t high, uint16_t low) { return uint32_t{high} << 16 | low; }
constexpr auto high32(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr auto low32(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr auto high16(uint32_t half) { return static_cast<uint16_t>(half >> 16); }
constexpr auto low16(uint32_t half) { return static_cast<uint16_t>(half); }

// What a frame begins with: magic, version and type.
constexpr uint32_t kind_of(FrameType type) {
  return uint32_t{kMagic} << 16 | uint32_t{version_of(type)} << 8 | static_cast<uint8_t>(type);
}

// Once, whatever the compiler would prefer: what is believed is what was summed.
uint64_t load(const std::byte* from) noexcept {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return read_once(word);
}
void store(uint64_t word, std::byte* to) noexcept { std::memcpy(to, &word, sizeof word); }

// What all headers have, as it lies in memory; `unsummed` still without its CRC.
struct CommonWords {
  uint64_t word0;
  uint64_t unsummed;
  uint64_t word2;
};
CommonWords common_words(uint32_t kind, const Header& header) noexcept {
  return {swapped(join(kind, join(header.flags, header.payload_bytes))),
          swapped(join(header.session, uint32_t{0})), swapped(header.packet_number)};
}
void store_common(const CommonWords& words, uint32_t crc, std::byte* out) noexcept {
  store(words.word0, out);
  store(words.unsummed | swapped(uint64_t{crc}), out + 8);
  store(words.word2, out + 16);
}

// As they lie in memory. Apart, as it goes over memory, which the words of datagrams should not.
[[gnu::noinline]] uint32_t crc_of_plain_header(std::array<uint64_t, kPlainWords> words) noexcept {
  return crc32c(std::as_bytes(std::span(words)));
}

}  // namespace

DecodeError decode(std::span<const std::byte> frame, Header& header,
                   std::span<const std::byte>& payload) noexcept {
  if (frame.size() < sizeof(PlainHeader)) return DecodeError::kTruncated;
  const std::byte* const at = frame.data();
  const uint64_t word0 = load(at);
  const uint64_t first = swapped(word0);
  const uint32_t kind = high32(first);
  const uint32_t type = kind & 0xff;
  if (kind != kind_of(static_cast<FrameType>(type))) [[unlikely]] {
    return high16(kind) != kMagic ? DecodeError::kBadMagic : DecodeError::kBadVersion;
  }
  if (type == 0 || type > kMaxFrameType) return DecodeError::kBadType;
  header.type = static_cast<FrameType>(type);
  header.flags = high16(low32(first));
  header.payload_bytes = low16(low32(first));
  const bool datagram = is_datagram(header.type);
  const size_t bytes = header_bytes(header.type);
  if (frame.size() < bytes) return DecodeError::kTruncated;
  const uint64_t word1 = load(at + 8), word2 = load(at + 16), word3 = load(at + 24);
  const uint64_t word4 = datagram ? load(at + 32) : 0, word5 = datagram ? load(at + 40) : 0;
  const uint64_t unsummed = low32(word1);  // its first four bytes
  const uint32_t sum = datagram ? crc32c_of_words(word0, unsummed, word2, word3, word4, word5)
                                : crc_of_plain_header({word0, unsummed, word2, word3});
  header.tag = sum ^ low32(swapped(word1));
  if (!datagram && header.tag != 0 && !is_tagged(header.type)) return DecodeError::kBadHeaderCrc;
  header.session = high32(swapped(word1));
  header.packet_number = swapped(word2);
  if (frame.size() != bytes + header.payload_bytes) return DecodeError::kBadLength;
  payload = frame.subspan(bytes);
  const uint64_t host3 = swapped(word3), host4 = swapped(word4), host5 = swapped(word5);
  header.words[0] = datagram ? high32(host3) : 0;
  header.words[1] = datagram ? low32(host3) : 0;
  header.words[2] = high32(host4);  // zero in a plain header, as what follows
  header.priority = high16(low32(host4));
  header.half_word = low16(low32(host4));
  header.last_word = high32(host5);
  header.payload_crc = datagram ? low32(host5) : high32(host3);
  header.grant = datagram ? uint16_t{0} : high16(low32(host3));
  header.idle_grant = datagram ? uint16_t{0} : low16(low32(host3));
  return DecodeError::kNone;
}

void encode(const Header& header, std::byte* out) noexcept {
  if (is_datagram(header.type)) return encode_datagram(header, out);
  const CommonWords common = common_words(kind_of(header.type), header);
  const uint64_t word3 = swapped(join(header.payload_crc, join(header.grant, header.idle_grant)));
  store(word3, out + 24);
  const uint32_t sum = crc_of_plain_header({common.word0, common.unsummed, common.word2, word3});
  store_common(common, sum ^ header.tag, out);
}

void encode_datagram(const Header& header, std::byte* out) noexcept {
  constexpr uint32_t kKind = kind_of(FrameType::kDatagram0);
  static_assert(kKind % 2 == 0 && kind_of(FrameType::kDatagram1) == kKind + 1, "one bit apart");
  const CommonWords common = common_words(kKind | static_cast<uint32_t>(header.type), header);
  const uint64_t word3 = swapped(join(header.words[0], header.words[1]));
  const uint64_t word4 = swapped(join(header.words[2], join(header.priority, header.half_word)));
  const uint64_t word5 = swapped(join(header.last_word, header.payload_crc));
  store(word3, out + 24);
  store(word4, out + 32);
  store(word5, out + 40);
  const uint32_t sum =
      crc32c_of_words(common.word0, common.unsummed, common.word2, word3, word4, word5);
  store_common(common, sum ^ header.tag, out);
}

}  // namespace mercury::wire
