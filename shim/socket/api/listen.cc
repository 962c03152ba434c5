// mercury_listen, mercury_accept, mercury_accept4.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "shim/socket/api/address.h"
#include "shim/socket/api/adopt.h"
#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/known_options.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/option_rows.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

bool is_tcp(int fd) {
  const int family = option_of(fd, SOL_SOCKET, SO_DOMAIN).value_or(AF_UNSPEC);
  return (family == AF_INET || family == AF_INET6) &&
         option_of(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

// What the daemon is to know of a socket that listens, or will; nothing: it is none of Mercury's.
std::optional<Listeners::Own> listener_of(int fd) {
  const uint64_t cookie = cookie_of(fd).value_or(0);
  if (process().undecided.is_kernels(fd, cookie)) return std::nullopt;
  const auto local = is_tcp(fd) ? kernel_name(fd) : std::nullopt;
  if (!local || !process().settings.allows(*local)) return std::nullopt;
  const int family = option_of(fd, SOL_SOCKET, SO_DOMAIN).value_or(AF_INET);
  // Whoever set them: to listen is rare.
  if (must_stay_kernels(fd, family, {})) return std::nullopt;
  return Listeners::Own{
      cookie, *local,
      family == AF_INET6 && option_of(fd, IPPROTO_IPV6, IPV6_V6ONLY).value_or(0) != 0};
}

struct Announced {
  std::optional<Listeners::Own> listener;  // nothing: the daemon need not know before
  int error = 0;                           // of Listeners::announce
};

// Before the kernel takes a client. Where the kernel is to choose the port nobody knows it yet.
Announced announce(int fd) {
  OwnProcess& own = process();
  const auto listener = listener_of(fd);
  if (!listener || listener->local.port == 0) return {};
  if (option_of(fd, SOL_SOCKET, SO_ACCEPTCONN) != 0) return {};  // it listens already
  return {listener, own.listeners.announce(own.settings.path.data(), *listener)};
}

void tell_of_listener(int fd, const Announced& announced) {
  OwnProcess& own = process();
  const auto listener = listener_of(fd);
  if (const auto cookie = cookie_of(fd)) own.undecided.listens(fd, *cookie);
  if (!listener) return;
  int error = announced.error;
  if (error != 0) {
    own.listeners.remember(*listener);  // the daemon is told once it is there
  } else {
    error = own.listeners.add(own.settings.path.data(), *listener);
  }
  if (error != 0) own.lost_daemon(error);
}

// A socket that `listener` has just given, of `family`.
Replaced accepted_by(int listener, int fd, int flags, int family) {
  Replaced socket;
  socket.fd = fd;
  socket.family = family;
  const bool made_here = process().undecided.made_here(listener);
  const SocketKind kind = made_here ? SocketKind::kAccepted : SocketKind::kOther;
  socket.options = process().options.to_ask(kind, family);
  socket.non_blocking = (flags & SOCK_NONBLOCK) != 0;
  socket.close_on_exec = (flags & SOCK_CLOEXEC) != 0;
  return socket;
}

// What has just been accepted from `remote`. 0: it is the kernel's or Mercury's, with the peer's
// name in `remote`; or an errno, and it is closed.
int claim(int listener, int fd, int flags, int family, Endpoint& remote) {
  OwnProcess& own = process();
  const auto local = kernel_name(fd);
  const bool is_of_host = local && (is_loopback(remote.ip) || remote.ip == local->ip);
  if (!is_of_host || !own.settings.allows(*local)) return 0;
  const Replaced socket = accepted_by(listener, fd, flags, family);
  Request request;
  request.kind = RequestKind::kClaim;
  request.remote = remote;
  request.local = *local;
  request.priority = kernel_priority(fd, family, socket.options);
  Asked asked = own.ask(request);
  const bool is_kernels = asked.error == 0 && asked.reply.kind == ReplyKind::kKernel;
  // Without a daemon nobody can tell; who waits behind a knock of a daemon that died is told of its
  // end by the kernel.
  if (is_kernels || (asked.error != 0 && asked.error != EMFILE)) return 0;
  if (asked.reply.kind == ReplyKind::kConnected) {
    remote = asked.reply.remote;
    // The daemon has reset the knock: it leaves no port that waits.
    const int error = adopt(socket, std::move(asked));
    if (error == 0) return 0;
    ::close(fd);
    return error;
  }
  const int error = asked.error != 0 ? asked.error : ECONNABORTED;
  ::close(fd);
  return error;
}

}  // namespace
}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

int mercury_listen(int fd, int backlog) {
  sockets::Announced announced;
  {
    const sockets::ErrnoKept kept;
    announced = sockets::announce(fd);
  }
  const int rc = sockets::libc().listen(fd, backlog);
  const sockets::ErrnoKept kept;
  if (rc == 0) {
    sockets::tell_of_listener(fd, announced);
  } else if (announced.listener && announced.error == 0) {
    sockets::OwnProcess& own = sockets::process();
    own.listeners.withdraw(own.settings.path.data(), *announced.listener);
  }
  return rc;
}

int mercury_accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  {
    const sockets::ErrnoKept kept;
    sockets::process().listeners.refresh(sockets::process().settings.path.data());
  }
  sockaddr_storage storage;
  auto* const from = reinterpret_cast<sockaddr*>(&storage);
  socklen_t bytes = sizeof storage;
  const int accepted = sockets::libc().accept4(fd, from, &bytes, flags);
  if (accepted < 0) return -1;
  sockets::ErrnoKept kept;
  sockets::process().undecided.remove(accepted);
  auto remote = sockets::endpoint_of(from, bytes);
  if (remote) {
    const int error = sockets::claim(fd, accepted, flags, from->sa_family, *remote);
    if (error != 0) return kept.fail(error);
  }
  if (address && length) {
    if (remote && from->sa_family != AF_UNSPEC) {
      sockets::give_address(from->sa_family, *remote, address, length);
    } else {
      __builtin_memcpy(address, from, *length < bytes ? *length : bytes);
      *length = bytes;
    }
  }
  return accepted;
}

int mercury_accept(int fd, sockaddr* address, socklen_t* length) {
  return mercury_accept4(fd, address, length, 0);
}
