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

#include "shim/channel/unique_fd.h"

namespace mercury {
namespace {

struct DumpRequest {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

Status ask(int socket, uint8_t family, uint16_t port) {
  DumpRequest request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.sdiag_family = family;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = 1U << TCP_LISTEN;
  request.body.id.idiag_sport = htons(port);
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

// The kernel writes its answer as it is read, so nothing here waits.
template <class Visit>
Status read(int socket, Visit visit) {
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
        return Error::system(-error.error, "the kernel does not say which sockets listen");
      }
      inet_diag_msg message{};
      if (header->nlmsg_len < NLMSG_LENGTH(sizeof message)) continue;
      std::memcpy(&message, reinterpret_cast<const char*>(header) + NLMSG_HDRLEN, sizeof message);
      visit(message);
    }
  }
}

// Visits each socket that listens at `port`; 0: at any.
template <class Visit>
Status for_each_listening(uint16_t port, Visit visit) {
  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!socket) return Error::system(errno, "NETLINK_SOCK_DIAG");
  for (const uint8_t family : {uint8_t{AF_INET}, uint8_t{AF_INET6}}) {
    if (Status asked = ask(socket.get(), family, port); !asked) return asked;
    if (Status good = read(socket.get(), visit); !good) return good;
  }
  return {};
}

}  // namespace

Status check_listening(uint64_t cookie, const Endpoint& at) {
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
  if (Status asked = for_each_listening(at.port, look); !asked) return asked;
  if (!here) return Error(Errc::kNotFound, "nobody listens at " + at.to_string());
  if (other && !exact) return Error(Errc::kBusy, "another socket listens at " + at.to_string());
  return {};
}

std::optional<std::unordered_set<uint64_t>> listening_cookies() {
  std::unordered_set<uint64_t> cookies;
  const auto keep = [&cookies](const inet_diag_msg& one) { cookies.insert(cookie_of(one)); };
  if (!for_each_listening(0, keep)) return std::nullopt;
  return cookies;
}

}  // namespace mercury
