#include "shim/socket/preamble.h"

#include <cstring>

#include "shim/socket/connection.h"
#include "transport/wire/be.h"

namespace mercury::sockets {
namespace {

constexpr uint8_t kPreambleVersion = 1;

struct PreambleWire {
  uint8_t version;
  uint8_t priority;
  wire::Be16 source_port;
  std::array<uint8_t, 16> source;
  wire::Be16 destination_port;
  wire::Be16 zero;
  std::array<uint8_t, 16> destination;
};
static_assert(sizeof(PreambleWire) == sizeof(PreambleBytes));

}  // namespace

PreambleBytes encode(const Preamble& preamble) {
  const PreambleWire wire{kPreambleVersion,
                          preamble.priority,
                          wire::Be16(preamble.source.port),
                          preamble.source.ip.bytes,
                          wire::Be16(preamble.destination.port),
                          wire::Be16(0),
                          preamble.destination.ip.bytes};
  PreambleBytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

std::optional<Preamble> decode_preamble(std::span<const std::byte, sizeof(PreambleBytes)> bytes) {
  PreambleWire wire;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.version != kPreambleVersion || wire.priority > kMostPriority) return std::nullopt;
  Preamble preamble;
  preamble.priority = wire.priority;
  preamble.source = {IpAddress{wire.source}, wire.source_port.value()};
  preamble.destination = {IpAddress{wire.destination}, wire.destination_port.value()};
  if (preamble.destination.port == 0) return std::nullopt;
  return preamble;
}

std::optional<Answer> decode_answer(std::byte byte) {
  const auto number = std::to_integer<uint8_t>(byte);
  if (number < 1 || number > static_cast<uint8_t>(Answer::kRefused)) return std::nullopt;
  return static_cast<Answer>(number);
}

}  // namespace mercury::sockets
