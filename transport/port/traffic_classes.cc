#include "transport/port/traffic_classes.h"

#include <charconv>
#include <cstring>

#include "transport/port/port.h"
#include "transport/wire/header.h"

namespace mercury {
namespace {

// A number from `least` to `most` at the beginning of `text`, which it leaves.
std::optional<uint32_t> take_number(std::string_view& text, uint32_t least, uint32_t most) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < least || number > most) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::optional<TrafficClasses> TrafficClasses::parse(std::string_view text) {
  constexpr uint32_t kMostDscp = 63;
  TrafficClasses out;
  uint32_t before = 0;
  while (!text.empty()) {
    if (out.count_ == kMost) return std::nullopt;
    const auto below = take_number(text, before + 1, kPriorities);
    if (!below || !take(text, ':')) return std::nullopt;
    const auto dscp = take_number(text, 0, kMostDscp);
    if (!dscp) return std::nullopt;
    out.classes_[out.count_++] = {*below, static_cast<uint8_t>(*dscp)};
    before = *below;
    if (text.empty()) break;
    if (!take(text, ',')) return std::nullopt;
    while (take(text, ' ')) {
    }
    if (text.empty()) return std::nullopt;
  }
  return out;
}

uint32_t TrafficClasses::priority_of(const std::byte* frame) noexcept {
  auto type = static_cast<wire::FrameType>(frame[offsetof(wire::CommonHeader, type)]);
  size_t priority_at = offsetof(wire::DatagramHeader, priority);
  if (type == wire::FrameType::kPart) {  // as what it is a part of
    wire::Be16 of_type;
    std::memcpy(&of_type, frame + offsetof(wire::PlainHeader, idle_grant), sizeof of_type);
    type = static_cast<wire::FrameType>(of_type.value());
    priority_at = offsetof(wire::PlainHeader, grant);
  }
  if (type == wire::FrameType::kStream) return kPriorities;
  if (!wire::is_datagram(type)) return 0;
  wire::Be16 priority;
  std::memcpy(&priority, frame + priority_at, sizeof priority);
  return priority.value();
}

uint8_t TrafficClasses::dscp_of(const std::byte* frame) const noexcept {
  const uint32_t priority = priority_of(frame);
  for (size_t i = 0; i < count_; ++i) {
    if (priority < classes_[i].below) return classes_[i].dscp;
  }
  return 0;
}

uint8_t TrafficClasses::byte_of(const std::byte* frame) const noexcept {
  return static_cast<uint8_t>(dscp_of(frame) << 2 | kEcnCapable);
}

}  // namespace mercury
