#include "apps/stackd/program_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "apps/stackd/host_builder.h"
#include "shim/channel/seqpacket.h"

namespace mercury {

Result<UniqueFd> listen_for_programs(const StackdConfig& config, const std::string& path) {
  std::error_code ignored;  // listening says what is wrong with the folder
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  Result<UniqueFd> socket = attach::listen_socket(path);
  if (!socket) return socket;
  const auto mode = static_cast<mode_t>(std::strtoul(config.socket_mode.c_str(), nullptr, 8));
  const Result<gid_t> group = attach_group(config);
  if (!group) return group.error();
  if (chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0 || chmod(path.c_str(), mode) != 0) {
    return Error::system(errno, "permissions of " + path);
  }
  return socket;
}

}  // namespace mercury
