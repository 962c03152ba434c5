// The port that a benchmark runs over, from its command line: the same choice for the reference
// loop and for Mercury.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "transport/base/counters.h"
#include "transport/base/result.h"
#include "transport/port/ethdev/ethdev_port.h"
#include "transport/port/uring/uring_port.h"

namespace mercury::goodput {

struct PortOptions {
  std::string port;           // "uring" or a device: "af_xdp:eth0", "memif:/run/m.sock"
  std::string address;        // "10.0.0.1:7470"; devices of our own "10.0.0.1/24"
  uint32_t mtu = 0;           // 0: what the interface carries
  bool memif_server = false;  // exactly one of the two ends
};

void add_options(CLI::App& app, PortOptions& options);

using AnyPort =
    std::variant<std::unique_ptr<uring::UringPort>, std::unique_ptr<ethdev::EthdevPort>>;

// The counters outlive the port. Errors: as the port's own, kConfig for the options.
Result<AnyPort> open_port(const PortOptions& options, Counters& counters);

}  // namespace mercury::goodput
