// Which traffic class (DSCP, RFC 2474) a frame leaves with, so that what is urgent here is so in
// switches, too: of a datagram by its priority, of all others, for which datagrams wait, the first.
//
// Frames of streams have none: nothing in them says how urgent they are.
//
// Owner/thread: a value; pure functions. Asked on the datapath, of ports that have classes alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mercury {

class TrafficClasses {
 public:
  static constexpr size_t kMost = 8;
  static constexpr uint32_t kPriorities = 65'536;

  // "16:46, 256:26": priorities below 16 leave with DSCP 46, others below 256 with 26, the rest
  // with none. The priorities grow, 1 to kPriorities; a DSCP is 0 to 63. Nothing: it is not such a
  // list. An empty one is of no classes.
  static std::optional<TrafficClasses> parse(std::string_view text);

  // Of a frame of which the header is there: a datagram's priority, and 0, before all others, of
  // what datagrams wait for. A stream's does not say: kPriorities.
  static uint32_t priority_of(const std::byte* frame) noexcept;

  bool any() const noexcept { return count_ > 0; }
  // IPv4's type of service, IPv6's traffic class of this frame, of which the header is there; with
  // the mark that it may be marked (port.h).
  uint8_t byte_of(const std::byte* frame) const noexcept;

 private:
  struct Class {
    uint32_t below = 0;
    uint8_t dscp = 0;
  };
  uint8_t dscp_of(const std::byte* frame) const noexcept;

  std::array<Class, kMost> classes_{};
  size_t count_ = 0;
};

}  // namespace mercury
