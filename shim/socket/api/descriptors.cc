#include "shim/socket/api/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "shim/socket/api/libc.h"

namespace mercury::sockets {

std::optional<uint64_t> cookie_of(int fd) {
  uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  if (libc().getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) != 0) return std::nullopt;
  return cookie;
}

std::optional<int> option_of(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  if (libc().getsockopt(fd, level, name, &value, &length) != 0) return std::nullopt;
  return value;
}

bool is_closed_tcp(int fd) {
  constexpr uint8_t kClosed = 7;  // TCP_CLOSE
  tcp_info info{};
  socklen_t length = sizeof info.tcpi_state;
  return option_of(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP &&  // and not of MPTCP
         libc().getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         info.tcpi_state == kClosed;
}

// readdir() would allocate, which is not to be done where a signal's handler may be.
bool for_each_descriptor(void (*use)(void* context, int fd), void* context) {
  const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return false;
  alignas(dirent64) std::array<char, 4096> entries;
  ssize_t got;
  while ((got = ::getdents64(folder, entries.data(), entries.size())) > 0) {
    for (ssize_t at = 0; at < got;) {
      const char* const entry = entries.data() + at;
      uint16_t length;
      std::memcpy(&length, entry + offsetof(dirent64, d_reclen), sizeof length);
      const std::string_view name = entry + offsetof(dirent64, d_name);
      int fd = -1;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), fd);
      if (error == std::errc() && fd != folder) use(context, fd);
      at += length;
    }
  }
  ::close(folder);
  return got == 0;
}

}  // namespace mercury::sockets
