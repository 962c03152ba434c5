// Puts a connection of Mercury's where a socket of the kernel's was.
#pragma once

#include "shim/socket/api/daemon.h"
#include "shim/socket/api/option_rows.h"

namespace mercury::sockets {

// A socket of the kernel's whose place a connection takes.
struct Replaced {
  int fd = -1;
  int family = 0;
  OptionsToAsk options;  // of its kind, as it was looked at; what was set since adopt() adds
  // Of what it becomes.
  bool non_blocking = false;
  bool close_on_exec = false;
};

// The socket becomes the end that the answer brought, with the options that it had. 0, or an errno:
// then it is as it was, and the end is closed.
int adopt(const Replaced& socket, Asked asked);

// What SO_LINGER with a time of 0 asks of close().
bool resets_on_close(int fd);

}  // namespace mercury::sockets
