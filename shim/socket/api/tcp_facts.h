// What TCP_INFO says of a connection: what the daemon knows of the session that carries it.
#pragma once

#include <linux/tcp.h>

#include "shim/socket/api/connections.h"

namespace mercury::sockets {

// Of what the daemon does not know, 0: of a connection of two programs of this host it is all but
// the state.
tcp_info tcp_facts(int fd, const OwnConnection& connection);

}  // namespace mercury::sockets
