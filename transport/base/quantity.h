// Numbers with a unit, as people write them: "160KB", "0.4MB", "50us", "2.5Gbps".
//
// A decimal number without sign or exponent, up to nine digits after the point, and a unit without
// a space between; 0 needs none, and bytes do not. The value must be a whole number of the unit
// that the function names, and fit into 64 bits. Units are decimal where they are not written with
// an "i". Errors: kInvalidArgument, with what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/result.h"

namespace mercury {

Result<uint64_t> parse_bytes(std::string_view text);            // B KB MB GB KiB MiB GiB
Result<uint64_t> parse_ns(std::string_view text);               // ns us ms s
Result<uint64_t> parse_bits_per_second(std::string_view text);  // bps kbps Mbps Gbps Tbps, or bit..

// In the largest unit that divides the value: what the function above reads as the same value.
std::string print_bytes(uint64_t bytes);
std::string print_ns(uint64_t ns);
std::string print_bits_per_second(uint64_t rate);

}  // namespace mercury
