// What stands before the bytes of a connection on its stream: who connects writes a preamble, and
// who is asked writes an answer, after which, if it is kAccepted, both ways are the programs'. So a
// connection takes one round trip between two daemons that have a session.
//
//  0                   1                   2                   3
//  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
// +---------------+---------------+-------------------------------+
// |   version 1   |   priority    |          source port          |
// +---------------+---------------+-------------------------------+
// |                       source (16 bytes)                       |
// +-------------------------------+-------------------------------+
// |       destination port        |             zero              |
// +-------------------------------+-------------------------------+
// |                    destination (16 bytes)                     |
// +---------------------------------------------------------------+
//
// Addresses of IPv4 are mapped (::ffff:a.b.c.d). The answer is one byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/base/endpoint.h"

namespace mercury::sockets {

struct Preamble {
  uint8_t priority = 0;  // that the asking side's bytes have; a wish for the other side's
  Endpoint source;
  Endpoint destination;
};

enum class Answer : uint8_t {
  kAccepted = 1,
  kNobody = 2,   // no program of Mercury's listens there: the kernel's may
  kRefused = 3,  // one listens, and takes no more
};

using PreambleBytes = std::array<std::byte, 40>;

PreambleBytes encode(const Preamble& preamble);
// Nothing: of another version, or not one.
std::optional<Preamble> decode_preamble(std::span<const std::byte, sizeof(PreambleBytes)> bytes);
std::optional<Answer> decode_answer(std::byte byte);

}  // namespace mercury::sockets
