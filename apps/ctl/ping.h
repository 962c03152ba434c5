// mercuryctl ping: has the daemon ask another host's, and says what came of it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace mercury {

struct PingOptions {
  std::string host;
  unsigned count = 5;
};

// `options` must outlive `command`.
void describe_ping(CLI::App& command, PingOptions& options);
// The exit status: 0 if the host has answered at all.
int run_ping(const std::string& socket, const PingOptions& options, unsigned timeout_s,
             bool as_json);

}  // namespace mercury
