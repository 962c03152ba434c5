#pragma once

namespace mercury {

// As in meson.build, which passes it.
inline constexpr char kMercuryVersion[] = MERCURY_VERSION;

}  // namespace mercury
