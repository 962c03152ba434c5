// The engine on threads of this process: no daemon, no root.
#pragma once

#include <memory>
#include <string>

#include "shim/client/backend.h"

namespace mercury::client {

// `listen`: "ADDRESS[:PORT]"; empty: found from the first job's rendezvous. `rate`: of the link,
// such as "10Gbps"; empty: not known. kInvalidArgument: one of them is something else.
// kUnsupported: this build has no port for it.
Result<std::unique_ptr<Backend>> make_embedded_backend(const std::string& listen,
                                                       const std::string& rate);

}  // namespace mercury::client
