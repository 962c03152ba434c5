#include "apps/ctl/rate.h"

#include <array>
#include <cstdio>

namespace mercury {

std::string rate_text(uint64_t bytes_per_second) {
  const double mbit = static_cast<double>(bytes_per_second) * 8e-6;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), mbit < 1000 ? "%.4g Mbit/s" : "%.4g Gbit/s",
                mbit < 1000 ? mbit : mbit / 1000);
  return text.data();
}

}  // namespace mercury
