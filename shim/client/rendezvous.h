// "HOST[:PORT][,HOST[:PORT]...]" as endpoints. Private to shim/client.
#pragma once

#include <string>
#include <vector>

#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury::client {

inline constexpr uint16_t kDefaultPort = 7470;

// That it has this form; nothing is looked up. kInvalidArgument.
Status check_rendezvous(const std::string& text);
// Names are looked up (this may block); IPv4 is preferred. kInvalidArgument.
Result<std::vector<Endpoint>> resolve_rendezvous(const std::string& text);

}  // namespace mercury::client
