#include "shim/socket/api/option_rows.h"

#include <linux/tcp.h>  // more options than the C library's
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <span>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/connection.h"

namespace mercury::sockets {
namespace {

constexpr OptionRow pair(int name) { return {SOL_SOCKET, name, How::kPair}; }
constexpr OptionRow copied(int name) {
  return {.level = SOL_SOCKET, .name = name, .how = How::kPair, .copied = true};
}
constexpr OptionRow flag(int level, int name) { return {level, name, How::kFlag, 0, 1}; }
constexpr OptionRow number(int level, int name, int least, int most) {
  return {level, name, How::kNumber, least, most};
}
constexpr OptionRow traffic(int level, int name) { return {level, name, How::kTraffic}; }
constexpr OptionRow computed(int level, int name) { return {level, name, How::kComputed}; }
constexpr OptionRow refused(int level, int name) { return {level, name, How::kRefused}; }
constexpr OptionRow kernels(int level, int name) {
  return {.level = level, .name = name, .how = How::kRefused, .kernels = true};
}

// Linux's MAX_TCP_KEEPIDLE and its like.
constexpr int kMostKeepSeconds = 32767;
constexpr int kMostKeepProbes = 127;
constexpr int kMostSyns = 127;
constexpr int kMostDiscover = 5;  // IP_PMTUDISC_OMIT
constexpr int kEcnBits = 3;       // TCP's, not the program's

}  // namespace

constexpr std::array<OptionRow, kOptionRows> kOptions = {{
    copied(SO_RCVTIMEO),
    copied(SO_SNDTIMEO),
    copied(SO_RCVLOWAT),
    copied(SO_LINGER),
    copied(SO_PRIORITY),
    copied(SO_MARK),
    copied(SO_KEEPALIVE),
    copied(SO_REUSEADDR),
    copied(SO_BROADCAST),
    copied(SO_DONTROUTE),
    copied(SO_OOBINLINE),
    pair(SO_SNDBUF),  // copy_options has these two's own rule
    pair(SO_RCVBUF),
    pair(SO_SNDBUFFORCE),
    pair(SO_RCVBUFFORCE),
    pair(SO_BUF_LOCK),
    pair(SO_TYPE),
    pair(SO_ACCEPTCONN),
    pair(SO_COOKIE),
    pair(SO_MEMINFO),
    pair(SO_PEEK_OFF),
    pair(SO_INCOMING_CPU),
    flag(SOL_SOCKET, SO_REUSEPORT),
    computed(SOL_SOCKET, SO_DOMAIN),
    computed(SOL_SOCKET, SO_PROTOCOL),
    computed(SOL_SOCKET, SO_ERROR),
    computed(SOL_SOCKET, SO_PEERCRED),
    kernels(SOL_SOCKET, SO_ZEROCOPY),
    kernels(SOL_SOCKET, SO_TIMESTAMP),
    kernels(SOL_SOCKET, SO_TIMESTAMPNS),
    kernels(SOL_SOCKET, SO_TIMESTAMPING),
    kernels(SOL_SOCKET, SO_BINDTODEVICE),
    flag(IPPROTO_TCP, TCP_NODELAY),
    flag(IPPROTO_TCP, TCP_CORK),
    flag(IPPROTO_TCP, TCP_QUICKACK),
    number(IPPROTO_TCP, TCP_KEEPIDLE, 1, kMostKeepSeconds),
    number(IPPROTO_TCP, TCP_KEEPINTVL, 1, kMostKeepSeconds),
    number(IPPROTO_TCP, TCP_KEEPCNT, 1, kMostKeepProbes),
    number(IPPROTO_TCP, TCP_SYNCNT, 1, kMostSyns),
    number(IPPROTO_TCP, TCP_USER_TIMEOUT, 0, INT_MAX),
    number(IPPROTO_TCP, TCP_NOTSENT_LOWAT, INT_MIN, INT_MAX),
    computed(IPPROTO_TCP, TCP_INFO),
    computed(IPPROTO_TCP, TCP_MAXSEG),
    computed(IPPROTO_TCP, TCP_CONGESTION),
    refused(IPPROTO_TCP, TCP_FASTOPEN),
    kernels(IPPROTO_TCP, TCP_FASTOPEN_CONNECT),
    kernels(IPPROTO_TCP, TCP_DEFER_ACCEPT),  // a knock sends no data
    kernels(IPPROTO_TCP, TCP_ULP),
    kernels(IPPROTO_TCP, TCP_REPAIR),
    kernels(IPPROTO_TCP, TCP_INQ),
    kernels(IPPROTO_TCP, TCP_TX_DELAY),
    traffic(IPPROTO_IP, IP_TOS),
    number(IPPROTO_IP, IP_TTL, 1, 255),
    number(IPPROTO_IP, IP_MTU_DISCOVER, 0, kMostDiscover),
    flag(IPPROTO_IP, IP_RECVERR),
    flag(IPPROTO_IP, IP_FREEBIND),
    flag(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT),
    computed(IPPROTO_IP, IP_OPTIONS),
    computed(IPPROTO_IPV6, IPV6_V6ONLY),
    traffic(IPPROTO_IPV6, IPV6_TCLASS),
    number(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 0, 255),
    number(IPPROTO_IPV6, IPV6_MTU_DISCOVER, 0, kMostDiscover),
    flag(IPPROTO_IPV6, IPV6_RECVERR),
    flag(IPPROTO_IPV6, IPV6_DONTFRAG),
}};

namespace {

constexpr size_t row_of(int level, int name) {
  size_t row = 0;
  while (kOptions[row].level != level || kOptions[row].name != name) ++row;
  return row;
}
constexpr size_t kPriorityRow = row_of(SOL_SOCKET, SO_PRIORITY);
constexpr size_t kBufLockRow = row_of(SOL_SOCKET, SO_BUF_LOCK);
constexpr size_t kTosRow = row_of(IPPROTO_IP, IP_TOS);
constexpr size_t kClassRow = row_of(IPPROTO_IPV6, IPV6_TCLASS);

// What a connection gives back is what its socket had.
bool is_kept(const OptionRow& option) {
  if (option.how != How::kComputed) return option.how != How::kPair && option.how != How::kRefused;
  return (option.level == IPPROTO_TCP && option.name == TCP_MAXSEG) ||
         option.level == IPPROTO_IPV6;  // IPV6_V6ONLY
}

struct Value {
  alignas(8) std::array<char, 16> bytes{};  // a timeval, a linger, an int, a device's name
  socklen_t length = sizeof bytes;
};

// Of the rows that are copied, or the kernel's alone: of a pair's end as of TCP's.
bool is_of_new_socket(const OptionRow& option, const Value& value) {
  const std::span<const char> bytes(value.bytes.data(), value.length);
  constexpr int kOne = 1;
  if (option.level == SOL_SOCKET && option.name == SO_RCVLOWAT) {
    return bytes.size() == sizeof kOne && std::memcmp(bytes.data(), &kOne, sizeof kOne) == 0;
  }
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

// It has the option, and not as a new socket has it.
bool is_unlike(int fd, const OptionRow& option, Value& value) {
  return libc().getsockopt(fd, option.level, option.name, value.bytes.data(), &value.length) == 0 &&
         !is_of_new_socket(option, value);
}

}  // namespace

std::optional<size_t> find_option(int family, int level, int name) {
  if (level == IPPROTO_IPV6 && family != AF_INET6) return std::nullopt;
  for (size_t row = 0; row < kOptions.size(); ++row) {
    if (kOptions[row].level == level && kOptions[row].name == name) return row;
  }
  return std::nullopt;
}

std::optional<int> remembered(const OptionRow& row, int value) {
  if (row.how == How::kFlag) return value != 0 ? 1 : 0;
  if (row.how == How::kTraffic && row.level == IPPROTO_IP) return value & 0xff & ~kEcnBits;
  if (row.how == How::kTraffic) {
    if (value < -1 || value > 0xff) return std::nullopt;
    return value == -1 ? 0 : value & ~kEcnBits;
  }
  if (value < row.least || value > row.most) return std::nullopt;
  return value;
}

OptionValues read_values(int fd, int family, const OptionsToAsk& asked) {
  OptionValues values = asked.others;
  for (size_t row = 0; row < kOptions.size(); ++row) {
    const OptionRow& option = kOptions[row];
    if (!asked.has(row) || !is_kept(option)) continue;
    if (option.level == IPPROTO_IPV6 && family != AF_INET6) continue;
    values[row] = option_of(fd, option.level, option.name).value_or(0);
  }
  return values;
}

OptionRows copy_options(int from, int to, const OptionsToAsk& asked) {
  OptionRows unlike = 0;
  for (size_t row = 0; row < kOptions.size(); ++row) {
    const OptionRow& option = kOptions[row];
    if (!option.copied || !asked.has(row)) continue;
    Value value;
    if (!is_unlike(from, option, value)) continue;
    unlike |= bit_of(row);
    libc().setsockopt(to, option.level, option.name, value.bytes.data(), value.length);
  }
  if (!asked.has(kBufLockRow)) return unlike;
  // Buffers that the program did not ask for are TCP's, which grow by themselves.
  const int asked_for = option_of(from, SOL_SOCKET, SO_BUF_LOCK).value_or(0);
  if (asked_for != 0) unlike |= bit_of(kBufLockRow);
  for (const auto& [lock, name] :
       {std::pair{SOCK_SNDBUF_LOCK, SO_SNDBUF}, std::pair{SOCK_RCVBUF_LOCK, SO_RCVBUF}}) {
    if ((asked_for & lock) == 0) continue;
    const int bytes = option_of(from, SOL_SOCKET, name).value_or(0) / 2;  // the kernel doubles it
    libc().setsockopt(to, SOL_SOCKET, name, &bytes, sizeof bytes);
  }
  return unlike;
}

OptionRows unlike_new(int fd) {
  OptionRows unlike = 0;
  for (size_t row = 0; row < kOptions.size(); ++row) {
    const OptionRow& option = kOptions[row];
    Value value;
    const bool counts = option.copied || option.kernels || row == kBufLockRow;
    if (counts && is_unlike(fd, option, value)) unlike |= bit_of(row);
  }
  return unlike;
}

bool must_stay_kernels(int fd, int family, const OptionsToAsk& asked) {
  for (size_t row = 0; row < kOptions.size(); ++row) {
    const OptionRow& option = kOptions[row];
    if (!option.kernels || !asked.has(row)) continue;
    if (option.level == IPPROTO_IPV6 && family != AF_INET6) continue;
    Value value;
    if (is_unlike(fd, option, value)) return true;
  }
  return false;
}

uint8_t kernel_priority(int fd, int family, const OptionsToAsk& asked) {
  const auto value = [fd, &asked](size_t row) {
    if (!asked.has(row)) return asked.others[row];
    return option_of(fd, kOptions[row].level, kOptions[row].name).value_or(0);
  };
  return priority_of(value(kPriorityRow), value(family == AF_INET6 ? kClassRow : kTosRow));
}

uint8_t priority_of(int priority, int traffic_class) {
  const int precedence = (traffic_class & 0xff) >> 5;
  return static_cast<uint8_t>(std::max(std::clamp(priority, 0, int{kMostPriority}), precedence));
}

int priority_of_tos(int tos) {
  // Bulk, interactive bulk and interactive, by two of the bits of RFC 1349.
  switch (tos & 0x18) {
    case 0x08:
      return 2;
    case 0x10:
      return 6;
    case 0x18:
      return 4;
    default:
      return 0;
  }
}

}  // namespace mercury::sockets
