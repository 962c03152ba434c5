// Makes the daemon's host from its configuration: the port, its engines, their threads.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "apps/stackd/config.h"
#include "shim/host/host.h"
#include "shim/socket/control/socket_manager.h"
#include "transport/engine/reset_tokens.h"

namespace mercury {

struct BuiltHost {
  std::unique_ptr<Host> host;
  std::vector<ThreadConfig> threads;  // one per engine
  ResetKey reset_key;                 // of this life, to be kept (reset_key.h)
};

// What the host's engines and its jobs are told. Engines send over one link: if there are several
// they share it.
HostConfig host_config(const StackdConfig& config);
// engine.scheduling.
Scheduling scheduling_of(const StackdConfig& config);
// The CPUs that this process may run on.
std::vector<uint32_t> usable_cores();
// Whether engine.cores are among them. Errors: kConfig.
Status check_cores(const StackdConfig& config);
// attach.group; -1 where it is empty. Errors: kConfig, with the command that makes the group.
Result<gid_t> attach_group(const StackdConfig& config);
// [sockets], and what of [port] they need; no more connections than this process may have
// descriptors for.
SocketPolicy socket_policy(const StackdConfig& config);
// What can be said of the configuration on this machine without opening anything, or privileges:
// the device's name and settings, its interface, the cores, the group. Errors: kConfig, naming the
// key.
Status check_host(const StackdConfig& config);
// When nothing is derived from them any more.
void wipe_secrets(StackdConfig& config);
// `notice` takes lines for the log. Errors: kConfig (device), and what the port says of devices and
// privileges; those of read_reset_keys.
Result<BuiltHost> build_host(const StackdConfig& config, Notice notice);

}  // namespace mercury
