#include "transport/port/ethdev/memif_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mercury::ethdev {

Status clear_stale_socket(const std::string& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) {
    return Error(Errc::kConfig, "memif socket " + path + ": the path is longer than " +
                                    std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) {
    return Error(Errc::kConfig, "memif socket " + path + ": exists and is not a socket");
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return Error::system(errno, "socket");
  const bool heard =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int why = errno;
  ::close(fd);
  if (heard) {
    return Error(Errc::kBusy, "memif socket " + path + ": another process serves it");
  }
  if (why == ECONNREFUSED) ::unlink(path.c_str());
  return {};
}

}  // namespace mercury::ethdev
