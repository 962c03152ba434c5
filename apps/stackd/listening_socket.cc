#include "apps/stackd/listening_socket.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace mercury {
namespace {

struct DiagRequest {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

// Of one socket that listens, or with NLM_F_DUMP of all.
DiagRequest request_for(uint16_t flags, uint8_t family, uint16_t port) {
  DiagRequest request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | flags;
  request.body.sdiag_family = family;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = 1U << TCP_LISTEN;
  request.body.id.idiag_sport = htons(port);
  return request;
}

Status ask(int socket, const DiagRequest& request) {
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  const ssize_t sent = ::sendto(socket, &request, sizeof request, 0,
                                reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel);
  if (sent < 0) return Error::system(errno, "cannot ask for sockets that listen");
  return {};
}

uint64_t cookie_of(const inet_diag_msg& message) {
  return uint64_t{message.id.idiag_cookie[1]} << 32 | message.id.idiag_cookie[0];
}

IpAddress address_of(const inet_diag_msg& message) {
  std::array<uint8_t, 16> bytes{};
  static_assert(sizeof message.id.idiag_src == sizeof bytes);
  std::memcpy(bytes.data(), message.id.idiag_src, bytes.size());
  if (message.idiag_family == AF_INET) return IpAddress::v4(bytes[0], bytes[1], bytes[2], bytes[3]);
  return IpAddress{bytes};
}

enum class Answers { kOne, kAll };

// The kernel writes its answer as it is read, so nothing here waits. kNotFound: it has no such
// socket.
template <class Visit>
Status read(int socket, Answers answers, Visit visit) {
  alignas(nlmsghdr) std::array<char, 32 * 1024> buffer;
  while (true) {
    const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error::system(errno, "cannot read which sockets listen");
    auto left = static_cast<unsigned>(got);
    const auto* header = reinterpret_cast<const nlmsghdr*>(buffer.data());
    for (; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return {};
      if (header->nlmsg_type == NLMSG_ERROR) {
        nlmsgerr error{};
        std::memcpy(&error, reinterpret_cast<const char*>(header) + NLMSG_HDRLEN, sizeof error);
        const bool is_other = error.error == -ENOENT || error.error == -ESTALE;
        if (answers == Answers::kOne && is_other) return Error(Errc::kNotFound, "");
        return Error::system(-error.error, "the kernel does not say which sockets listen");
      }
      inet_diag_msg message{};
      if (header->nlmsg_len < NLMSG_LENGTH(sizeof message)) continue;
      std::memcpy(&message, reinterpret_cast<const char*>(header) + NLMSG_HDRLEN, sizeof message);
      visit(message);
      if (answers == Answers::kOne) return {};
    }
  }
}

}  // namespace

Status ListeningSockets::open() {
  if (socket_) return {};
  socket_ = UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!socket_) return Error::system(errno, "NETLINK_SOCK_DIAG");
  return {};
}

// Visits each socket that listens at `port`; 0: at any.
template <class Visit>
Status ListeningSockets::for_each(uint16_t port, Visit visit) {
  if (Status opened = open(); !opened) return opened;
  for (const uint8_t family : {uint8_t{AF_INET}, uint8_t{AF_INET6}}) {
    Status good = ask(socket_.get(), request_for(NLM_F_DUMP, family, port));
    if (good) good = read(socket_.get(), Answers::kAll, visit);
    if (good) continue;
    socket_.reset();
    return good;
  }
  return {};
}

// The cookie of a socket to which a connection of this host goes, by one look into the kernel's
// tables, where all that listen take many times as long. Of sockets that share their address
// (SO_REUSEPORT) it finds one, and not always the one that a connection comes to.
std::optional<uint64_t> ListeningSockets::next(const Endpoint& at) {
  constexpr uint32_t kLoopback = 1;  // of each network namespace; all of a host's own goes by it
  if (!open()) return std::nullopt;
  DiagRequest request = request_for(0, at.ip.is_v4() ? AF_INET : AF_INET6, at.port);
  if (at.ip.is_v4()) {
    const auto bytes = at.ip.v4_bytes();
    std::memcpy(request.body.id.idiag_src, bytes.data(), bytes.size());
  } else {
    std::memcpy(request.body.id.idiag_src, at.ip.bytes.data(), at.ip.bytes.size());
  }
  request.body.id.idiag_if = kLoopback;
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  std::optional<uint64_t> cookie;
  Status good = ask(socket_.get(), request);
  if (good) {
    good = read(socket_.get(), Answers::kOne, [&cookie](const inet_diag_msg& one) {
      if (one.idiag_state == TCP_LISTEN) cookie = cookie_of(one);
    });
  }
  if (!good && good.error().code != Errc::kNotFound) socket_.reset();
  return cookie;
}

Status ListeningSockets::check(uint64_t cookie, const Endpoint& at, const Shares& shares) {
  const std::optional<uint64_t> found = next(at);
  if (found == cookie) return {};
  if (found && shares && shares(*found)) return {};
  bool here = false;   // who was asked for
  bool exact = false;  // at this very address, not at all of them
  bool other = false;  // somebody else at this very address
  const auto look = [&](const inet_diag_msg& message) {
    const bool same = address_of(message) == at.ip;
    if (cookie_of(message) == cookie) {
      here = true;
      exact = same;
    } else {
      other = other || same;
    }
  };
  if (Status asked = for_each(at.port, look); !asked) return asked;
  if (!here) return Error(Errc::kNotFound, "nobody listens at " + at.to_string());
  if (other && !exact) return Error(Errc::kBusy, "another socket listens at " + at.to_string());
  return {};
}

std::optional<std::unordered_set<uint64_t>> ListeningSockets::cookies() {
  std::unordered_set<uint64_t> cookies;
  const auto keep = [&cookies](const inet_diag_msg& one) { cookies.insert(cookie_of(one)); };
  if (!for_each(0, keep)) return std::nullopt;
  return cookies;
}

}  // namespace mercury
