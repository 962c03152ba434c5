// What a port knows of how a frame came, beside its bytes.
#pragma once

#include <cstdint>

namespace mercury {

struct Arrival {
  Arrival() = default;
  Arrival(bool marked) : ecn_ce(marked) {}  // and taken as it came
  Arrival(bool marked, bool bound, uint32_t waited)
      : ecn_ce(marked), at_most(bound), waited_ns(waited) {}

  bool ecn_ce = false;  // the network marked it (RFC 3168)
  // How long it lay on this host before an engine took it, as far as its port can know: exactly, or
  // at most so long. 0: not known, or no time; UINT32_MAX: so long or longer.
  bool at_most = false;
  uint32_t waited_ns = 0;
};

}  // namespace mercury
