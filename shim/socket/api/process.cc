#include "shim/socket/api/process.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "shim/socket/api/descriptors.h"

namespace mercury::sockets {
namespace {

// Never destroyed, and made by the linker: it is there before the first constructor and after the
// last destructor of a program.
constinit OwnProcess the_process;
constinit std::atomic<bool> started{false};
constinit std::atomic<bool> watches_forks{false};
// The process one of whose threads makes the first call. No lock: a child of fork would inherit it
// taken by a thread that it does not have, and others' handlers of fork may call in.
constinit std::atomic<pid_t> starter{0};

constinit sigset_t mask_before_fork{};

// A child of fork has one thread, and so must not inherit a lock that another one held. Nor may a
// signal's handler wait for one that its own thread holds.
void before_fork() {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  the_process.listeners.lock();
  the_process.undecided.lock();
  the_process.registrations.lock();
  the_process.connections.lock();
  mask_before_fork = before;
}
void after_fork() {
  const sigset_t before = mask_before_fork;
  the_process.connections.unlock();
  the_process.registrations.unlock();
  the_process.undecided.unlock();
  the_process.listeners.unlock();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
void in_child() {
  the_process.daemon.forked();
  the_process.listeners.forked();
  the_process.options.forked();
  after_fork();
  // A server's child often becomes another user, who may not open one.
  if (!the_process.listeners.empty()) the_process.daemon.prepare(the_process.settings.path.data());
}

void start() {
  const SignalBlock blocked;  // a handler would wait for its own thread
  const pid_t own = ::getpid();
  pid_t other = starter.load(std::memory_order_relaxed);
  while (!started.load(std::memory_order_acquire)) {
    if (other != own && starter.compare_exchange_strong(other, own)) {
      read_environment(the_process.settings);
      if (!watches_forks.exchange(true)) ::pthread_atfork(before_fork, after_fork, in_child);
      started.store(true, std::memory_order_release);
      return;
    }
    ::sched_yield();
    other = starter.load(std::memory_order_relaxed);
  }
}

}  // namespace

Request request_about(RequestKind kind, const OwnConnection& connection) {
  Request request;
  request.kind = kind;
  request.id = connection.id;
  request.local = connection.local;
  request.remote = connection.remote;
  return request;
}

OwnProcess& process() {
  if (!started.load(std::memory_order_acquire)) [[unlikely]]
    start();
  return the_process;
}

std::optional<OwnConnection> OwnProcess::find(int fd) {
  if (connections.empty()) return std::nullopt;
  const auto cookie = cookie_of(fd);
  return cookie ? connections.find(*cookie) : std::nullopt;
}

Asked OwnProcess::ask(const Request& request, OnSignal on_signal) {
  return answered(daemon.ask(settings.path.data(), request, on_signal));
}

Asked OwnProcess::answered(Asked asked) {
  if (is_other_namespace(asked)) {
    lost_daemon(ENONET);
  } else if (asked.error != 0) {
    lost_daemon(asked.error);
  }
  return asked;
}

void OwnProcess::lost_daemon(int error) {
  if (error == EMFILE || error == EINTR || warned.exchange(true)) return;
  const bool through_kernel = error == ENONET || settings.on_error == OnError::kKernel;
  warn(error == ENETDOWN ? "mercury-stackd does not answer at "
       : error == ENONET ? "mercury-stackd is in another network namespace at "
       : error == EACCES ? "no permission (attach.group of mercury-stackd) to open "
                         : "no mercury-stackd to speak to at ",
       settings.path.data(),
       through_kernel ? ": sockets go through the kernel" : ": connect() fails");
}

}  // namespace mercury::sockets
