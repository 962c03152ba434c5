#include "apps/perf/talk.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "shim/socket/api/mercurystack/socket.h"
#include "shim/socket/request.h"

namespace mercury::perf {
namespace {

constexpr size_t kLongestLine = 4096;

bool is_mercurys(int fd) {
  std::array<char, 16> name{};
  socklen_t length = sizeof name;
  return mercury_getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) == 0 &&
         std::string_view(name.data()) == "mercury";
}

Result<UniqueFd> connect_one(const addrinfo& where, const std::string& name, bool over_kernel) {
  const auto make = over_kernel ? ::socket : mercury_socket;
  UniqueFd fd(make(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return Error::system(errno, "socket");
  limit_silence(fd.get());
  const int one = 1;  // a message is sent as it is
  mercury_setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const auto connect = over_kernel ? ::connect : mercury_connect;
  if (connect(fd.get(), where.ai_addr, where.ai_addrlen) != 0) {
    return Error::system(errno, "cannot connect to " + name + " (is mercury-perf serve there?)");
  }
  if (over_kernel || is_mercurys(fd.get())) return fd;
  return Error(
      Errc::kUnsupported,
      "the connection to " + name +
          " went through the kernel, not over Mercury: a daemon of this host or of that one "
          "does not run, or does not carry it (mercuryctl ping says which; docs/sockets.md); "
          "--over kernel measures the kernel");
}

}  // namespace

std::string sockets_path() {
  const char* named = std::getenv("MERCURY_PRELOAD_SOCKET");
  return named != nullptr && *named != 0 ? named : sockets::kDefaultSocketsPath;
}

Error lost(int number) {
  if (number == 0) return Error(Errc::kPeerLost, "the peer has ended the connection");
  if (number == EAGAIN || number == EWOULDBLOCK) {
    return Error(Errc::kPeerLost, number,
                 "nothing came or went for " + std::to_string(kSilenceS) + " s");
  }
  return Error(Errc::kPeerLost, number, "the connection is lost: " + errno_text(number));
}

void limit_silence(int fd) {
  const timeval limit{kSilenceS, 0};
  mercury_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  mercury_setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

Status send_all(int fd, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t sent = mercury_send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return lost(errno);
    data = data.subspan(static_cast<size_t>(sent));
  }
  return {};
}

Status receive_all(int fd, std::span<std::byte> data) {
  while (!data.empty()) {
    const ssize_t got = mercury_recv(fd, data.data(), data.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return lost(got == 0 ? 0 : errno);
    data = data.subspan(static_cast<size_t>(got));
  }
  return {};
}

Status send_json(int fd, const nlohmann::json& json) {
  const std::string line =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return send_all(fd, std::as_bytes(std::span(line)));
}

// Byte by byte: what follows the line is not for here.
Result<nlohmann::json> receive_json(int fd) {
  std::string line;
  while (line.size() < kLongestLine) {
    std::byte next{};
    if (Status got = receive_all(fd, {&next, 1}); !got) return got.error();
    if (next != std::byte{'\n'}) {
      line.push_back(static_cast<char>(next));
      continue;
    }
    nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) return json;
    break;
  }
  return Error(Errc::kProtocol,
               "the peer is no mercury-perf: it sent something else than a line of JSON");
}

// No session carries it, and so none has an MTU.
bool is_within_host(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return mercury_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         info.tcpi_snd_mss == 0;
}

Result<UniqueFd> connect_to(const std::string& host, uint16_t port, bool over_kernel) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (const int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found); error != 0) {
    return Error(Errc::kInvalidArgument, "no host " + host + ": " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  Result<UniqueFd> last = Error(Errc::kInvalidArgument, "no address of " + host);
  for (const addrinfo* one = found; one != nullptr && !last; one = one->ai_next) {
    last = connect_one(*one, host + " port " + service, over_kernel);
  }
  return last;
}

}  // namespace mercury::perf
