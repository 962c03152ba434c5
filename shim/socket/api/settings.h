// What the environment says of a program's sockets. It is read once, when first asked for.
#pragma once

#include <array>
#include <string_view>

#include "shim/socket/api/rules.h"
#include "transport/base/endpoint.h"

namespace mercury::sockets {

enum class OnError : bool { kKernel, kFail };  // what connect() does without a daemon

struct Settings {
  // MERCURY_PRELOAD_SOCKET; of 108 bytes, as the kernel's addresses.
  std::array<char, 108> path{};
  OnError on_error = OnError::kKernel;  // MERCURY_PRELOAD_ON_ERROR
  // For so long connect() waits for a daemon that has just gone, and may be started again. A
  // supervisor does so within a tenth of it.
  uint64_t come_back_ns = 1'000'000'000;
  std::array<char, kMostRulesBytes + 1> rules{};  // MERCURY_PRELOAD_RULES
  std::array<char, 256> program{};

  // Of a listener, or of whom one connects to.
  bool allows(const Endpoint& endpoint) const;
};

// A variable that says what cannot be is told on standard error, and everything is the kernel's.
void read_environment(Settings& settings);

// One line on standard error: "mercury: ...". Errors of writing it are ignored.
void warn(std::string_view first, std::string_view second = {}, std::string_view third = {});

}  // namespace mercury::sockets
