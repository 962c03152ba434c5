#include "shim/socket/request.h"

#include <cstring>
#include <string>
#include <type_traits>

namespace mercury::sockets {
namespace {

constexpr uint32_t kMagic = 0x4d534f43;  // "MSOC"
constexpr uint16_t kRequestVersion = 1;

struct Address {
  std::array<uint8_t, 16> ip;
  uint16_t port;
  uint16_t zero;
};

struct RequestWire {
  uint32_t magic;
  uint16_t version;
  uint8_t kind;
  uint8_t option;
  uint8_t priority;
  uint8_t v6_only;
  uint16_t zero;
  uint32_t value;
  uint64_t cookie;
  uint64_t id;
  Address local;
  Address remote;
  std::array<uint8_t, 8> spare;
};
static_assert(sizeof(RequestWire) == sizeof(RequestBytes) &&
              std::has_unique_object_representations_v<RequestWire>);

struct ReplyWire {
  uint32_t magic;
  uint16_t version;
  uint8_t kind;
  uint8_t zero;
  uint64_t id;
  uint32_t value;
  Address local;
  Address remote;
  uint32_t segment_bytes;
  uint64_t rtt_ns;
  uint64_t least_rtt_ns;
  uint64_t window_bytes;
  uint64_t in_flight_bytes;
  uint64_t lost_packets;
  std::array<uint8_t, 8> spare;
};
static_assert(sizeof(ReplyWire) == sizeof(ReplyBytes) &&
              std::has_unique_object_representations_v<ReplyWire>);

Address wire(const Endpoint& endpoint) { return {endpoint.ip.bytes, endpoint.port, 0}; }
Endpoint value(const Address& address) { return {IpAddress{address.ip}, address.port}; }

template <class Bytes, class Wire>
Bytes bytes_of(const Wire& wire) {
  Bytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

template <class Wire>
Result<Wire> read(std::span<const std::byte> bytes) {
  Wire wire;
  const auto not_one = [&bytes] {
    return Error(Errc::kProtocol, "a message of " + std::to_string(bytes.size()) +
                                      " bytes is none of a program's sockets");
  };
  if (bytes.size() < sizeof wire.magic + sizeof wire.version) return not_one();
  std::memcpy(&wire, bytes.data(), sizeof wire.magic + sizeof wire.version);
  if (wire.magic != kMagic) return not_one();
  if (wire.version != kRequestVersion) {
    return Error(Errc::kVersionMismatch,
                 "sockets speak version " + std::to_string(wire.version) + " there and " +
                     std::to_string(kRequestVersion) +
                     " here: mercury-stackd and libmercury_preload.so are of two releases");
  }
  if (bytes.size() != sizeof wire) return not_one();
  std::memcpy(&wire, bytes.data(), sizeof wire);
  return wire;
}

Error unknown(const char* what, unsigned number) {
  return Error(Errc::kProtocol, std::string(what) + " " + std::to_string(number) + " is none");
}

}  // namespace

RequestBytes encode(const Request& request) {
  RequestWire out{};
  out.magic = kMagic;
  out.version = kRequestVersion;
  out.kind = static_cast<uint8_t>(request.kind);
  out.option = static_cast<uint8_t>(request.option);
  out.priority = request.priority;
  out.v6_only = request.v6_only ? 1 : 0;
  out.value = request.value;
  out.cookie = request.cookie;
  out.id = request.id;
  out.local = wire(request.local);
  out.remote = wire(request.remote);
  return bytes_of<RequestBytes>(out);
}

ReplyBytes encode(const Reply& reply) {
  ReplyWire out{};
  out.magic = kMagic;
  out.version = kRequestVersion;
  out.kind = static_cast<uint8_t>(reply.kind);
  out.id = reply.id;
  out.value = reply.value;
  out.local = wire(reply.local);
  out.remote = wire(reply.remote);
  out.segment_bytes = reply.info.segment_bytes;
  out.rtt_ns = reply.info.rtt_ns;
  out.least_rtt_ns = reply.info.least_rtt_ns;
  out.window_bytes = reply.info.window_bytes;
  out.in_flight_bytes = reply.info.in_flight_bytes;
  out.lost_packets = reply.info.lost_packets;
  return bytes_of<ReplyBytes>(out);
}

Result<Request> decode_request(std::span<const std::byte> bytes) {
  const Result<RequestWire> in = read<RequestWire>(bytes);
  if (!in) return in.error();
  if (in->kind < 1 || in->kind > static_cast<uint8_t>(RequestKind::kInfo)) {
    return unknown("request", in->kind);
  }
  if (in->option > static_cast<uint8_t>(Option::kAbort)) return unknown("option", in->option);
  if (in->priority > kMostPriority) return unknown("priority", in->priority);
  if (in->kind == static_cast<uint8_t>(RequestKind::kListen) &&
      in->value > static_cast<uint32_t>(Listening::kNot)) {
    return unknown("way of listening", in->value);
  }
  Request request;
  request.kind = static_cast<RequestKind>(in->kind);
  request.option = static_cast<Option>(in->option);
  request.priority = in->priority;
  request.v6_only = in->v6_only != 0;
  request.value = in->value;
  request.cookie = in->cookie;
  request.id = in->id;
  request.local = value(in->local);
  request.remote = value(in->remote);
  return request;
}

Result<Reply> decode_reply(std::span<const std::byte> bytes) {
  const Result<ReplyWire> in = read<ReplyWire>(bytes);
  if (!in) return in.error();
  if (in->kind < 1 || in->kind > static_cast<uint8_t>(ReplyKind::kFailed)) {
    return unknown("reply", in->kind);
  }
  Reply reply;
  reply.kind = static_cast<ReplyKind>(in->kind);
  reply.id = in->id;
  reply.value = in->value;
  reply.local = value(in->local);
  reply.remote = value(in->remote);
  reply.info = {in->rtt_ns,          in->least_rtt_ns, in->window_bytes,
                in->in_flight_bytes, in->lost_packets, in->segment_bytes};
  return reply;
}

}  // namespace mercury::sockets
