// Gradient path: step 5/8, from the engine loop, to the port: the header before each datagram's
// payload, which the engine copies and sums in one pass (Engine::send_datagram).
//
// The wire format: what stands behind the UDP header of every Mercury frame. docs/protocol.md has
// the same pictures and the rules; tests/transport/wire/golden_frames.h holds the bytes.
//
// All numbers are big-endian. What a datagram says is its service's: the exchange of gradients
// sends chunks (aggregator/frame/chunk_header.h). Each frame carries two CRC-32C: one of the
// payload, one of the header that holds the first. So a header is trusted before its payload is
// touched, and a payload that several sessions share is summed once. Once a session is open both
// are combined (exclusive or) with its tag, 64 bits that only its two ends know (flow/frame_tag.h):
// who has not seen the session's frames cannot forge one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/wire/be.h"

namespace mercury::wire {

inline constexpr uint16_t kMagic = 0x4d55;       // "MU"
inline constexpr uint8_t kVersion = 2;           // of an open session's frames
inline constexpr uint8_t kHandshakeVersion = 1;  // of HELLO, HELLO_ACK and REFUSE, for ever

// Values travel; append only.
enum class FrameType : uint8_t {
  kHello = 1,     // opens a session (hello.h)
  kHelloAck = 2,  // accepts it
  kRefuse = 3,    // refuses it: Errc and text
  kClose = 4,     // ends a session: Errc and text
  kAck = 5,       // acknowledgement ranges (ack.h)
  kPing = 6,      // asks for an ACK: tail probe and keepalive; with a payload it probes the MTU
  kControl = 7,   // bytes of the session's ordered control stream (control.h)
  // A datagram of the session's service, of one of two types that it tells apart: whole, unordered,
  // acknowledged; one that is lost is the service's to send again.
  kDatagram0 = 8,
  kDatagram1 = 9,
  // Where both sides have kFeatureStreams (hello.h), else nobody sends them (stream.h):
  kStream = 10,        // bytes of one of the session's streams
  kStreamCredit = 11,  // how far a stream may go, or how many streams there may be
  kStreamReset = 12,   // ends a stream both ways at once: Errc
  // Where both sides have kFeatureResets (hello.h):
  kResetToken = 13,  // what its sender's kReset will show, masked
  kReset = 14,       // of a host that does not know the session any more: its token
  kPart = 15,        // where both have kFeatureParts: of a frame that is more than the path carries
  // Where both have kFeatureMoves and frames have seals (path_data.h):
  kPathChallenge = 16,  // to where frames of the peer come from, which is not where it was
  kPathResponse = 17,   // from there
  // Where both have kFeatureSourcePorts (source_ports.h): where datagrams will come from, too.
  kSourcePorts = 18,
};
inline constexpr uint8_t kMaxFrameType = 18;

// Every frame begins with these 24 bytes.
//
//  0                   1                   2                   3
//  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
// +-------------------------------+---------------+---------------+
// |          magic "MU"           |    version    |     type      |
// +-------------------------------+---------------+---------------+
// |             flags             |        payload bytes          |
// +-------------------------------+-------------------------------+
// |              session (number that the receiver chose)         |
// +---------------------------------------------------------------+
// |  CRC-32C of the header, this field taken as zero; ^ tag       |
// +---------------------------------------------------------------+
// |                                                               |
// |    packet number (never used twice); answers to HELLO: echo   |
// +---------------------------------------------------------------+
struct CommonHeader {
  Be16 magic;
  uint8_t version;
  uint8_t type;
  Be16 flags;
  Be16 payload_bytes;  // what follows the header of this type
  Be32 session;        // 0 in HELLO; in RESET the number that its sender does not know
  Be32 header_crc;     // over the whole header of this type
  // HELLO_ACK, REFUSE: echo_of(HELLO's nonce) (hello.h); HELLO: token or 0; RESET: its token.
  Be64 packet_number;
};
static_assert(sizeof(CommonHeader) == 24 && alignof(CommonHeader) == 1);
static_assert(offsetof(CommonHeader, session) == 8 && offsetof(CommonHeader, header_crc) == 12 &&
              offsetof(CommonHeader, packet_number) == 16);

// Datagrams. The words are the service's.
//
// +---------------------------------------------------------------+ 24
// |                            words[0]                           |
// +---------------------------------------------------------------+
// |                            words[1]                           |
// +---------------------------------------------------------------+
// |                            words[2]                           |
// +-------------------------------+-------------------------------+
// |    priority, 0 before all     |           half_word           |
// +-------------------------------+-------------------------------+
// |                           last_word                           |
// +---------------------------------------------------------------+
// |               CRC-32C of the payload; ^ tag                   |
// +---------------------------------------------------------------+ 48
struct DatagramHeader {
  CommonHeader common;
  std::array<Be32, 3> words;
  Be16 priority;
  Be16 half_word;
  Be32 last_word;
  Be32 payload_crc;
};
static_assert(sizeof(DatagramHeader) == 48 && alignof(DatagramHeader) == 1);
static_assert(offsetof(DatagramHeader, words) == 24 && offsetof(DatagramHeader, payload_crc) == 44);

// All other types: 24 common bytes and the CRC of what follows. ACK: the receiver's grants, how
// much the peer may have in flight towards it now, and when it begins again after a pause, both in
// units of kGrantUnitBytes; 0 = no bound. PART: part.h. All others: zero.
struct PlainHeader {
  CommonHeader common;
  Be32 payload_crc;
  Be16 grant;
  Be16 idle_grant;
};
static_assert(sizeof(PlainHeader) == 32 && offsetof(PlainHeader, grant) == 28);
// Small enough to divide one frame among 64 senders, large enough for 8 MB in 16 bits.
inline constexpr uint32_t kGrantUnitBytes = 128;
// An idle grant below a frame is a rate: so much in each such time.
inline constexpr uint64_t kIdleGrantNs = 100'000;

enum Flag : uint16_t {
  kFlagAckNow = 1,      // the receiver acknowledges at once
  kFlagService = 2,     // datagram: the service's
  kFlagSealed = 4,      // a seal stands behind the header (seal.h): for who looks on, not believed
  kFlagLinkFree = 8,    // datagram: its sender's link was idle since the session's one before it
  kFlagAtMost = 16,     // ACK: of its microseconds some may have been the network's
  kFlagSpread = 32,     // datagram: from a port at which nobody hears (source_ports.h)
  kFlagEncrypted = 64,  // what stands behind the seal is encrypted: for who looks on, not believed
};

constexpr bool is_datagram(FrameType type) {
  return type == FrameType::kDatagram0 || type == FrameType::kDatagram1;
}
constexpr bool is_stream(FrameType type) {
  return type >= FrameType::kStream && type <= FrameType::kStreamReset;
}
// HELLO, HELLO_ACK and REFUSE travel before both sides know the tag, RESET after one has lost it.
constexpr bool is_tagged(FrameType type) {
  return type > FrameType::kRefuse && type != FrameType::kReset;
}
// Hosts of any two versions must understand each other's handshakes.
constexpr uint8_t version_of(FrameType type) {
  const bool handshake = type >= FrameType::kHello && type <= FrameType::kRefuse;
  return handshake ? kHandshakeVersion : kVersion;
}
constexpr size_t header_bytes(FrameType type) {
  return is_datagram(type) ? sizeof(DatagramHeader) : sizeof(PlainHeader);
}

// A header in host form, for both shapes (a plain header leaves the datagram's fields zero).
struct Header {
  FrameType type = FrameType::kPing;
  uint16_t flags = 0;
  uint16_t payload_bytes = 0;
  uint32_t session = 0;
  uint32_t tag = 0;  // what the header's CRC is combined with
  uint64_t packet_number = 0;
  std::array<uint32_t, 3> words{};  // datagram, as all up to its payload_crc
  uint16_t priority = 0;
  uint16_t half_word = 0;
  uint32_t last_word = 0;
  uint32_t payload_crc = 0;  // as it travels
  uint16_t grant = 0;        // ACK, PART
  uint16_t idle_grant = 0;
};

enum class DecodeError : uint8_t {
  kNone,
  kTruncated,
  kBadMagic,
  kBadVersion,
  kBadType,
  kBadLength,
  kBadHeaderCrc
};

// `frame` is one UDP payload. Checks, in this order: room for a plain header (kTruncated), magic,
// version, type, room for this type's header (kTruncated), header CRC of types without a tag, and
// that payload_bytes is exactly what follows (kBadLength). Of the other types `tag` is what would
// make the header's CRC right: the consumer compares it with the session's before it believes any
// field but `session`. The payload's CRC is the consumer's to check, in the pass in which it copies
// or adds. Every field of `header` is set, and `payload` to the payload bytes within `frame`; both
// mean nothing after an error. Unknown flags and non-zero reserved bytes are ignored.
DecodeError decode(std::span<const std::byte> frame, Header& header,
                   std::span<const std::byte>& payload) noexcept;

// Writes the header of `header.type` (header_bytes(type) bytes) to `out`, header CRC included.
void encode(const Header& header, std::byte* out) noexcept;
// The same for who knows that it is a datagram's.
void encode_datagram(const Header& header, std::byte* out) noexcept;

}  // namespace mercury::wire
