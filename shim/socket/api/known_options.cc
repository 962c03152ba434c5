#include "shim/socket/api/known_options.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim/socket/api/libc.h"
#include "shim/socket/api/now.h"

// Younger than the C library's headers.
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

namespace mercury::sockets {
namespace {

// sysctl may change what sockets begin with: a time to live, when to probe.
constexpr uint64_t kTrustedNs = 1'000'000'000;

// Setting one changes another, too.
struct Also {
  int level;
  int name;
  int changed;  // of SOL_SOCKET
};
constexpr std::array kAlso = {
    Also{IPPROTO_IP, IP_TOS, SO_PRIORITY},
    Also{SOL_SOCKET, SO_SNDBUF, SO_BUF_LOCK},
    Also{SOL_SOCKET, SO_RCVBUF, SO_BUF_LOCK},
    Also{SOL_SOCKET, SO_SNDBUFFORCE, SO_BUF_LOCK},
    Also{SOL_SOCKET, SO_RCVBUFFORCE, SO_BUF_LOCK},
    Also{SOL_SOCKET, SO_BINDTOIFINDEX, SO_BINDTODEVICE},
    // Those with 64 bits of seconds have numbers of their own.
    Also{SOL_SOCKET, SO_RCVTIMEO_NEW, SO_RCVTIMEO},
    Also{SOL_SOCKET, SO_SNDTIMEO_NEW, SO_SNDTIMEO},
    Also{SOL_SOCKET, SO_TIMESTAMP_NEW, SO_TIMESTAMP},
    Also{SOL_SOCKET, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPNS},
    Also{SOL_SOCKET, SO_TIMESTAMPING_NEW, SO_TIMESTAMPING},
};

OptionRows bits_of(int level, int name) {
  const auto row = find_option(AF_INET6, level, name);
  return row ? bit_of(*row) : 0;
}

}  // namespace

void KnownOptions::set(int level, int name) {
  OptionRows rows = bits_of(level, name);
  for (const Also& also : kAlso) {
    if (also.level == level && also.name == name) rows |= bits_of(SOL_SOCKET, also.changed);
  }
  if ((rows & ~set_.load(std::memory_order_relaxed)) != 0) set_.fetch_or(rows);
}

// A socket's values for an instant. Without a descriptor to spare nothing is learnt, and the
// program's own is asked for all.
void KnownOptions::look(int family) {
  const int fd = libc().socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const OptionValues values = read_values(fd, family, {});
  const OptionRows unlike = unlike_new(fd);
  ::close(fd);
  learn(family, values, unlike);
}

// Each load before the last: so what learn() has begun to write meanwhile is found out there.
OptionsToAsk KnownOptions::known(const Known& of_family) const {
  OptionsToAsk asked;
  const uint64_t version = of_family.version.load(std::memory_order_acquire);
  if (version == 0 || version % 2 == 1) return {};
  if (now_ns() - of_family.since_ns.load(std::memory_order_acquire) >= kTrustedNs) return {};
  asked.rows = were_set() | of_family.unlike.load(std::memory_order_acquire);
  for (size_t row = 0; row < kOptionRows; ++row) {
    asked.others[row] = of_family.values[row].load(std::memory_order_acquire);
  }
  if (of_family.version.load(std::memory_order_acquire) != version) return {};
  return asked;
}

OptionsToAsk KnownOptions::to_ask(SocketKind kind, int family) {
  if (kind == SocketKind::kOther) return {};
  OptionsToAsk asked = known(of(family));
  if (asked.has_all()) {
    look(family);
    asked = known(of(family));
  }
  // All else that is remembered an accepted socket has from its listener, as that had it.
  if (kind == SocketKind::kAccepted) asked.rows |= bits_of(IPPROTO_TCP, TCP_MAXSEG);
  return asked;
}

// Whoever finds another one writing leaves it at that: it may be what a signal has interrupted.
void KnownOptions::learn(int family, const OptionValues& values, OptionRows unlike) {
  Known& known = of(family);
  uint64_t version = known.version.load(std::memory_order_relaxed);
  if (version % 2 == 1 || !known.version.compare_exchange_strong(version, version + 1)) return;
  known.since_ns.store(now_ns(), std::memory_order_release);
  known.unlike.store(unlike, std::memory_order_release);
  for (size_t row = 0; row < kOptionRows; ++row) {
    known.values[row].store(values[row], std::memory_order_release);
  }
  known.version.store(version + 2, std::memory_order_release);
}

void KnownOptions::forked() {
  for (Known& known : known_) {
    const uint64_t version = known.version.load(std::memory_order_relaxed);
    if (version % 2 == 1) known.version.store(0, std::memory_order_relaxed);
  }
}

}  // namespace mercury::sockets
