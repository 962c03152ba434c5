// jobs.authentication and sockets.authentication, and whether this machine can do what they say.
#pragma once

#include <string>

#include "apps/stackd/config.h"

namespace mercury {

// `can_seal`: whether the CPU has what authenticated frames need (wire/seal.h).
// Error: kConfig, naming the key, where they are required and cannot be.
Status check_authentication(const StackdConfig& config, bool can_seal);
// What to log where they are offered and cannot be; empty: nothing.
std::string authentication_lacking(const StackdConfig& config, bool can_seal);

}  // namespace mercury
