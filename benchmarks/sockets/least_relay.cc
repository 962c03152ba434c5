// The least that a daemon between programs and the network can do: it takes one connection, makes
// one, and hands bytes on in both directions until both have ended. It checks, frames and shares
// nothing. What it costs comes of being in between, by sleeping and with kernel TCP.
//
//   least_relay copy|splice FROM TO      FROM and TO: unix:PATH or tcp:IPv4 ADDRESS:PORT
//
// copy: poll, one read, one write. splice: the same without copies, through a pipe. It says
// "listens" once it does; in the end, as a JSON object, what processor time it took.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/sockets/cpu_time.h"

namespace {

constexpr size_t kBufferBytes = 256 * 1024;
constexpr int kPipeBytes = 1 << 20;  // as many of them as an ordinary user may have

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "least_relay: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

Address parse(const std::string& text) {
  Address address;
  const std::string rest = text.substr(text.find(':') + 1);
  const size_t colon = rest.rfind(':');
  if (text.starts_with("unix:") && rest.size() < sizeof(sockaddr_un::sun_path)) {
    auto& path = reinterpret_cast<sockaddr_un&>(address.bytes);
    path.sun_family = AF_UNIX;
    std::memcpy(path.sun_path, rest.data(), rest.size());
    address.length = sizeof path;
  } else if (text.starts_with("tcp:") && colon != std::string::npos) {
    auto& four = reinterpret_cast<sockaddr_in&>(address.bytes);
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(std::atoi(rest.c_str() + colon + 1)));
    address.length = sizeof four;
    errno = EINVAL;
    if (inet_pton(AF_INET, rest.substr(0, colon).c_str(), &four.sin_addr) != 1) fail(text);
  } else {
    errno = EINVAL;
    fail(text + ": neither unix:PATH nor tcp:ADDRESS:PORT");
  }
  return address;
}

int make_socket(const Address& address) {
  const int fd = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  return fd;
}

void set_up(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // a Unix socket has none
  fcntl(fd, F_SETFL, O_NONBLOCK);
}

int accept_one(const std::string& text) {
  const Address address = parse(text);
  const int listener = make_socket(address);
  const auto* name = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (bind(listener, name, address.length) != 0 || listen(listener, 1) != 0) fail(text);
  std::puts("listens");
  std::fflush(stdout);
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) fail(text);
  close(listener);
  set_up(fd);
  return fd;
}

int connect_to(const std::string& text) {
  const Address address = parse(text);
  const int fd = make_socket(address);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.length) != 0) {
    fail(text);
  }
  set_up(fd);
  return fd;
}

// One direction. No more is read before all that was read is written.
class Way {
 public:
  Way(int from, int to, bool splices) : from_(from), to_(to), splices_(splices) {
    if (!splices) {
      buffer_.resize(kBufferBytes);
      return;
    }
    if (pipe2(pipe_.data(), O_NONBLOCK | O_CLOEXEC) != 0) fail("pipe");
    fcntl(pipe_[1], F_SETPIPE_SZ, kPipeBytes);
  }

  bool done() const { return ended_; }
  pollfd wanted() const {
    if (ended_) return {-1, 0, 0};
    return waits_ > 0 ? pollfd{to_, POLLOUT, 0} : pollfd{from_, POLLIN, 0};
  }
  void go() {
    if (ended_) return;
    if (waits_ == 0 && !read()) return;
    while (waits_ > 0 && write()) {
    }
  }

 private:
  bool read() {
    const ssize_t got = splices_ ? splice(from_, nullptr, pipe_[1], nullptr, kPipeBytes,
                                          SPLICE_F_NONBLOCK | SPLICE_F_MOVE)
                                 : recv(from_, buffer_.data(), buffer_.size(), 0);
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) {  // its end; or a reset, which is as good as one here
      ended_ = true;
      shutdown(to_, SHUT_WR);
      return false;
    }
    begin_ = 0;
    waits_ = static_cast<size_t>(got);
    return true;
  }
  bool write() {
    const ssize_t put = splices_ ? splice(pipe_[0], nullptr, to_, nullptr, waits_,
                                          SPLICE_F_NONBLOCK | SPLICE_F_MOVE)
                                 : send(to_, buffer_.data() + begin_, waits_, MSG_NOSIGNAL);
    if (put < 0 && errno == EAGAIN) return false;
    if (put < 0) fail("write");
    begin_ += static_cast<size_t>(put);
    waits_ -= static_cast<size_t>(put);
    return true;
  }

  int from_;
  int to_;
  bool splices_;
  bool ended_ = false;
  size_t begin_ = 0;  // of what waits in the buffer
  size_t waits_ = 0;
  std::vector<char> buffer_;
  std::array<int, 2> pipe_{-1, -1};
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc == 4 ? argv[1] : "";
  if (how != "copy" && how != "splice") {
    std::fprintf(stderr, "usage: least_relay copy|splice FROM TO\n");
    return 2;
  }
  const int from = accept_one(argv[2]);
  const int to = connect_to(argv[3]);
  Way there(from, to, how == "splice");
  Way back(to, from, how == "splice");
  while (!there.done() || !back.done()) {
    std::array<pollfd, 2> wanted{there.wanted(), back.wanted()};
    if (poll(wanted.data(), wanted.size(), -1) < 0 && errno != EINTR) fail("poll");
    if (wanted[0].revents != 0) there.go();
    if (wanted[1].revents != 0) back.go();
  }
  std::printf("{\"cpu_s\": %.6f}\n", mercury::bench::cpu_seconds());
  return 0;
}
