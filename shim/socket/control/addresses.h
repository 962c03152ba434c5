// What the control plane of sockets asks of addresses. IPv4's are mapped, as everywhere.
#pragma once

#include "shim/socket/control/socket_manager.h"
#include "transport/base/endpoint.h"

namespace mercury::sockets {

bool is_loopback(const IpAddress& ip);       // 127.0.0.0/8, ::1
IpAddress loopback_of(const IpAddress& ip);  // of its family
bool contains(const IpNetwork& network, const IpAddress& ip);
bool may_speak(const SocketPolicy& policy, const IpAddress& ip);  // Mercury, as another host

}  // namespace mercury::sockets
