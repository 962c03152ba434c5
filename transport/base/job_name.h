// What a job may be called: by programs, in frames and control messages, and in configurations.
#pragma once

#include <cstddef>
#include <string_view>

namespace mercury {

inline constexpr size_t kMaxJobNameBytes = 63;

// 1 to kMaxJobNameBytes of [A-Za-z0-9_.-].
constexpr bool is_job_name(std::string_view name) noexcept {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  return !name.empty() && name.size() <= kMaxJobNameBytes &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

// Sessions of Mercury's own services, such as sockets, have such names; no job has.
constexpr bool is_service_name(std::string_view name) noexcept {
  return name.starts_with("mercury.");
}

}  // namespace mercury
