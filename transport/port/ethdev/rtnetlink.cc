#include "transport/port/ethdev/rtnetlink.h"

#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

namespace mercury::ethdev {
namespace {

constexpr size_t kMessageBytes = 4096;  // one route or neighbour is a few hundred
constexpr int kAnswerTimeoutSeconds = 1;

uint8_t family_of(const IpAddress& ip) { return ip.is_v4() ? AF_INET : AF_INET6; }
size_t address_bytes(const IpAddress& ip) { return ip.is_v4() ? 4 : 16; }
const uint8_t* address_data(const IpAddress& ip) { return ip.bytes.data() + (ip.is_v4() ? 12 : 0); }

}  // namespace

// One request and the room for its answer.
struct RouteSocket::Message {
  alignas(NLMSG_ALIGNTO) std::byte bytes[kMessageBytes]{};
  uint32_t used = 0;
  size_t received = 0;

  nlmsghdr* header() { return reinterpret_cast<nlmsghdr*>(bytes); }

  template <class Body>
  Body& start(uint16_t type, uint16_t flags) {
    header()->nlmsg_type = type;
    header()->nlmsg_flags = flags;
    used = NLMSG_LENGTH(sizeof(Body));
    return *reinterpret_cast<Body*>(bytes + NLMSG_HDRLEN);
  }

  void attribute(uint16_t type, const void* data, size_t size) {
    used = NLMSG_ALIGN(used);
    auto* attribute = reinterpret_cast<rtattr*>(bytes + used);
    attribute->rta_type = type;
    attribute->rta_len = static_cast<uint16_t>(RTA_LENGTH(size));
    std::memcpy(bytes + used + RTA_LENGTH(0), data, size);
    used += attribute->rta_len;
  }

  // The attribute `type` of the answer, behind a body of `body_bytes`; empty if it is not there.
  std::span<const std::byte> find(size_t body_bytes, uint16_t type) {
    const size_t total = std::min<size_t>(header()->nlmsg_len, received);
    size_t at = NLMSG_HDRLEN + NLMSG_ALIGN(body_bytes);
    while (at + sizeof(rtattr) <= total) {
      const auto* attribute = reinterpret_cast<const rtattr*>(bytes + at);
      if (attribute->rta_len < sizeof(rtattr) || attribute->rta_len > total - at) break;
      if (attribute->rta_type == type) {
        return std::span(bytes + at, attribute->rta_len).subspan(RTA_LENGTH(0));
      }
      at += RTA_ALIGN(attribute->rta_len);
    }
    return {};
  }
};

Result<RouteSocket> RouteSocket::open(uint32_t interface_index) {
  const int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return Error::system(errno, "netlink socket for routes");
  RouteSocket socket(fd, interface_index);
  const timeval timeout{kAnswerTimeoutSeconds, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const int strict = 1;  // the kernel then honours every field of a request, or refuses it
  ::setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &strict, sizeof(strict));
  return socket;
}

Result<std::unique_ptr<KernelNeighbours>> RouteSockets::open(uint32_t interface_index) {
  Result<RouteSocket> ways = RouteSocket::open(interface_index);
  if (!ways) return ways.error();
  Result<RouteSocket> neighbours = RouteSocket::open(interface_index);
  if (!neighbours) return neighbours.error();
  return std::unique_ptr<KernelNeighbours>(
      new RouteSockets(std::move(*ways), std::move(*neighbours)));
}

RouteSocket::RouteSocket(RouteSocket&& other) noexcept { *this = std::move(other); }

RouteSocket& RouteSocket::operator=(RouteSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(interface_index_, other.interface_index_);
  std::swap(sequence_, other.sequence_);
  return *this;
}

RouteSocket::~RouteSocket() {
  if (fd_ >= 0) ::close(fd_);
}

int RouteSocket::exchange(Message& message) {
  nlmsghdr* header = message.header();
  header->nlmsg_len = message.used;
  header->nlmsg_flags |= NLM_F_REQUEST;
  const uint32_t sequence = ++sequence_;
  header->nlmsg_seq = sequence;
  if (::send(fd_, message.bytes, message.used, 0) < 0) return errno;
  do {  // skips the answer to a request that timed out
    const ssize_t got = ::recv(fd_, message.bytes, sizeof(message.bytes), 0);
    if (got < 0) return errno;
    message.received = static_cast<size_t>(got);
    if (message.received < sizeof(nlmsghdr)) return EPROTO;
  } while (header->nlmsg_seq != sequence);
  if (header->nlmsg_type != NLMSG_ERROR) return 0;
  if (message.received < NLMSG_LENGTH(sizeof(nlmsgerr))) return EPROTO;
  return -reinterpret_cast<const nlmsgerr*>(message.bytes + NLMSG_HDRLEN)->error;
}

Result<IpAddress> RouteSocket::next_hop(const IpAddress& destination) {
  Message message;
  rtmsg& body = message.start<rtmsg>(RTM_GETROUTE, 0);
  body.rtm_family = family_of(destination);
  body.rtm_dst_len = static_cast<uint8_t>(8 * address_bytes(destination));
  message.attribute(RTA_DST, address_data(destination), address_bytes(destination));
  message.attribute(RTA_OIF, &interface_index_, sizeof(interface_index_));
  const int failed = exchange(message);
  if (failed != 0) {
    return Error(Errc::kNotFound, failed,
                 "no route to " + destination.to_string() +
                     " over this interface; see: ip route get " + destination.to_string());
  }
  const auto gateway = message.find(sizeof(rtmsg), RTA_GATEWAY);
  if (gateway.size() != address_bytes(destination)) return destination;
  IpAddress ip = destination;  // of the same family
  std::memcpy(ip.bytes.data() + (ip.is_v4() ? 12 : 0), gateway.data(), gateway.size());
  return ip;
}

std::optional<MacAddress> RouteSocket::neighbour(const IpAddress& ip) {
  Message message;
  ndmsg& body = message.start<ndmsg>(RTM_GETNEIGH, 0);
  body.ndm_family = family_of(ip);
  body.ndm_ifindex = static_cast<int>(interface_index_);
  message.attribute(NDA_DST, address_data(ip), address_bytes(ip));
  if (exchange(message) != 0 || message.received < NLMSG_LENGTH(sizeof(ndmsg))) return {};
  const auto& answer = *reinterpret_cast<const ndmsg*>(message.bytes + NLMSG_HDRLEN);
  const auto mac = message.find(sizeof(ndmsg), NDA_LLADDR);
  const bool usable = (answer.ndm_state & (NUD_INCOMPLETE | NUD_FAILED)) == 0;
  if (!usable || mac.size() != 6) return {};
  MacAddress found;
  std::memcpy(found.bytes.data(), mac.data(), 6);
  return found;
}

void RouteSocket::touch(const IpAddress& ip) {
  Message message;
  ndmsg& body = message.start<ndmsg>(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_ACK);
  body.ndm_family = family_of(ip);
  body.ndm_ifindex = static_cast<int>(interface_index_);
  body.ndm_flags = NTF_USE;
  message.attribute(NDA_DST, address_data(ip), address_bytes(ip));
  exchange(message);  // nothing to do about a refusal: the neighbour stays unresolved
}

}  // namespace mercury::ethdev
