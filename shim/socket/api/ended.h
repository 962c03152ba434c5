// How a connection ended: an end of stream says only that it did.
#pragma once

namespace mercury::sockets {

// The errno that a call on this descriptor is to fail with, once for each connection; 0: it ended
// in order, or was asked before, or it is none of Mercury's.
int ended_why(int fd);

// A call has heard from the kernel that both directions of a pair have ended, as by a reset: who
// waits for that elsewhere is told, though the kernel says no error to them any more. Where the
// descriptor is another connection's by now, that one is left alone.
void both_ended(int fd);

}  // namespace mercury::sockets
