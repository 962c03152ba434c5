#include "apps/stackd/program_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/system/error_code.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "apps/stackd/host_builder.h"
#include "shim/channel/seqpacket.h"

namespace mercury {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

Result<UniqueFd> listen_at(const std::string& path, const StackdConfig& config) {
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

}  // namespace

Status ProgramSocket::listen(const StackdConfig& config, std::function<void(UniqueFd)> accepted) {
  Result<UniqueFd> socket = listen_at(path_, config);
  if (!socket) return socket.error();
  socket_.assign(socket->release());
  accepted_ = std::move(accepted);
  accept();
  return {};
}

void ProgramSocket::accept() {
  socket_.async_wait(stream_descriptor::wait_read, [this](const error_code& error) {
    if (error) return;
    const int fd = accept4(socket_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && AcceptPause::is_needed(errno)) {
      return pause_.wait(errno, [this] { accept(); });
    }
    if (fd >= 0) accepted_(UniqueFd(fd));
    accept();
  });
}

void ProgramSocket::close() {
  error_code ignored;
  pause_.cancel();
  socket_.close(ignored);
  unlink(path_.c_str());  // one that stays is replaced at the next start
}

}  // namespace mercury
