// What a process has of sockets over Mercury: all state of the functions in this folder.
#pragma once

#include <cstdint>
#include <optional>

#include "shim/socket/api/connections.h"
#include "shim/socket/api/daemon.h"
#include "shim/socket/api/known_options.h"
#include "shim/socket/api/listeners.h"
#include "shim/socket/api/registrations.h"
#include "shim/socket/api/settings.h"
#include "shim/socket/api/undecided.h"

namespace mercury::sockets {

struct OwnProcess {
  Settings settings;
  Daemon daemon;
  Listeners listeners;
  Connections connections;
  Undecided undecided;
  Registrations registrations;
  KnownOptions options;
  std::atomic<bool> warned{false};

  // The connection that a descriptor is; nothing: it is none of Mercury's.
  std::optional<OwnConnection> find(int fd);
  // Asks the daemon. If it cannot, the first time is told on standard error.
  Asked ask(const Request& request, OnSignal on_signal = OnSignal::kWaitOn);
  Asked answered(Asked asked);  // tells what ask() tells of it
  void lost_daemon(int error);  // Asked::error, or ENONET: is_other_namespace
};

Request request_about(RequestKind kind, const OwnConnection& connection);

// Ready to be used; the environment has been read.
OwnProcess& process();

}  // namespace mercury::sockets
