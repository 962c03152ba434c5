#include "tests/fuzz/ear.h"

#include <algorithm>
#include <cstring>

#include "transport/flow/frame_keys.h"
#include "transport/wire/crc32c.h"

namespace mercury::fuzz {
namespace {

// Parts are of what is encrypted already.
bool hides(const Direction& way, wire::FrameType type) {
  return way.seal && way.encrypted && type != wire::FrameType::kPart;
}

}  // namespace

Direction& Ear::direction(const Endpoint& source, const Endpoint& target, uint32_t session) {
  const auto [entry, added] = directions_.try_emplace(Key{target, session});
  if (added) {
    entry->second.source = source;
    entry->second.target = target;
    entry->second.session = session;
    entry->second.forgeable = true;
  }
  return entry->second;
}

void Ear::hear(const Endpoint& source, const Endpoint& target, std::span<const std::byte> bytes) {
  wire::Header header;
  std::span<const std::byte> payload;
  if (wire::decode(bytes, header, payload) != wire::DecodeError::kNone) return;
  frames_.push_back({source, target, {bytes.begin(), bytes.end()}});
  if (frames_.size() > kMostFrames) frames_.pop_front();
  if (header.type == wire::FrameType::kHello) {
    if (const auto hello = wire::decode_hello(payload)) {
      direction(target, source, hello->session);
      asked_.push_back({source, *hello, {payload.begin(), payload.end()}});
      if (asked_.size() > kMostFrames) asked_.pop_front();
    }
    return;
  }
  Direction& way = direction(source, target, header.session);
  if (header.type == wire::FrameType::kHelloAck) {
    if (const auto ack = wire::decode_hello_ack(payload)) {
      Direction& asking = direction(target, source, ack->session);
      asking.back = &way;
      way.back = &asking;
      on_answer(*ack, payload, asking, way);
    }
  }
  if (way.source != source) return;  // a forger's
  std::vector<std::byte> buffer;
  if (way.seal && wire::is_tagged(header.type)) {
    if (!open_seal(way, bytes, header, payload, buffer)) return;
    ++sealed_frames_;
    encrypted_frames_ += hides(way, header.type) ? 1 : 0;
  }
  way.last = header;
  if (wire::is_tagged(header.type)) {
    way.tag = {header.tag, header.payload_crc ^ wire::crc32c(payload)};
    way.next_packet = std::max(way.next_packet, header.packet_number + 1);
  }
  if (header.type == wire::FrameType::kControl) {
    if (const auto piece = wire::decode_control(payload)) {
      way.control_offset = std::max(way.control_offset, piece->offset + piece->bytes.size());
    }
  }
}

// Both sides derive their keys from the HELLO that was answered, which the confirmation shows.
void Ear::on_answer(const wire::HelloAck& ack, std::span<const std::byte> body, Direction& asking,
                    Direction& answering) {
  if (!ack.confirmation) return;
  for (const Asked& asked : asked_) {
    const auto key = keys_.find(asked.hello.job);
    if (asked.source != asking.source || key == keys_.end()) continue;
    const FrameKeys keys =
        derive_frame_keys(key->second, asked.body, body.first(wire::kHelloAckBytes));
    if (keys.confirmation != *ack.confirmation) continue;
    if ((asked.hello.features & ack.features & wire::kFeatureSeals) == 0) return;
    asking.seal = std::make_unique<wire::FrameSeal>(keys.asking);
    answering.seal = std::make_unique<wire::FrameSeal>(keys.answering);
    asking.encrypted = answering.encrypted =
        (asked.hello.features & ack.features & wire::kFeatureCanEncrypt) != 0 &&
        ((asked.hello.features | ack.features) & wire::kFeatureAsksEncryption) != 0;
    return;
  }
}

void Ear::protect_known() {
  for (auto& [key, way] : directions_) way.forgeable = false;
}

std::vector<Direction*> Ear::ways() {
  std::vector<Direction*> found;
  for (auto& [key, way] : directions_) found.push_back(&way);
  return found;
}

Direction* Ear::way_to(const Endpoint& target, uint32_t session) {
  const auto way = directions_.find({target, session});
  return way == directions_.end() ? nullptr : &way->second;
}

const Direction* Ear::way_of(const Endpoint& target, std::span<const std::byte> frame) const {
  if (frame.size() < sizeof(wire::CommonHeader)) return nullptr;
  wire::CommonHeader common{};
  std::memcpy(&common, frame.data(), sizeof common);
  const auto way = directions_.find({target, common.session.value()});
  return way == directions_.end() ? nullptr : &way->second;
}

// --- frames --------------------------------------------------------------------------------------

std::vector<std::byte> frame_of(wire::Header header, std::span<const std::byte> payload,
                                FrameTag tag) {
  const size_t head = wire::header_bytes(header.type);
  std::vector<std::byte> frame(head + payload.size());
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  if (!wire::is_tagged(header.type)) tag = {};
  header.tag = tag.header;
  header.payload_crc = wire::crc32c(payload) ^ tag.payload;
  wire::encode(header, frame.data());
  std::copy(payload.begin(), payload.end(), frame.begin() + static_cast<std::ptrdiff_t>(head));
  return frame;
}

namespace {

size_t seal_bytes(wire::FrameType type, const Direction* way) {
  return way != nullptr && way->seal && wire::is_tagged(type) ? wire::kSealBytes : 0;
}

// Of a frame that is right but for its seal. Who may not forge it has no key for one.
void seal(std::span<std::byte> frame, size_t head, const Direction& way) {
  if (!way.forgeable) return;
  wire::CommonHeader common{};
  std::memcpy(&common, frame.data(), sizeof common);
  const uint64_t number = common.packet_number.value();
  const std::span<const std::byte> payload = frame.subspan(head + wire::kSealBytes);
  if (hides(way, static_cast<wire::FrameType>(common.type))) {
    way.seal->encrypt(number, frame.first(head), payload, frame.data() + head);
  } else {
    way.seal->seal(number, frame.first(head), payload, frame.data() + head);
  }
}

}  // namespace

bool open_seal(const Direction& way, std::span<const std::byte> frame, wire::Header& header,
               std::span<const std::byte>& payload, std::vector<std::byte>& buffer) {
  const std::span<const std::byte> head = frame.first(wire::header_bytes(header.type));
  const std::span<const std::byte> body = payload;
  if (body.size() < wire::kSealBytes) return false;
  payload = body.subspan(wire::kSealBytes);
  if (!hides(way, header.type)) {
    return way.seal->fits(header.packet_number, head, payload, body.data());
  }
  buffer.resize(payload.size());
  if (!way.seal->decrypt(header.packet_number, head, body, buffer.data())) return false;
  header.payload_crc ^= way.seal->crc_mask(header.packet_number);
  payload = buffer;
  return true;
}

std::vector<std::byte> frame_of(wire::Header header, std::span<const std::byte> payload,
                                const Direction& way) {
  if (seal_bytes(header.type, &way) == 0) return frame_of(header, payload, way.known_tag());
  std::vector<std::byte> body(wire::kSealBytes + payload.size());
  std::copy(payload.begin(), payload.end(), body.begin() + wire::kSealBytes);
  header.flags |= wire::kFlagSealed;
  std::vector<std::byte> frame = frame_of(header, body);
  repair(frame, true, &way);
  return frame;
}

void repair(std::vector<std::byte>& frame, bool payload_too, const Direction* way) {
  if (frame.size() < sizeof(wire::PlainHeader)) return;
  wire::CommonHeader common{};
  std::memcpy(&common, frame.data(), sizeof common);
  common.magic = wire::Be16(wire::kMagic);
  common.type = static_cast<uint8_t>(1 + (common.type + 255U) % wire::kMaxFrameType);
  const auto type = static_cast<wire::FrameType>(common.type);
  common.version = wire::version_of(type);
  const size_t head = wire::header_bytes(type);
  const size_t seal_size = seal_bytes(type, way);
  const FrameTag tag = way != nullptr && wire::is_tagged(type) ? way->known_tag() : FrameTag{};
  if (frame.size() < head + seal_size) return;
  common.payload_bytes = wire::Be16(static_cast<uint16_t>(frame.size() - head));
  common.header_crc = wire::Be32(0);
  std::memcpy(frame.data(), &common, sizeof common);
  if (payload_too) {
    const auto payload = std::span<const std::byte>(frame).subspan(head + seal_size);
    const uint32_t mask =
        way != nullptr && hides(*way, type) ? way->seal->crc_mask(common.packet_number.value()) : 0;
    const wire::Be32 sum(wire::crc32c(payload) ^ tag.payload ^ mask);
    const size_t at =
        wire::is_datagram(type) ? offsetof(wire::DatagramHeader, payload_crc) : sizeof common;
    std::memcpy(frame.data() + at, &sum, sizeof sum);
  }
  common.header_crc = wire::Be32(wire::crc32c(frame.data(), head) ^ tag.header);
  std::memcpy(frame.data(), &common, sizeof common);
  if (seal_size > 0) seal(frame, head, *way);
}

}  // namespace mercury::fuzz
