// The daemon's ports, one row for each kind: what can be said of one before it is opened, and how a
// host is made over it. Nothing else in the programs asks which kind a port is of.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/stackd/config.h"
#include "apps/stackd/port_kinds.h"
#include "shim/host/host.h"
#include "transport/port/ethdev/checks.h"

namespace mercury {

struct PortRow {
  PortKind kind;
  // What is wrong with its settings on this machine, without opening anything, or privileges.
  // Errors: kConfig, naming the key. May be null.
  Status (*check)(const StackdConfig& config);
  // Whether it will work, for `mercuryctl doctor`; `file` is where its settings may be changed.
  std::vector<ethdev::Check> (*diagnose)(const StackdConfig& config, const std::string& file);
  // Whether the kernel has its addresses too, so that its UDP ports must be free there.
  bool (*kernel_has_address)(const StackdConfig& config);
  // What the kernel's offloads do to frames of this port, or of its peers; none where they do
  // nothing.
  std::optional<ethdev::Check> (*check_offload)(const StackdConfig& config);
  // The interface whose batches, if they arrive uncut, it drops; empty: it takes them, or gets
  // none.
  std::string (*drops_uncut_of)(const StackdConfig& config);
  // Errors: kConfig (device), and what the port says of devices and privileges.
  Result<std::unique_ptr<Host>> (*open)(const StackdConfig& config, const HostConfig& settings);
};

const PortRow& port_of(const StackdConfig& config);

}  // namespace mercury
