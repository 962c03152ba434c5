// How a connection ended: an end of stream says only that it did.
#pragma once

namespace mercury::sockets {

// The errno that a call on this descriptor is to fail with, once for each connection; 0: it ended
// in order, or was asked before, or it is none of Mercury's.
int ended_why(int fd);

}  // namespace mercury::sockets
