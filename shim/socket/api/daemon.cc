#include "shim/socket/api/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shim/socket/api/descriptors.h"
#include "shim/socket/api/libc.h"
#include "shim/socket/api/now.h"

namespace mercury::sockets {
namespace {

// A daemon waits 3 s for another host's answer (SocketPolicy); one that takes longer is stopped.
constexpr uint64_t kPatienceNs = 5'000'000'000;
// A question takes a round trip between hosts; a signal that comes meanwhile can wait so long.
constexpr uint64_t kMomentNs = 100'000'000;
// So a program that connects often to a stopped daemon waits for a third of the time, not for all.
constexpr uint64_t kSilenceNs = 10'000'000'000;

// Programs expect the least free number for what they open, and shells have habits up to 255.
int moved_up(int fd) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return fd;
  const auto from = static_cast<int>(std::min<rlim_t>(limit.rlim_cur / 4 * 3, 768));
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, from);
  if (moved < 0) return fd;
  ::close(fd);
  return moved;
}

int why_not(int error) {
  if (error == EINTR) return EINTR;
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) return EMFILE;
  if (error == EAGAIN) return ENETDOWN;  // its backlog is full
  return ECONNREFUSED;
}

// The first descriptor of the message; others that nobody asked for are closed.
UniqueFd take_descriptor(msghdr& message) {
  UniqueFd taken;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      UniqueFd one(fd);
      if (!taken) taken = std::move(one);
    }
  }
  return taken;
}

bool is_stream_pair(int fd) {
  return option_of(fd, SOL_SOCKET, SO_DOMAIN) == AF_UNIX &&
         option_of(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM;
}

void set_time_out(int fd, int option, uint64_t ns) {
  const uint64_t us = ns / 1000 + 1;  // 0 would be for ever
  const timeval time{.tv_sec = static_cast<time_t>(us / 1'000'000),
                     .tv_usec = static_cast<suseconds_t>(us % 1'000'000)};
  libc().setsockopt(fd, SOL_SOCKET, option, &time, sizeof time);
}

// A fault of the thread itself: none that waits has one, and many programs have a handler of it
// that says where they crashed.
bool is_of_fault(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGTRAP || signal == SIGABRT || signal == SIGSYS;
}

// Whether some signal has a handler that ends what waits. The kernel does not say which one came.
bool some_handler_ends_waits() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (is_of_fault(signal) || ::sigaction(signal, nullptr, &action) != 0) continue;
    const bool has_handler = (action.sa_flags & SA_SIGINFO) != 0 ||
                             (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    if (has_handler && (action.sa_flags & SA_RESTART) == 0) return true;
  }
  return false;
}

// How long one question may wait: a call that a signal ends is made again for what is left.
class AskingTime {
 public:
  explicit AskingTime(OnSignal on_signal) : on_signal_(on_signal) {}

  // call(), which waits for as long as `option` of `fd` says: kPatienceNs.
  template <class Call>
  ssize_t have(int fd, int option, Call call) {
    ssize_t rc;
    bool shortened = false;
    while ((rc = call()) < 0 && errno == EINTR) {
      const uint64_t left_ns = after_signal();
      if (left_ns == 0) {
        errno = EAGAIN;
        break;
      }
      set_time_out(fd, option, left_ns);
      shortened = true;
    }
    const int error = errno;
    if (shortened) set_time_out(fd, option, kPatienceNs);
    errno = error == EAGAIN && interrupted_ ? EINTR : error;
    return rc;
  }

 private:
  // What is left; 0: nothing.
  uint64_t after_signal() {
    if (on_signal_ == OnSignal::kGiveUp && !interrupted_ && some_handler_ends_waits()) {
      interrupted_ = true;
      end_ns_ = std::min(end_ns_, begun_ns_ + kMomentNs);
    }
    const uint64_t now = now_ns();
    return end_ns_ - std::min(now, end_ns_);
  }

  const OnSignal on_signal_;
  const uint64_t begun_ns_ = now_ns();
  uint64_t end_ns_ = begun_ns_ + kPatienceNs;
  bool interrupted_ = false;
};

Asked failed(int error) {
  Asked asked;
  asked.error = error;
  return asked;
}

Asked receive(int fd, AskingTime& time) {
  ReplyBytes bytes;
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got =
      time.have(fd, SO_RCVTIMEO, [&] { return libc().recvmsg(fd, &message, MSG_CMSG_CLOEXEC); });
  if (got < 0) return failed(errno == EAGAIN ? ENETDOWN : why_not(errno));
  Asked asked;
  asked.end = take_descriptor(message);
  if (got == 0) return failed(ECONNREFUSED);
  if ((message.msg_flags & MSG_CTRUNC) != 0) return failed(EMFILE);
  const auto reply = decode_reply({bytes.data(), static_cast<size_t>(got)});
  const bool is_whole = reply && (message.msg_flags & MSG_TRUNC) == 0;
  if (!is_whole || (reply->kind == ReplyKind::kConnected) != bool(asked.end) ||
      (asked.end && !is_stream_pair(asked.end.get()))) {
    return failed(ENETDOWN);
  }
  asked.reply = *reply;
  return asked;
}

}  // namespace

bool is_other_namespace(const Asked& asked) {
  return asked.error == 0 && asked.reply.kind == ReplyKind::kKernel &&
         asked.reply.value == kOtherNamespace;
}

int errno_in(const Reply& reply) {
  constexpr uint32_t kMostErrno = 4095;  // of Linux
  return reply.value == 0 || reply.value > kMostErrno ? ECONNREFUSED
                                                      : static_cast<int>(reply.value);
}

int DaemonLink::open(const char* path, OnSignal on_signal) {
  const int fd = libc().socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return why_not(errno);
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO}) set_time_out(fd, option, kPatienceNs);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  AskingTime time(on_signal);
  const ssize_t rc = time.have(fd, SO_SNDTIMEO, [&] {
    return libc().connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  });
  if (rc < 0) {
    const int why = why_not(errno);
    ::close(fd);
    return why;
  }
  fd_ = moved_up(fd);
  cookie_ = cookie_of(fd_).value_or(0);
  return 0;
}

bool DaemonLink::is_own() const { return fd_ >= 0 && cookie_of(fd_) == cookie_; }

bool DaemonLink::is_open() const {
  if (!is_own()) return false;
  pollfd asked{fd_, POLLIN, 0};
  // Nothing comes unasked: what is to be read is the end.
  return libc().poll(&asked, 1, 0) == 0;
}

void DaemonLink::close() {
  if (is_own()) ::close(fd_);
  fd_ = -1;
}

Asked DaemonLink::ask(const Request& request, OnSignal on_signal) {
  const RequestBytes bytes = encode(request);
  AskingTime time(on_signal);
  const ssize_t sent = time.have(
      fd_, SO_SNDTIMEO, [&] { return libc().send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  Asked asked = sent < 0 ? failed(why_not(errno)) : receive(fd_, time);
  asked.sent = sent >= 0 || asked.error != ECONNREFUSED;
  if (asked.error != 0) close();
  return asked;
}

void Daemon::note_loss() { lost_ns_.store(now_ns(), std::memory_order_relaxed); }

DaemonLink Daemon::take(pid_t own) {
  for (Kept& kept : kept_) {
    pid_t owner = own;
    if (!kept.owner.compare_exchange_strong(owner, kMoving)) continue;
    const DaemonLink link = kept.link;
    kept.owner.store(kNobody);
    if (link.is_own()) return link;
    note_loss();
  }
  return {};
}

void Daemon::give_back(DaemonLink link, pid_t own) {
  for (Kept& kept : kept_) {
    pid_t owner = kNobody;
    if (!kept.owner.compare_exchange_strong(owner, kMoving)) continue;
    kept.link = link;
    kept.owner.store(own);
    return;
  }
  link.close();
}

Asked Daemon::unanswered(Asked asked) {
  if (asked.error == ENETDOWN) {
    silent_until_ns_.store(now_ns() + kSilenceNs, std::memory_order_relaxed);
  }
  return asked;
}

Asked Daemon::ask(const char* path, const Request& request, OnSignal on_signal) {
  if (now_ns() < silent_until_ns_.load(std::memory_order_relaxed)) return failed(ENETDOWN);
  const pid_t own = ::getpid();
  while (true) {
    DaemonLink link = take(own);
    const bool known = link.fd() >= 0;
    if (!known) {
      if (const int error = link.open(path, on_signal); error != 0) {
        return unanswered(failed(error));
      }
    }
    Asked asked = unanswered(link.ask(request, on_signal));
    if (known && asked.error == ECONNREFUSED) note_loss();
    if (known && !asked.sent) continue;
    if (asked.error == 0) give_back(link, own);
    return asked;
  }
}

void Daemon::prepare(const char* path) {
  DaemonLink link;
  if (link.open(path) == 0) give_back(link, ::getpid());
}

void Daemon::forked() {
  for (Kept& kept : kept_) {
    if (kept.owner.exchange(kNobody) != kNobody) kept.link.close();
    kept.link = {};
  }
}

}  // namespace mercury::sockets
