// A socket on which programs connect, with the mode and group that the configuration gives it.
#pragma once

#include <string>

#include "apps/stackd/config.h"
#include "shim/channel/unique_fd.h"
#include "transport/base/result.h"

namespace mercury {

// Listens at `path`, whose folder is made if it is not there; attach.mode and attach.group.
// Errors: kExists (another daemon), kPermission, kConfig (no such group).
Result<UniqueFd> listen_for_programs(const StackdConfig& config, const std::string& path);

}  // namespace mercury
