// The C library's functions, which stand behind this library's own in the order of search.
#include <dlfcn.h>

#include <atomic>

#include "shim/preload/chk.h"
#include "shim/socket/api/libc.h"

namespace mercury {
namespace {

template <class Function>
void find(Function*& out, const char* name) {
  out = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

struct Next {
  sockets::Libc libc;
  Chk chk;
  std::atomic<bool> found;
};
constinit Next next{};

// Threads that come here at the same time find the same; so there is no lock, and a constructor
// that runs before this library's, or a signal's handler, may be the first.
[[gnu::cold]] void find_all() {
  sockets::Libc& libc = next.libc;
  find(libc.socket, "socket");
  find(libc.listen, "listen");
  find(libc.accept4, "accept4");
  find(libc.connect, "connect");
  find(libc.getsockname, "getsockname");
  find(libc.getpeername, "getpeername");
  find(libc.getsockopt, "getsockopt");
  find(libc.setsockopt, "setsockopt");
  find(libc.read, "read");
  find(libc.readv, "readv");
  find(libc.recv, "recv");
  find(libc.recvfrom, "recvfrom");
  find(libc.recvmsg, "recvmsg");
  find(libc.recvmmsg, "recvmmsg");
  find(libc.send, "send");
  find(libc.sendto, "sendto");
  find(libc.sendmsg, "sendmsg");
  find(libc.sendmmsg, "sendmmsg");
  find(libc.write, "write");
  find(libc.writev, "writev");
  find(libc.sendfile, "sendfile");
  find(libc.shutdown, "shutdown");
  find(libc.poll, "poll");
  find(libc.ppoll, "ppoll");
  find(libc.epoll_create, "epoll_create");
  find(libc.epoll_create1, "epoll_create1");
  find(libc.epoll_ctl, "epoll_ctl");
  find(libc.epoll_wait, "epoll_wait");
  find(libc.epoll_pwait, "epoll_pwait");
  find(libc.epoll_pwait2, "epoll_pwait2");
  find(next.chk.read, "__read_chk");
  find(next.chk.recv, "__recv_chk");
  find(next.chk.recvfrom, "__recvfrom_chk");
  find(next.chk.poll, "__poll_chk");
  find(next.chk.ppoll, "__ppoll_chk");
  next.found.store(true, std::memory_order_release);
}

Next& found() {
  if (!next.found.load(std::memory_order_acquire)) [[unlikely]]
    find_all();
  return next;
}

}  // namespace

const Chk& next_chk() { return found().chk; }

}  // namespace mercury

namespace mercury::sockets {

const Libc& libc() { return found().libc; }

}  // namespace mercury::sockets
