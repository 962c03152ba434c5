// What the control plane of sockets asks of addresses. IPv4's are mapped, as everywhere.
#pragma once

#include "shim/socket/control/socket_manager.h"
#include "transport/base/endpoint.h"

namespace mercury::sockets {

IpAddress loopback_of(const IpAddress& ip);                       // of its family
bool may_speak(const SocketPolicy& policy, const IpAddress& ip);  // Mercury, as another host
inline constexpr const char* kCarriesNoOthers =
    "this host carries no sockets of others: it has neither sockets.secret nor sockets.open";

}  // namespace mercury::sockets
