#include "apps/ctl/ask.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "shim/channel/seqpacket.h"
#include "shim/channel/unique_fd.h"
#include "shim/host/clock.h"

namespace mercury {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kNsPerS = 1'000'000'000;

Error no_daemon(const std::string& path, int why) {
  return Error(Errc::kDaemonLost, why,
               "no daemon answers at " + path + " (" + errno_text(why) +
                   "); start it with: mercury-stackd, or name its socket with --socket");
}

// Who listens is known even if it never accepted.
std::optional<pid_t> listener_of(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) {
    return std::nullopt;
  }
  return peer.pid;
}

Error no_answer(const std::string& path, int socket, unsigned timeout_s) {
  const std::optional<pid_t> listener = listener_of(socket);
  const std::string pid = listener ? std::to_string(*listener) : "PID";
  return Error(Errc::kTimedOut, "the daemon at " + path + (listener ? " (pid " + pid + ")" : "") +
                                    " does not answer within " + std::to_string(timeout_s) +
                                    " s; see whether it is stopped (ps -o stat,wchan -p " + pid +
                                    ": T is stopped, kill -CONT " + pid +
                                    ") or out of descriptors (its log), or wait with --timeout");
}

// Connecting waits, too, while the listener's backlog is full.
Result<UniqueFd> connect(const std::string& path, unsigned timeout_s) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return no_daemon(path, ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Error::system(errno, "socket");
  const timeval limit{static_cast<time_t>(timeout_s), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  int rc;
  do {
    rc = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (rc < 0 && errno == EINTR);
  if (rc == 0) return socket;
  if (errno == EAGAIN) return no_answer(path, socket.get(), timeout_s);
  if (errno == EACCES || errno == EPERM) {
    return Error(Errc::kPermission, errno,
                 "no permission for " + path + ": " + attach::who_may_open(path) +
                     "; run mercuryctl as that user, or with sudo");
  }
  return no_daemon(path, errno);
}

}  // namespace

std::optional<pid_t> running_daemon(const std::string& path) {
  const Result<UniqueFd> socket = connect(path, 1);
  return socket ? listener_of(socket->get()) : std::nullopt;
}

Result<std::string> ask_daemon(const std::string& path, const std::string& question,
                               unsigned timeout_s) {
  const uint64_t deadline_ns = monotonic_ns() + timeout_s * kNsPerS;
  Result<UniqueFd> socket = connect(path, timeout_s);
  if (!socket) return socket.error();
  const std::string line = question + "\n";
  // A socket that was just connected has room for it.
  if (::send(socket->get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) {
    return no_daemon(path, errno);
  }
  std::string answer;
  char part[4096];
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    const uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / kNsPerMs + 1 : 0;
    pollfd readable{socket->get(), POLLIN, 0};
    const int ready = ::poll(&readable, 1, static_cast<int>(left_ms));
    if (ready == 0) return no_answer(path, socket->get(), timeout_s);
    if (ready < 0 && errno == EINTR) continue;
    const ssize_t got = ready < 0 ? -1 : ::recv(socket->get(), part, sizeof part, 0);
    if (got < 0) return no_daemon(path, errno);
    if (got == 0) return answer;
    answer.append(part, static_cast<size_t>(got));
  }
}

}  // namespace mercury
