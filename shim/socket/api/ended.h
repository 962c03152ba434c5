// How a connection ended: an end of stream says only that it did.
#pragma once

#include "shim/socket/api/connections.h"

namespace mercury::sockets {

// The errno that a call on this descriptor is to fail with, once for each connection; 0: it ended
// in order, or was asked before, or it is none of Mercury's.
int ended_why(int fd);

// The pair's own reset has been taken from the kernel by this call: both directions have ended, and
// who waits for that elsewhere is told, though the kernel says no error to them any more.
void took_reset(int fd, const OwnConnection& connection);

}  // namespace mercury::sockets
