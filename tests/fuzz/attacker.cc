#include "tests/fuzz/attacker.h"

#include <algorithm>
#include <array>
#include <string>

#include "aggregator/frame/chunk_header.h"
#include "shim/proof/secret.h"
#include "transport/wire/ack.h"
#include "transport/wire/be.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/hello.h"

namespace mercury::fuzz {
namespace {

using wire::FrameType;

std::vector<std::byte> copy_of(std::span<const uint8_t> bytes) {
  const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
  return {first, first + bytes.size()};
}

std::vector<message::TensorShape> tensors(Input& record) {
  std::vector<message::TensorShape> list(1 + record.byte() % 8);
  for (message::TensorShape& t : list) {
    t.id = TensorId(record.byte() % 8U);
    t.numel =
        record.byte() < 224 ? 1 + record.take<uint16_t>() : 1 + (record.take<uint64_t>() >> 9);
    t.dtype = static_cast<Dtype>(record.byte() % kDtypeCount);
    t.op = static_cast<ReduceOp>(record.byte() % 2);
  }
  return list;
}

Rank rank(Input& record) { return Rank(static_cast<uint16_t>(record.byte() % 4)); }

std::string policy(Input& record) {
  static constexpr std::array<const char*, 6> kPolicies{
      "", "mercury", "mercury-fifo", "p3", "wfbp", "p3,partition=2KB,credit=4KB"};
  const uint8_t which = record.byte();
  return which < 224 ? kPolicies[which % kPolicies.size()] : record.text(30);
}

message::Declared declared(Input& record) {
  message::Declared m{record.flag() ? Errc::kOk : Errc::kTensorMismatch, {}, {}};
  m.rounds.resize(record.byte() % 4, Round(uint32_t{record.byte()}));
  m.text = record.text(20);
  return m;
}

message::PeerLeft peer_left(Input& record) {
  message::PeerLeft m;
  m.rank = Rank(uint16_t{record.byte()});
  m.lacked = record.text(20);
  m.ending = m.lacked.size() % 2 == 1;
  if (m.ending) {
    const auto tensor = static_cast<uint32_t>(m.lacked.size() % 8);
    m.waiting = TensorRound{TensorId(tensor), Round(uint32_t{m.rank.value})};
  }
  return m;
}

}  // namespace

void Attacker::act(Input record) {
  switch (record.byte() % 10) {
    case 0:
      return raw(record);
    case 1:
      return hello(record);
    case 2:
      return repeat(record);
    case 3:
    case 4:
      return change(record);
    case 5:
      return forge_plain(record);
    case 6:
    case 7:
      return forge_chunk(record);
    default:
      return say(record);
  }
}

Endpoint Attacker::pick_address(Input& record) const {
  const size_t index = record.below(cluster_.host_count() + 2);
  if (index == cluster_.host_count()) return own_;
  if (index < cluster_.host_count()) return cluster_.address(index);
  return {IpAddress::v4(10, 0, 1, record.byte()), record.take<uint16_t>()};
}

Direction* Attacker::pick_direction(Input& record) const {
  const std::vector<Direction*> ways = cluster_.ear().ways();
  return ways.empty() ? nullptr : ways[record.below(ways.size())];
}

wire::Header Attacker::header_for(const Direction& way, FrameType type) const {
  wire::Header header = way.last;
  header.type = type;
  header.flags = 0;
  header.session = way.session;
  header.packet_number = way.next_packet;
  return header;
}

void Attacker::send(const Direction& way, const wire::Header& header,
                    std::span<const std::byte> payload, Input& record) {
  std::vector<std::byte> frame = frame_of(header, payload, way);
  const uint8_t how = record.byte();
  if (how >= 240) frame[record.below(frame.size())] ^= std::byte{record.byte()};
  const Endpoint source = how % 16 == 15 ? pick_address(record) : way.source;
  for (int copies = how % 16 == 14 ? 4 : 1; copies > 0; --copies) {
    cluster_.inject(source, way.target, frame);
  }
}

// Bytes as they stand in the input.
void Attacker::raw(Input& record) {
  const Endpoint source = pick_address(record);
  const Endpoint target = pick_address(record);
  const uint8_t how = record.byte();
  std::vector<std::byte> frame = copy_of(record.rest());
  if (how % 2 == 1) repair(frame, (how & 2) != 0);
  cluster_.inject(source, target, frame);
}

void Attacker::hello(Input& record) {
  static constexpr std::array<const char*, 4> kJobs{"evil", "other", "good", "third"};
  const uint8_t how = record.byte();
  wire::Hello hello;
  hello.version_min = (how & 1) != 0 ? record.byte() : wire::kVersion;
  hello.version_max = (how & 1) != 0 ? record.byte() : wire::kVersion;
  hello.kind = static_cast<wire::SessionKind>(record.byte() % 2);
  const bool strange = (how & 64) != 0;  // who no member can be
  hello.role = record.byte();
  if (!strange) hello.role &= 1;
  hello.features = (how & 2) != 0 ? record.take<uint32_t>() : 0;
  hello.session = 1 + record.byte() % 16;
  hello.rank = static_cast<uint16_t>(strange ? 255 * record.byte() : record.byte() % 4);
  hello.lane = record.byte() % 2;
  hello.incarnation = record.byte();
  hello.max_udp_payload = (how & 4) != 0 ? record.take<uint16_t>() : 1472;
  hello.job = kJobs[record.below(kJobs.size())];
  hello.nonce[0] = record.byte();
  hello.proof =
      prove(derive_job_key(hello.job, (how & 8) != 0 ? "wrong" : secret_of(hello.job)), hello);
  // As a member of the other job would say it: the incarnations are in what was heard.
  for (const Heard& heard : cluster_.ear().frames()) {
    wire::Header header;
    std::span<const std::byte> payload;
    if ((how & 16) == 0 || hello.job != kJobs[0] ||
        wire::decode(heard.bytes, header, payload) != wire::DecodeError::kNone ||
        header.type != FrameType::kHello) {
      continue;
    }
    const auto known = wire::decode_hello(payload);
    if (!known || known->job != hello.job || known->kind != hello.kind) continue;
    hello.rank = known->rank;
    hello.incarnation = known->incarnation + hello.incarnation % 3;
    if (!secret_.empty()) hello.features = known->features;
    hello.proof = prove(derive_job_key(hello.job, secret_of(hello.job)), hello);
    break;
  }
  std::array<std::byte, wire::kMaxHandshakeBytes> body{};
  const size_t bytes = wire::encode(hello, body);
  wire::Header header;
  header.type = FrameType::kHello;
  header.packet_number = record.byte();
  const std::vector<std::byte> frame = frame_of(header, std::span(body).first(bytes));
  const Endpoint source = (how & 32) != 0 ? pick_address(record) : own_;
  cluster_.inject(source, cluster_.address(record.below(cluster_.host_count())), frame);
}

// A frame that was heard, again, later or from elsewhere.
void Attacker::repeat(Input& record) {
  const auto& frames = cluster_.ear().frames();
  if (frames.empty()) return;
  const size_t first = record.below(frames.size());
  const size_t count = std::min<size_t>(1 + record.byte() % 8, frames.size() - first);
  const uint64_t delay_ns = uint64_t{1} << record.byte() % 34;
  const bool elsewhere = record.byte() >= 192;
  for (size_t i = first; i < first + count; ++i) {
    const Heard heard = frames[i];
    Endpoint source = heard.source;
    if (elsewhere) source = pick_address(record);
    cluster_.inject(source, heard.target, heard.bytes, delay_ns);
  }
}

// A frame that was heard with some bytes changed and the checksums right.
void Attacker::change(Input& record) {
  const auto& frames = cluster_.ear().frames();
  if (frames.empty()) return;
  const Heard& heard = frames[record.below(frames.size())];
  std::vector<std::byte> frame = heard.bytes;
  const Endpoint target = heard.target;
  Endpoint source = heard.source;
  const uint8_t how = record.byte();
  if ((how & 1) != 0) frame.resize(record.take<uint16_t>() % 1473);
  for (size_t changes = how >> 5; changes > 0 && !frame.empty(); --changes) {
    const size_t at = record.byte() < 192 ? record.byte() % 80 : record.take<uint16_t>();
    frame[at % frame.size()] = std::byte{record.byte()};
  }
  // A packet number and a session that are taken.
  if (Direction* way = pick_direction(record); way && (how & 2) != 0 && frame.size() >= 24) {
    const wire::Be32 session(way->session);
    const wire::Be64 number(way->next_packet + record.byte());
    std::memcpy(frame.data() + offsetof(wire::CommonHeader, session), &session, sizeof session);
    std::memcpy(frame.data() + offsetof(wire::CommonHeader, packet_number), &number, sizeof number);
    source = way->source;
    repair(frame, (how & 4) == 0, way);
    cluster_.inject(source, way->target, frame);
    return;
  }
  repair(frame, (how & 4) == 0, cluster_.ear().way_of(target, frame));
  cluster_.inject(source, target, frame);
}

void Attacker::forge_plain(Input& record) {
  static constexpr std::array kTypes{FrameType::kHello,  FrameType::kHelloAck, FrameType::kRefuse,
                                     FrameType::kClose,  FrameType::kAck,      FrameType::kPing,
                                     FrameType::kControl};
  Direction* way = pick_direction(record);
  if (!way) return;
  wire::Header header = header_for(*way, kTypes[record.below(kTypes.size())]);
  const uint8_t how = record.byte();
  header.flags = how % 4;
  if ((how & 4) != 0) header.packet_number = record.take<uint64_t>() >> (record.byte() % 64);
  if ((how & 8) != 0) header.packet_number += record.byte();
  std::vector<std::byte> payload;
  if (header.type == FrameType::kAck && (how & 16) == 0) {
    wire::Ack ack;
    ack.delay_us = record.take<uint16_t>();
    ack.count = static_cast<uint16_t>(1 + record.byte() % 4);
    uint64_t top = (how & 32) != 0 ? record.take<uint64_t>() : record.take<uint16_t>() % 512;
    for (size_t i = 0; i < ack.count; ++i) {
      const uint64_t first = top - std::min<uint64_t>(top, record.byte() % 64);
      ack.ranges[i] = {first, top};
      ack.count = first < 4 ? static_cast<uint16_t>(i + 1) : ack.count;
      top = first - std::min<uint64_t>(first, 2 + record.byte() % 16);
    }
    payload.resize(wire::ack_bytes(wire::kMaxAckRanges));
    payload.resize(wire::encode(ack, payload));
  } else if ((header.type == FrameType::kClose || header.type == FrameType::kRefuse) &&
             (how & 16) == 0) {
    // By the peer's own number, which is what the other direction's frames carry.
    wire::Reason reason{record.take<uint32_t>(), static_cast<Errc>(record.byte()), record.text(40)};
    for (const Direction* back : cluster_.ear().ways()) {
      if (back->source == way->target && back->target == way->source && (how & 32) == 0) {
        reason.session = back->session;
      }
    }
    payload.resize(wire::kMaxHandshakeBytes);
    payload.resize(wire::encode(reason, payload));
  } else if (header.type == FrameType::kControl) {
    if ((how & 64) != 0) return flood(*way, record);
    const uint64_t offset =
        way->control_offset + ((how & 16) != 0 ? record.take<uint64_t>() : record.byte() % 4);
    payload.resize(wire::kControlHeaderBytes);
    wire::encode_control_offset(offset, payload.data());
    const std::vector<std::byte> bytes = copy_of(record.bytes(64));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
  } else if (header.type == FrameType::kPing) {
    payload.resize((how & 16) != 0 ? record.take<uint16_t>() % 1441 : 0);
  } else {
    payload = copy_of(record.bytes(128));
  }
  send(*way, header, payload, record);
}

// Up to 255 frames full of the same short message, in their places.
void Attacker::flood(Direction& way, Input& record) {
  const size_t frames = record.byte();
  std::vector<std::byte> body = copy_of(record.bytes(16));
  const wire::Be32 length(static_cast<uint32_t>(body.size()));
  const std::byte* first = std::as_bytes(std::span(&length, 1)).data();
  body.insert(body.begin(), first, first + sizeof length);
  std::vector<std::byte> payload(wire::kControlHeaderBytes);
  while (payload.size() + body.size() <= 1184) {
    payload.insert(payload.end(), body.begin(), body.end());
  }
  for (size_t i = 0; i < frames; ++i) {
    wire::encode_control_offset(way.control_offset, payload.data());
    cluster_.inject(way.source, way.target,
                    frame_of(header_for(way, FrameType::kControl), payload, way));
    way.control_offset += payload.size() - wire::kControlHeaderBytes;
    ++way.next_packet;
  }
}

void Attacker::forge_chunk(Input& record) {
  Direction* way = pick_direction(record);
  if (!way) return;
  const uint8_t how = record.byte();
  wire::Header header = header_for(*way, (how & 1) != 0 ? kPushFrame : kResultFrame);
  header.flags = (how & 2) != 0 ? record.byte() : 0;
  if ((how & 4) != 0) header.packet_number += record.byte();
  ChunkHeader chunk;
  chunk.round.value = (how & 8) != 0 ? record.take<uint32_t>() : record.byte() % 4;
  chunk.tensor.value = (how & 16) != 0 ? record.take<uint32_t>() : record.byte() % 3;
  chunk.chunk.value = (how & 32) != 0 ? record.take<uint32_t>() : record.byte() % 3;
  chunk.priority = record.byte();
  if ((how & 64) == 0) {
    // What was heard last in this direction may have been no chunk.
    for (const Heard& heard : cluster_.ear().frames()) {
      wire::Header known;
      std::span<const std::byte> payload;
      if (heard.source == way->source && heard.target == way->target &&
          wire::decode(heard.bytes, known, payload) == wire::DecodeError::kNone &&
          known.type == header.type && known.session == way->session) {
        chunk.sender = ChunkHeader::of(known).sender;
        chunk.incarnation = ChunkHeader::of(known).incarnation;
      }
    }
  } else {
    chunk.sender = record.take<uint16_t>();
    chunk.incarnation = record.take<uint32_t>();
  }
  chunk.write(header);
  static constexpr std::array<uint16_t, 8> kSizes{1424, 1376, 0, 4, 2, 8, 64, 1};
  const size_t size =
      (how & 128) != 0 ? record.take<uint16_t>() % 1425 : kSizes[record.below(kSizes.size())];
  std::vector<std::byte> payload(size, std::byte{record.byte()});
  send(*way, header, payload, record);
}

// Mostly that of a worker whose PUSH is remembered, or one of its next two lives.
uint32_t Attacker::incarnation(Input& record) const {
  const uint8_t how = record.byte();
  for (const Heard& heard : cluster_.ear().frames()) {
    wire::Header header;
    std::span<const std::byte> payload;
    if (wire::decode(heard.bytes, header, payload) != wire::DecodeError::kNone) continue;
    if (header.type == kPushFrame && how < 224) {
      return ChunkHeader::of(header).incarnation + how % 3;
    }
  }
  return 1U + how;
}

// A control message, whole and in its place.
void Attacker::say(Input& record) {
  Direction* way = pick_direction(record);
  if (!way) return;
  const uint8_t how = record.byte();
  const std::vector<std::byte> body =
      how < 224 ? encode(message(record)) : copy_of(record.bytes(96));
  std::vector<std::byte> stream(sizeof(wire::Be32));
  const wire::Be32 length(static_cast<uint32_t>(body.size()) +
                          (how % 32 == 31 ? record.byte() : 0));
  std::memcpy(stream.data(), &length, sizeof length);
  stream.insert(stream.end(), body.begin(), body.end());
  constexpr size_t kPiece = 1200;
  for (size_t at = 0; at < stream.size(); at += kPiece) {
    std::vector<std::byte> payload(wire::kControlHeaderBytes);
    wire::encode_control_offset(way->control_offset, payload.data());
    const std::span<const std::byte> piece =
        std::span(stream).subspan(at, std::min(kPiece, stream.size() - at));
    payload.insert(payload.end(), piece.begin(), piece.end());
    cluster_.inject(way->source, way->target,
                    frame_of(header_for(*way, FrameType::kControl), payload, *way));
    way->control_offset += piece.size();
    ++way->next_packet;
  }
}

message::Join Attacker::join(Input& record) const {
  message::Join m;
  m.role = static_cast<Role>(record.byte() % 2);
  m.workers = 1 + record.byte() % 3;
  m.servers = 1 + record.byte() % 2;
  const int seats = m.role == Role::kWorker ? m.workers : m.servers;
  m.rank = record.byte() % (seats + 1) - 1;
  m.terms.deterministic = record.flag();
  m.terms.weight = 1 + record.byte();
  m.incarnation = 1 + record.byte();
  m.timeout_ms = record.take<uint16_t>();
  m.served = record.flag();
  m.lanes.resize(1 + record.byte() % 3, own_);
  m.rendezvous = {pick_address(record), pick_address(record)};
  for (Endpoint& at : m.rendezvous) at.port = std::max<uint16_t>(at.port, 1);
  m.features = record.byte() % 8;
  m.terms.rejoin_ms = record.take<uint16_t>() % 20'000;
  m.terms.quorum = static_cast<uint16_t>(record.byte() % (m.workers + 1));
  if (m.terms.quorum > 0) m.terms.patience_ms = record.take<uint16_t>();
  m.terms.stall_timeout_ms = record.take<uint16_t>();
  m.terms.policy = policy(record);
  return m;
}

message::Roster Attacker::roster(Input& record) const {
  message::Roster m;
  m.rank = record.byte() % 3;
  m.terms.weight = 1 + record.byte();
  m.workers.resize(1 + record.byte() % 3, {1U + record.byte(), own_});
  const std::vector<Endpoint> lanes(1 + record.byte() % 2,
                                    cluster_.address(record.below(cluster_.host_count())));
  m.servers.resize(1 + record.byte() % 2, {1U + record.byte(), lanes});
  m.terms.rejoin_ms = record.take<uint16_t>() % 20'000;
  m.terms.quorum = record.byte() % 4;
  if (m.terms.quorum > 0) m.terms.patience_ms = record.take<uint16_t>();
  m.terms.stall_timeout_ms = record.take<uint16_t>();
  m.frame_bytes = record.take<uint16_t>();
  m.terms.policy = policy(record);
  return m;
}

message::Replaced Attacker::replaced(Input& record) const {
  message::Replaced m;
  m.rank = rank(record);
  m.incarnation = incarnation(record);
  m.last = !record.flag();
  m.rounds.resize(record.byte() % 4);
  for (TensorRound& row : m.rounds) {
    row.tensor.value = record.byte() % 8U;
    row.round.value = record.take<uint16_t>();
  }
  return m;
}

message::Stalled Attacker::stalled(Input& record) const {
  message::Stalled m;
  m.at.tensor.value = record.byte() % 8U;
  m.at.round.value = record.take<uint16_t>();
  m.waited_ms = record.take<uint32_t>();
  m.gone = m.waited_ms % 2 == 0;
  m.workers.resize(1 + record.byte() % 2);
  for (auto& row : m.workers) row = {rank(record), incarnation(record)};
  return m;
}

Message Attacker::message(Input& record) const {
  switch (record.byte() % 20) {
    case 0:
      return join(record);
    case 1:
      return message::Invite{uint16_t{0},
                             static_cast<uint16_t>(1 + record.byte() % 3),
                             static_cast<uint16_t>(1 + record.byte() % 2),
                             {.deterministic = record.flag()}};
    case 2:
      return roster(record);
    case 3:
      return message::Ready{record.take<uint16_t>()};
    case 4:
      return message::Start{64U + record.take<uint16_t>() % 65'000U};
    case 5:
      return message::Declare{tensors(record)};
    case 6:
      return declared(record);
    case 7:
      return message::Define{tensors(record)};
    case 8:
      return message::Defined{};
    case 9:
      return message::Leave{};
    case 10:
      return message::Left{};
    case 11:
      return peer_left(record);
    case 12:
      return message::End{};
    case 14:
      return message::Replace{rank(record), incarnation(record), pick_address(record)};
    case 15:
      return replaced(record);
    case 16:
      return message::Refill{};
    case 17:
      return message::Lost{rank(record), incarnation(record)};
    case 18:
      return message::SetPolicy{policy(record)};
    case 19:
      return stalled(record);
    default:
      return message::Fail{Errc::kPeerLeft, record.text(20)};
  }
}

}  // namespace mercury::fuzz
