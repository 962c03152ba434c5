// mercury_getsockopt, mercury_setsockopt. option_rows.h says what each option is.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/ended.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/option_rows.h"
#include "shim/socket/api/process.h"
#include "shim/socket/api/tcp_facts.h"

namespace mercury::sockets {
namespace {

constexpr std::string_view kCongestion = "mercury";  // what TCP_CONGESTION says

// As the kernel gives values: as much as there is room for, without an error. 0 or an errno.
int give(const void* value, size_t bytes, void* out, socklen_t* length) {
  if (static_cast<int>(*length) < 0) return EINVAL;
  const size_t given = std::min<size_t>(bytes, *length);
  if (given != 0) std::memcpy(out, value, given);
  *length = static_cast<socklen_t>(given);
  return 0;
}

int give_int(int level, int value, void* out, socklen_t* length) {
  // IP's options may be read into a byte.
  const bool byte = level != SOL_SOCKET && level != IPPROTO_TCP && *length > 0 &&
                    *length < sizeof value && value >= 0 && value <= 0xff;
  const auto small = static_cast<uint8_t>(value);
  return byte ? give(&small, 1, out, length) : give(&value, sizeof value, out, length);
}

// A pending error of the pair's first: of a peer that closed before it had read everything.
int pending_error(int fd) {
  const int pairs = option_of(fd, SOL_SOCKET, SO_ERROR).value_or(0);
  if (pairs != 0) {
    both_ended(fd);
    return pairs;
  }
  pollfd asked{fd, 0, 0};
  const bool over = libc().poll(&asked, 1, 0) == 1 && (asked.revents & POLLHUP) != 0;
  return over ? ended_why(fd) : 0;
}

int get_computed(int fd, const OwnConnection& connection, size_t row, void* out,
                 socklen_t* length) {
  const OptionRow& option = kOptions[row];
  if (option.level == SOL_SOCKET) {
    if (option.name == SO_PEERCRED) {
      const ucred nobody{0, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};
      return give(&nobody, sizeof nobody, out, length);
    }
    const int value = option.name == SO_DOMAIN     ? connection.family
                      : option.name == SO_PROTOCOL ? int{IPPROTO_TCP}
                                                   : pending_error(fd);
    return give_int(option.level, value, out, length);
  }
  if (option.level == IPPROTO_TCP) {
    if (option.name == TCP_CONGESTION) {
      std::array<char, 16> name{};  // TCP_CA_NAME_MAX
      std::copy(kCongestion.begin(), kCongestion.end(), name.begin());
      return give(name.data(), name.size(), out, length);
    }
    const tcp_info info = tcp_facts(fd, connection);
    if (option.name == TCP_INFO) return give(&info, sizeof info, out, length);
    const auto segment = static_cast<int>(info.tcpi_snd_mss);
    return give_int(option.level, segment != 0 ? segment : connection.values[row], out, length);
  }
  if (option.level == IPPROTO_IP) return give("", 0, out, length);  // no IP_OPTIONS
  return give_int(option.level, connection.values[row], out, length);
}

int get_option(int fd, const OwnConnection& connection, int level, int name, void* out,
               socklen_t* length) {
  if (!length) return EFAULT;
  const auto row = find_option(connection.family, level, name);
  if (!row) {
    // As the kernel distinguishes them.
    const bool of_tcp = level == SOL_SOCKET || level == IPPROTO_TCP || level == IPPROTO_IP;
    return connection.family == AF_INET && !of_tcp ? EOPNOTSUPP : ENOPROTOOPT;
  }
  switch (kOptions[*row].how) {
    case How::kPair:
      return libc().getsockopt(fd, level, name, out, length) == 0 ? 0 : errno;
    case How::kFlag:
    case How::kNumber:
    case How::kTraffic:
      return give_int(level, connection.values[*row], out, length);
    case How::kComputed:
      return get_computed(fd, connection, *row, out, length);
    case How::kRefused:
      break;
  }
  return ENOPROTOOPT;
}

void tell_daemon(const OwnConnection& connection, Option option, uint32_t value) {
  Request request = request_about(RequestKind::kSet, connection);
  request.option = option;
  request.value = value;
  process().ask(request);
}

void tell_priority(int fd, const OwnConnection& connection, int traffic_class) {
  tell_daemon(connection, Option::kPriority,
              priority_of(option_of(fd, SOL_SOCKET, SO_PRIORITY).value_or(0), traffic_class));
}

int traffic_class_of(const OwnConnection& connection) {
  const bool v6 = connection.family == AF_INET6;
  const auto row = v6 ? find_option(AF_INET6, IPPROTO_IPV6, IPV6_TCLASS)
                      : find_option(AF_INET, IPPROTO_IP, IP_TOS);
  return connection.values[*row];
}

int set_pair(int fd, const OwnConnection& connection, int name, const void* value,
             socklen_t length) {
  if (libc().setsockopt(fd, SOL_SOCKET, name, value, length) != 0) return errno;
  if (name == SO_PRIORITY) tell_priority(fd, connection, traffic_class_of(connection));
  if (name == SO_LINGER && length >= sizeof(linger)) {
    linger asked;
    std::memcpy(&asked, value, sizeof asked);
    const bool has_ended = connection.on_host && connection.finished;
    const bool resets = asked.l_onoff != 0 && asked.l_linger == 0 && !has_ended;
    tell_daemon(connection, Option::kAbort, resets ? 1 : 0);
  }
  return 0;
}

int set_computed(const OptionRow& option, const void* value, socklen_t length) {
  if (option.level == IPPROTO_TCP && option.name == TCP_CONGESTION) {
    const std::string_view name(static_cast<const char*>(value), length);
    return name.substr(0, name.find('\0')) == kCongestion ? 0 : ENOENT;  // no such algorithm
  }
  if (option.level == IPPROTO_IP) return length == 0 ? 0 : EINVAL;
  if (option.level == IPPROTO_IPV6) return EINVAL;  // IPV6_V6ONLY, once there is a name
  return ENOPROTOOPT;
}

int set_remembered(int fd, const OwnConnection& connection, size_t row, const void* value,
                   socklen_t length) {
  const OptionRow& option = kOptions[row];
  int number = 0;
  if (length >= sizeof number) {
    std::memcpy(&number, value, sizeof number);
  } else if (option.level == IPPROTO_IP && length >= 1) {
    number = *static_cast<const uint8_t*>(value);
  } else {
    return EINVAL;
  }
  const auto kept = remembered(option, number);
  if (!kept) return EINVAL;
  process().connections.set_value(connection.cookie, row, *kept);
  if (option.how == How::kTraffic) {
    if (option.level == IPPROTO_IP) {
      const int priority = priority_of_tos(*kept);
      libc().setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
    }
    const bool of_family = (option.level == IPPROTO_IPV6) == (connection.family == AF_INET6);
    tell_priority(fd, connection, of_family ? *kept : traffic_class_of(connection));
  }
  return 0;
}

int set_option(int fd, const OwnConnection& connection, int level, int name, const void* value,
               socklen_t length) {
  const auto row = find_option(connection.family, level, name);
  if (!row) return ENOPROTOOPT;
  if (static_cast<int>(length) < 0) return EINVAL;
  if (!value && length != 0) return EFAULT;
  switch (kOptions[*row].how) {
    case How::kPair:
      return set_pair(fd, connection, name, value, length);
    case How::kFlag:
    case How::kNumber:
    case How::kTraffic:
      return set_remembered(fd, connection, *row, value, length);
    case How::kComputed:
      return set_computed(kOptions[*row], value, length);
    case How::kRefused:
      break;
  }
  return ENOPROTOOPT;
}

}  // namespace
}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

int mercury_getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  sockets::ErrnoKept kept;
  const auto connection = sockets::process().find(fd);
  if (!connection) {
    return sockets::libc().getsockopt(fd, level, name, value, length) == 0 ? 0 : kept.fail(errno);
  }
  const int error = sockets::get_option(fd, *connection, level, name, value, length);
  return error == 0 ? 0 : kept.fail(error);
}

int mercury_setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  sockets::ErrnoKept kept;
  const auto connection = sockets::process().find(fd);
  if (!connection) {
    if (sockets::libc().setsockopt(fd, level, name, value, length) != 0) return kept.fail(errno);
    sockets::process().options.set(level, name);
    // What it means, and how to ask for it later, only the kernel knows.
    if (!sockets::find_option(AF_INET6, level, name)) sockets::process().undecided.keep_kernels(fd);
    return 0;
  }
  const int error = sockets::set_option(fd, *connection, level, name, value, length);
  return error == 0 ? 0 : kept.fail(error);
}
