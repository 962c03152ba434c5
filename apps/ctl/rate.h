// Rates for people.
#pragma once

#include <cstdint>
#include <string>

namespace mercury {

// As NICs' rates are named: "1 Gbit/s", "400 Mbit/s".
std::string rate_text(uint64_t bytes_per_second);

}  // namespace mercury
