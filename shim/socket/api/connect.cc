// mercury_socket, mercury_bind, mercury_connect.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "shim/socket/api/address.h"
#include "shim/socket/api/adopt.h"
#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/errno_kept.h"
#include "shim/socket/api/known_options.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/api/now.h"
#include "shim/socket/api/option_rows.h"
#include "shim/socket/api/process.h"

namespace mercury::sockets {
namespace {

constexpr int kTypeBits = 0xf;  // of socket()'s type; the others are flags

// What connect() is to do.
enum class Way { kKernel, kMercury, kIsConnected };

// Whom Linux means by 0.0.0.0 and ::.
Endpoint named(Endpoint remote) {
  if (!remote.ip.is_unspecified()) return remote;
  if (remote.ip.is_v4()) {
    remote.ip = IpAddress::v4(127, 0, 0, 1);
  } else {
    remote.ip.bytes[15] = 1;
  }
  return remote;
}

// `socket` has its number and the address's family. If it may be Mercury's, its options are added.
Way way_of(Replaced& socket, const Endpoint& remote) {
  const int fd = socket.fd;
  OwnProcess& own = process();
  if (!own.undecided.may_be(fd) && own.connections.empty()) return Way::kKernel;
  const auto cookie = cookie_of(fd);
  if (!cookie) return Way::kKernel;
  const int family = own.undecided.family_of_new(fd, *cookie);
  if (family == AF_UNSPEC) {
    return own.connections.find(*cookie) ? Way::kIsConnected : Way::kKernel;
  }
  if (remote.port == 0 || remote.ip.is_multicast()) return Way::kKernel;
  if (family != socket.family || !own.settings.allows(remote)) return Way::kKernel;
  if (!is_closed_tcp(fd)) return Way::kKernel;
  socket.options = own.options.to_ask(SocketKind::kNew, family);
  if (must_stay_kernels(fd, family, socket.options)) return Way::kKernel;
  // Where IPv6 alone was asked for, the kernel says why IPv4 is not reached.
  if (family == AF_INET6 && remote.ip.is_v4() && option_of(fd, IPPROTO_IPV6, IPV6_V6ONLY) != 0) {
    return Way::kKernel;
  }
  return Way::kMercury;
}

// A daemon that has just gone is often started again. Who went to the kernel meanwhile would come
// to the other host before it has heard that the last connections have ended.
Asked ask_for_connection(const Request& request, OnSignal on_signal) {
  constexpr int kLookMs = 10;
  OwnProcess& own = process();
  const Settings& settings = own.settings;
  if (settings.on_error == OnError::kFail) return own.ask(request, on_signal);
  while (true) {
    Asked asked = own.daemon.ask(settings.path.data(), request, on_signal);
    const uint64_t lost_ns = own.daemon.lost_ns();
    const bool may_come_back =
        asked.error == ECONNREFUSED && lost_ns != 0 && now_ns() - lost_ns < settings.come_back_ns;
    if (!may_come_back) return own.answered(std::move(asked));
    libc().poll(nullptr, 0, kLookMs);
  }
}

// A connect() that a signal ends goes on without its caller, who may wait for it: the kernel's.
int go_on_by_kernel(int fd, const sockaddr* address, socklen_t length) {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const int rc = libc().connect(fd, address, length);
  const int error = rc == 0 || errno != EINPROGRESS ? errno : EINTR;
  ::fcntl(fd, F_SETFL, flags);
  errno = error;
  return rc;
}

// 0: connected; an errno; or -1: by the kernel. EINTR: a signal came, and nobody connects it yet.
int connect_by_mercury(Replaced socket, const Endpoint& remote) {
  OwnProcess& own = process();
  const int fd = socket.fd;
  const auto has = [fd](int command, int flag) {
    const int flags = ::fcntl(fd, command);
    return flags >= 0 && (flags & flag) != 0;
  };
  Request request;
  request.kind = RequestKind::kConnect;
  request.remote = remote;
  request.local = kernel_name(fd).value_or(Endpoint{});
  request.priority = kernel_priority(fd, socket.family, socket.options);
  Asked asked =
      ask_for_connection(request, has(F_GETFL, O_NONBLOCK) ? OnSignal::kWaitOn : OnSignal::kGiveUp);
  if (asked.error == EINTR) return EINTR;
  if (asked.error != 0) return own.settings.on_error == OnError::kFail ? asked.error : -1;
  if (asked.reply.kind == ReplyKind::kFailed) return errno_in(asked.reply);
  if (asked.reply.kind != ReplyKind::kConnected) return -1;
  // As they are now: another thread may have set them meanwhile.
  socket.non_blocking = has(F_GETFL, O_NONBLOCK);
  socket.close_on_exec = has(F_GETFD, FD_CLOEXEC);
  const uint64_t cookie = own.undecided.take_out(fd);
  const int error = adopt(socket, std::move(asked));
  own.undecided.put_back(fd, cookie);
  own.undecided.remove(fd);
  return error;
}

}  // namespace
}  // namespace mercury::sockets

namespace sockets = mercury::sockets;

int mercury_socket(int domain, int type, int protocol) {
  const int fd = sockets::libc().socket(domain, type, protocol);
  const bool may_be_mercurys = (domain == AF_INET || domain == AF_INET6) &&
                               (type & sockets::kTypeBits) == SOCK_STREAM &&
                               (protocol == 0 || protocol == IPPROTO_TCP);
  if (fd < 0 || !may_be_mercurys) return fd;
  const sockets::ErrnoKept kept;
  if (const auto cookie = sockets::cookie_of(fd)) {
    sockets::process().undecided.add(fd, domain, *cookie);
  }
  return fd;
}

int mercury_bind(int fd, const sockaddr* address, socklen_t length) {
  return ::bind(fd, address, length);
}

int mercury_connect(int fd, const sockaddr* address, socklen_t length) {
  bool interrupted = false;
  {
    sockets::ErrnoKept kept;
    const auto remote = sockets::endpoint_of(address, length);
    if (!remote && sockets::process().find(fd)) return kept.fail(EOPNOTSUPP);
    sockets::Replaced socket{.fd = fd, .family = remote ? address->sa_family : AF_UNSPEC};
    const auto way = remote ? sockets::way_of(socket, *remote) : sockets::Way::kKernel;
    if (way == sockets::Way::kIsConnected) return kept.fail(EISCONN);
    if (way == sockets::Way::kMercury) {
      const int done = sockets::connect_by_mercury(socket, sockets::named(*remote));
      if (done == 0) return 0;
      interrupted =
          done == EINTR && sockets::process().settings.on_error == sockets::OnError::kKernel;
      if (done > 0 && !interrupted) return kept.fail(done);
    }
  }
  const int rc = interrupted ? sockets::go_on_by_kernel(fd, address, length)
                             : sockets::libc().connect(fd, address, length);
  // It is the kernel's now. One that is refused, now or later, may try again, and then be
  // Mercury's.
  if (rc == 0) sockets::process().undecided.remove(fd);
  return rc;
}
