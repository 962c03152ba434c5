// Everything that is decoded from a packet: headers, handshakes, acknowledgements, control pieces,
// and the messages that the control stream carries; and the Ethernet frames around them, with the
// questions of neighbours that an interface of our own answers. The input's first byte chooses
// which.
//
// Beyond not crashing: what decodes encodes again to the same, and what is encoded decodes.
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "aggregator/frame/contributors.h"
#include "shim/job/messages.h"
#include "tests/fuzz/fuzz_input.h"
#include "transport/port/ethdev/ip.h"
#include "transport/port/ethdev/nd.h"
#include "transport/wire/ack.h"
#include "transport/wire/control.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/header.h"
#include "transport/wire/hello.h"
#include "transport/wire/part.h"
#include "transport/wire/path_data.h"
#include "transport/wire/source_ports.h"
#include "transport/wire/stream.h"

namespace mercury::fuzz {
namespace {

using Bytes = std::span<const std::byte>;

// Decodes, encodes, decodes and encodes again: both encodings are the same.
template <class Decode>
void round_trip(Bytes body, Decode decode, const char* what) {
  const auto first = decode(body);
  if (!first) return;
  std::array<std::byte, wire::kMaxHandshakeBytes> one{}, two{};
  const size_t bytes = wire::encode(*first, one);
  must(bytes > 0, what);
  const auto second = decode(Bytes(one).first(bytes));
  must(second.has_value(), what);
  must(wire::encode(*second, two) == bytes && one == two, what);
}

void hello(Bytes body) {
  round_trip(body, wire::decode_hello, "a HELLO changes when it is encoded again");
  if (const auto decoded = wire::decode_hello(body)) {
    std::array<std::byte, wire::kMaxHandshakeBytes> out{};
    must(wire::encode(*decoded, out) == body.size() &&
             std::equal(body.begin(), body.end(), out.begin()),
         "a HELLO is encoded differently");
  }
}

void ack(Bytes body) {
  wire::Ack first;
  if (!wire::decode(body, first)) return;
  must(first.count >= 1 && first.count <= wire::kMaxAckRanges, "an ACK's number of ranges");
  for (size_t i = 0; i < first.count; ++i) {
    must(first.ranges[i].first <= first.ranges[i].last, "an ACK's range is upside down");
    must(i == 0 || first.ranges[i].last < first.ranges[i - 1].first - 1, "an ACK's order");
  }
  must(first.refused <= wire::kMaxRefusedRanges, "an ACK's number of refused ranges");
  for (size_t i = 0; i < first.refused; ++i) {
    const wire::AckRange& range = first.refused_ranges[i];
    must(range.first <= range.last, "an ACK's refused range is upside down");
    must(range.last <= (i == 0 ? first.ranges[0].last : first.refused_ranges[i - 1].first - 1),
         "the order of an ACK's refused ranges");
  }
  std::array<std::byte, wire::ack_bytes(wire::kMaxAckRanges, wire::kMaxRefusedRanges)> out{};
  const size_t bytes = wire::encode(first, out);
  wire::Ack second;
  must(bytes == body.size() && wire::decode(Bytes(out).first(bytes), second),
       "an ACK is encoded differently");
  must(second.count == first.count && second.refused == first.refused &&
           second.delay_us == first.delay_us && second.marked == first.marked,
       "an ACK changes");
  const auto same = [](const wire::AckRange& a, const wire::AckRange& b) {
    return a.first == b.first && a.last == b.last;
  };
  must(std::equal(first.ranges, first.ranges + first.count, second.ranges, same) &&
           std::equal(first.refused_ranges, first.refused_ranges + first.refused,
                      second.refused_ranges, same),
       "an ACK's range changes");
}

void control(Bytes payload) {
  const auto piece = wire::decode_control(payload);
  if (!piece) return;
  std::array<std::byte, wire::kControlHeaderBytes> out{};
  wire::encode_control_offset(piece->offset, out.data());
  must(std::equal(out.begin(), out.end(), payload.begin()) &&
           piece->bytes.size() + out.size() == payload.size(),
       "a CONTROL piece changes");
}

// What is written from what was read reads the same.
void stream(wire::FrameType type, Bytes payload) {
  std::array<std::byte, wire::kStreamHeaderBytes> head{};
  std::vector<std::byte> copy(payload.begin(), payload.end());
  const auto again = [&] {
    std::copy(head.begin(), head.end(), copy.begin());
    return std::span<const std::byte>(copy);
  };
  if (type == wire::FrameType::kStream) {
    const auto one = wire::decode_stream(payload);
    if (!one) return;
    must(one->offset + one->bytes.size() <= wire::kMaxStreamBytes, "a stream's offset wraps");
    wire::encode_stream(one->stream, one->end, one->offset, head.data());
    const auto two = wire::decode_stream(again());
    must(two && two->stream == one->stream && two->end == one->end && two->offset == one->offset,
         "a STREAM changes");
  } else if (type == wire::FrameType::kStreamCredit) {
    const auto one = wire::decode_stream_credit(payload);
    if (!one) return;
    wire::encode(*one, head.data());
    const auto two = wire::decode_stream_credit(again());
    must(two && two->stream == one->stream && two->limit == one->limit, "a STREAM_CREDIT changes");
  } else {
    const auto one = wire::decode_stream_reset(payload);
    if (!one) return;
    must(one->code != Errc::kOk, "a STREAM_RESET without a reason");
    wire::encode(*one, head.data());
    const auto two = wire::decode_stream_reset(again());
    must(two && two->stream == one->stream && two->code == one->code &&
             two->sent_bytes == one->sent_bytes,
         "a STREAM_RESET changes");
  }
}

void control_message(Bytes bytes) {
  const Result<Message> first = decode_message(bytes);
  if (!first) return;
  const std::vector<std::byte> again = encode(*first);
  const Result<Message> second = decode_message(again);
  must(second && *second == *first, "a control message changes when it is encoded again");
}

void part(Bytes payload) {
  const auto one = wire::decode_part(payload);
  if (!one) return;
  must(one->offset + one->bytes.size() <= one->total, "a part beyond its frame's end");
  std::vector<std::byte> again(wire::kPartHeaderBytes);
  wire::encode_part(one->offset, one->total, again.data());
  again.insert(again.end(), one->bytes.begin(), one->bytes.end());
  must(std::ranges::equal(again, payload), "a PART changes");
}

// Behind a job's number of workers and how many are in the sum, which no frame says in one piece.
void contributors(Bytes payload) {
  std::array<wire::Be16, 2> numbers;
  if (payload.size() < sizeof numbers) return;
  std::memcpy(&numbers, payload.data(), sizeof numbers);
  const uint32_t workers = 1 + numbers[0].value() % kMaxWorkers;
  const uint32_t in = numbers[1].value() % (workers + 1);
  const auto set = payload.subspan(sizeof numbers);
  const uint32_t bytes = contributor_bytes(workers, in);
  must(bytes <= bitmap_bytes(workers) && bytes % 8 == 0, "a set of contributors is too long");
  const auto decoded = decode_contributors(set, workers, in);
  if (!decoded) return;
  must(set.size() == bytes && count(*decoded) == in, "another number of contributors");
  std::vector<std::byte> again(bytes);
  encode_contributors(std::span(*decoded).first(words_of(workers)), workers, again);
  must(std::ranges::equal(again, set), "a set of contributors is encoded differently");
}

void body_of(wire::FrameType type, Bytes payload) {
  switch (type) {
    case wire::FrameType::kHello:
      return hello(payload);
    case wire::FrameType::kHelloAck:
      return round_trip(payload, wire::decode_hello_ack, "a HELLO_ACK changes");
    case wire::FrameType::kRefuse:
    case wire::FrameType::kClose:
      return round_trip(payload, wire::decode_reason, "a REFUSE or CLOSE changes");
    case wire::FrameType::kAck:
      return ack(payload);
    case wire::FrameType::kControl:
      return control(payload);
    case wire::FrameType::kStream:
    case wire::FrameType::kStreamCredit:
    case wire::FrameType::kStreamReset:
      return stream(type, payload);
    case wire::FrameType::kPart:
      return part(payload);
    case wire::FrameType::kPathChallenge:
    case wire::FrameType::kPathResponse:
      if (const auto data = wire::decode_path_data(payload)) {
        std::array<std::byte, wire::kPathDataBytes> again{};
        wire::encode_path_data(*data, again.data());
        must(std::ranges::equal(again, payload), "a PATH_CHALLENGE or PATH_RESPONSE changes");
      }
      return;
    case wire::FrameType::kSourcePorts:
      if (const auto ports = wire::decode_source_ports(payload)) {
        std::array<std::byte, wire::kSourcePortsBytes> again{};
        wire::encode_source_ports(*ports, again.data());
        must(std::ranges::equal(again, payload), "SOURCE_PORTS change");
        must(ports->first > 0 && ports->first + ports->count <= 65'536, "no UDP port");
      }
      return;
    case wire::FrameType::kPing:
    case wire::FrameType::kResetToken:
    case wire::FrameType::kReset:
    case wire::FrameType::kDatagram0:
      return;
    case wire::FrameType::kDatagram1:
      return contributors(payload);
  }
}

void frame(Bytes bytes) {
  wire::Header header;
  Bytes payload;
  if (wire::decode(bytes, header, payload) != wire::DecodeError::kNone) return;
  const size_t head = wire::header_bytes(header.type);
  must(payload.size() + head == bytes.size(), "a frame's payload has another length");
  std::array<std::byte, sizeof(wire::DatagramHeader)> out{};
  wire::encode(header, out.data());
  wire::Header again;
  Bytes ignored;
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  std::copy_n(out.begin(), head, copy.begin());
  must(wire::decode(copy, again, ignored) == wire::DecodeError::kNone, "a header is not read back");
  std::array<std::byte, sizeof(wire::DatagramHeader)> twice{};
  wire::encode(again, twice.data());
  must(out == twice, "a header changes when it is encoded again");
  body_of(header.type, payload);
}

// The same with all that a checksum or a length would refuse put right, so that what stands behind
// them is reached.
void repaired_frame(Bytes bytes) {
  if (bytes.size() < sizeof(wire::PlainHeader)) return;
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  wire::DatagramHeader raw{};
  std::memcpy(&raw, copy.data(), std::min(sizeof raw, copy.size()));
  raw.common.magic = wire::Be16(wire::kMagic);
  raw.common.type = static_cast<uint8_t>(1 + raw.common.type % wire::kMaxFrameType);
  raw.common.version = wire::version_of(static_cast<wire::FrameType>(raw.common.type));
  const size_t head = wire::header_bytes(static_cast<wire::FrameType>(raw.common.type));
  if (copy.size() < head || copy.size() - head > 0xffff) return;
  raw.common.payload_bytes = wire::Be16(static_cast<uint16_t>(copy.size() - head));
  raw.common.header_crc = wire::Be32(0);
  std::memcpy(copy.data(), &raw, head);
  raw.common.header_crc = wire::Be32(wire::crc32c(copy.data(), head));
  std::memcpy(copy.data(), &raw, head);
  wire::Header header;
  Bytes payload;
  must(wire::decode(copy, header, payload) == wire::DecodeError::kNone,
       "a frame with everything right is refused");
  frame(copy);
}

ethdev::LocalIdentity identity() {
  ethdev::LocalIdentity local;
  local.mac = {{2, 0, 0, 0, 0, 1}};
  local.v4 = IpAddress::v4(10, 0, 0, 1);
  local.v6 = *IpAddress::parse("fd00::1");
  local.has_v4 = local.has_v6 = true;
  local.udp_port = 7470;
  local.udp_ports = 2;
  return local;
}

void ethernet(Bytes bytes) {
  const ethdev::LocalIdentity local = identity();
  // A heap block of exactly this size: a sanitizer sees any access beyond it.
  const std::vector<std::byte> whole(bytes.begin(), bytes.end());
  ethdev::ParsedFrame parsed;
  RxFrame rx;
  const ethdev::FrameClass kind = ethdev::parse_frame(whole, local, parsed, rx);
  if (kind == ethdev::FrameClass::kDropped) return;
  if (kind == ethdev::FrameClass::kUdp) {
    must(parsed.engine < local.udp_ports, "a frame for an engine that is not there");
    must(rx.payload.data() >= whole.data() &&
             rx.payload.data() + rx.payload.size() <= whole.data() + whole.size(),
         "a payload outside of its frame");
    return;
  }
  std::vector<std::byte> reply(whole);
  const auto answer = ethdev::answer_control(kind, reply, local, reply);  // in place, as the port
  must(answer.reply_bytes <= reply.size(), "a reply longer than its room");
}

// The same with the addresses and checksums put right, so that what stands behind them is reached.
void repaired_ethernet(Bytes bytes) {
  constexpr size_t kIp = ethdev::kEtherHeaderBytes;
  const ethdev::LocalIdentity local = identity();
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  if (copy.size() < kIp) return;
  uint8_t* const at = ethdev::bytes_of(copy.data());
  if ((at[0] & 1) == 0) std::memcpy(at, local.mac.bytes.data(), local.mac.bytes.size());
  const uint16_t type = ethdev::load_be16(at + 12);
  const auto put = [&](size_t place, const ethdev::InternetSum& sum) {
    const uint16_t word = sum.finish();
    std::memcpy(at + place, &word, sizeof word);
  };
  if (type == ethdev::kEtherIpv4 && copy.size() >= kIp + 24) {
    std::memcpy(at + kIp + 16, local.v4.bytes.data() + 12, 4);
    ethdev::store_be16(at + kIp + 2, static_cast<uint32_t>(copy.size() - kIp));
    std::memset(at + kIp + 10, 0, 2);
    ethdev::InternetSum header;
    header.add(Bytes(copy).subspan(kIp, ethdev::kIpv4HeaderBytes));
    put(kIp + 10, header);
    if (at[kIp + 9] == IPPROTO_ICMP) {
      std::memset(at + kIp + 22, 0, 2);
      ethdev::InternetSum message;
      message.add(Bytes(copy).subspan(kIp + ethdev::kIpv4HeaderBytes));
      put(kIp + 22, message);
    }
  } else if (type == ethdev::kEtherIpv6 && copy.size() >= kIp + 44) {
    const auto length = static_cast<uint32_t>(copy.size() - kIp - ethdev::kIpv6HeaderBytes);
    if (at[kIp + 24] != 0xff) std::memcpy(at + kIp + 24, local.v6.bytes.data(), 16);
    ethdev::store_be16(at + kIp + 4, length);
    if (at[kIp + 6] == IPPROTO_ICMPV6) {
      std::memset(at + kIp + 42, 0, 2);
      ethdev::InternetSum message;
      message.add(Bytes(copy).subspan(kIp + 8, 32));  // the pseudo header
      message.add_word(length);
      message.add_word(IPPROTO_ICMPV6);
      message.add(Bytes(copy).subspan(kIp + ethdev::kIpv6HeaderBytes));
      put(kIp + 42, message);
    }
  }
  ethernet(copy);
}

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mercury;
  using namespace mercury::fuzz;
  Input input(data, size);
  const uint8_t mode = input.byte();
  const Bytes bytes = std::as_bytes(input.rest());
  if (mode >= 0xf0) {
    mode % 2 == 0 ? ethernet(bytes) : repaired_ethernet(bytes);
    return 0;
  }
  switch (mode % 4) {
    case 0:
      frame(bytes);
      break;
    case 1:
      repaired_frame(bytes);
      break;
    case 2:
      body_of(static_cast<wire::FrameType>(1 + mode / 4 % wire::kMaxFrameType), bytes);
      break;
    default:
      control_message(bytes);
      break;
  }
  return 0;
}
