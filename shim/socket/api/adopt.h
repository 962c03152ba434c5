// Puts a connection of Mercury's where a socket of the kernel's was.
#pragma once

#include "shim/socket/api/daemon.h"

namespace mercury::sockets {

// `fd`, of `family`, becomes the end that the answer brought, with the options that it had. 0, or
// an errno: then `fd` is as it was, and the end is closed. `close_on_exec`: of what it becomes.
int adopt(int fd, int family, Asked asked, bool close_on_exec);

// SO_PRIORITY, or what the traffic class asks for.
uint8_t kernel_priority(int fd, int family);

// What SO_LINGER with a time of 0 asks of close().
bool resets_on_close(int fd);

}  // namespace mercury::sockets
